"""Loads that are found under noise, beside what probability says of them."""

import numpy as np
import pytest
from feasible_if_any import NOISE, RULES, SEARCHES, Column, columns, tally
from scipy.stats import t

# The upper level misses its SLO by 10 %; the lower one and the highest leave no doubt.
EDGE = Column(np.array([1.0, 2.0, 4.0]), np.array([-5.0, np.log(1.1), 5.0]))


@pytest.mark.parametrize("trials", [1, 2, 3])
def test_any_of_so_many_trials_takes_a_load_as_often_as_probability_says(trials):
    # A trial's log factor is t with 4 degrees of freedom, of standard deviation 0.15: t's is √2.
    pass_once = float(t.cdf(-np.log(1.1) / (NOISE / np.sqrt(2)), 4))
    found = tally([EDGE] * 4000, SEARCHES["levels, from the lowest up"], RULES["any"], trials)
    expected = 1 - (1 - pass_once) ** trials
    assert found.above == pytest.approx(expected, abs=4 * (expected / 4000) ** 0.5)


def test_the_median_of_three_takes_it_as_often_as_two_of_three_do():
    p = float(t.cdf(-np.log(1.1) / (NOISE / np.sqrt(2)), 4))
    found = tally([EDGE] * 4000, SEARCHES["levels, by halves"], RULES["median"], 3)
    expected = p**3 + 3 * p**2 * (1 - p)
    assert found.above == pytest.approx(expected, abs=4 * (expected / 4000) ** 0.5)


def test_without_noise_every_search_ends_at_the_boundary():
    chosen = [column for seed in range(3) for column in columns(seed)]
    assert len(chosen) > 5
    for column in chosen:
        # The last level before the first that breaks, and the next one, enclose it.
        k = int(np.argmax(column.excess > 0))
        assert column.boundary is not None
        assert column.loads[k - 1] <= column.boundary <= column.loads[k]
        assert column.at(column.boundary) == pytest.approx(0.0, abs=1e-9)
    monotone = [c for c in chosen if (np.diff((c.excess > 0).astype(int)) >= 0).all()]
    for name, search in SEARCHES.items():
        found = tally(monotone, search, RULES["any"], 1, noise=0.0)
        assert found.above == 0
        if "levels" not in name:
            assert (found.ratios > 1 / 1.05 - 1e-9).all()
