"""Percentiles and their bounds against definitions, SciPy and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fleetsieve_measure.percentiles import mean, needed, percentile, ranks

PERCENTS = [1, 25, 50, 90, 95, 99, 99.9, 100]


@given(
    st.lists(st.floats(0.001, 1e6), max_size=60), st.integers(0, 20), st.sampled_from(PERCENTS)
)  # fmt: skip
def test_a_percentile_is_the_least_value_that_enough_requests_do_not_exceed(
    values, failed, percent
):
    if not values and not failed:
        return
    everything = sorted([*values, *[math.inf] * failed])
    share = percent / 100 - 1e-12
    expected = next(v for i, v in enumerate(everything, 1) if i / len(everything) >= share)
    found = percentile(np.array(values), failed, percent)
    assert found.value == expected
    assert found.low <= found.value <= found.high


def test_nine_good_requests_and_a_failure():
    found = [percentile(np.arange(1.0, 10.0), 1, p).value for p in (50, 90, 91, 99)]
    assert found == [5.0, 9.0, math.inf, math.inf]


@pytest.mark.parametrize("count", [1, 10, 58, 59, 298, 299, 473, 1000])
@pytest.mark.parametrize("percent", [50, 95, 99, 99.9])
def test_ranks_are_the_tightest_whose_binomial_tails_allow_it(count, percent):
    low, high = ranks(count, percent)
    share = percent / 100
    # X_(r) lies above the true percentile when fewer than r samples lie below it.
    ok_low = [r for r in range(1, count + 1) if binom.cdf(r - 1, count, share) <= 0.05]
    ok_high = [r for r in range(1, count + 1) if binom.sf(r - 1, count, share) <= 0.05]
    assert low == max(ok_low, default=0)
    assert high == min(ok_high, default=count + 1)


def test_a_p99_needs_299_requests_for_an_upper_bound():
    assert (needed(99), needed(95), needed(50)) == (299, 59, 5)
    for count, bounded in ((298, False), (299, True)):
        assert percentile(np.linspace(1, 2, count), 0, 99).bounded == bounded
    assert ranks(298, 99)[1] == 299
    assert ranks(299, 99)[1] == 299


def test_bounds_hold_as_often_as_they_say_and_the_standard_error_fits():
    rng = np.random.default_rng(0)
    true = math.exp(2.326348)  # the p99 of a standard log-normal
    found = [percentile(rng.lognormal(size=1500), 0, 99) for _ in range(600)]
    assert np.mean([each.low > true for each in found]) <= 0.06
    assert np.mean([each.high < true for each in found]) <= 0.06
    spread = np.std([math.log(each.value) for each in found])
    assert np.median([each.log_se for each in found]) == pytest.approx(spread, rel=0.25)


def test_a_mean_is_infinite_with_a_failure_and_has_the_textbook_error_without():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    found = mean(values, 0)
    assert found.value == pytest.approx(4.0)
    assert found.se == pytest.approx(values.std(ddof=1) / 2)
    assert mean(values, 1).value == math.inf
    assert mean(values, 1).se is None
    assert mean(values[:1], 0).se == math.inf


def test_a_sample_that_bounds_nothing_above_is_never_taken_for_exact():
    """The largest of few says little of a p99, however close to one another they are."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 4):
        assert percentile(np.full(count, 2.0), 0, 99).se == math.inf
    for count in (5, 20, 100, 298):
        found = [percentile(rng.lognormal(sigma=0.5, size=count), 0, 99) for _ in range(200)]
        errors = np.array([math.log(each.value) - 0.5 * 2.326348 for each in found])
        scores = errors / np.array([each.log_se for each in found])
        assert np.mean(np.abs(scores) < 2) > (0.6 if count == 5 else 0.9)


def test_of_no_request_there_is_no_statistic():
    for statistic in (lambda: percentile(np.array([]), 0, 99), lambda: mean(np.array([]), 0)):
        with pytest.raises(ValueError, match="no request"):
            statistic()
