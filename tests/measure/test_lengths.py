"""Request lengths follow the distribution that was asked for, and whole rows stay whole."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.lengths import Clipped, Constant, Independent, InOrder, Lognormal, Rows

MANY = 100_000
PROMPTS, OUTPUTS = [10, 200, 3000], [1, 20, 300]


def rng(seed=0):
    return np.random.default_rng(seed)


def test_lognormal_tokens_pass_a_kolmogorov_smirnov_test_against_the_distribution():
    tokens = Lognormal(median=20_000, sigma=0.8).draw(rng(), MANY)
    # Rounding moves a draw by half a token of 20,000: far below what the test can see.
    assert stats.kstest(tokens, stats.lognorm(s=0.8, scale=20_000).cdf).pvalue > 0.01


def test_the_maximum_is_reached_by_the_share_above_it_and_leaves_the_quantiles_below_alone():
    limited = Lognormal(median=800, sigma=0.8, maximum=2000).draw(rng(), MANY)
    above = stats.lognorm(s=0.8, scale=800).sf(1999.5)
    error = math.sqrt(above * (1 - above) / MANY)
    assert limited.max() == 2000
    assert np.mean(limited == 2000) == pytest.approx(above, abs=4 * error)
    for share in (0.1, 0.5, 0.8):
        expected = stats.lognorm(s=0.8, scale=800).ppf(share)
        assert np.quantile(limited, share) == pytest.approx(expected, rel=0.015)


@settings(deadline=None)
@given(
    median=st.floats(1, 1e6),
    sigma=st.floats(0, 50),
    room=st.integers(0, 10**6),
    seed=st.integers(0, 2**32),
)
def test_lognormal_tokens_are_whole_and_between_1_and_the_maximum(median, sigma, room, seed):
    maximum = math.ceil(median) + room
    tokens = Lognormal(median, sigma, maximum).draw(rng(seed), 50)
    assert tokens.dtype == np.int64
    assert tokens.min() >= 1
    assert tokens.max() <= maximum


def test_without_spread_a_lognormal_is_its_median():
    assert set(Lognormal(median=37, sigma=0).draw(rng(), 10)) == {37}


def test_a_spread_beyond_all_floats_stops_at_the_largest_count():
    tokens = Lognormal(median=10, sigma=1e6).draw(rng(), 100)
    assert tokens.max() == 2**31 - 1


def test_independent_sides_keep_their_own_distribution_and_do_not_correlate():
    sides = Independent(Lognormal(median=800, sigma=0.8), Lognormal(median=220, sigma=0.7))
    drawn = sides.draw(rng(), MANY)
    assert drawn.shape == (MANY, 2)
    assert np.median(drawn, axis=0) == pytest.approx([800, 220], rel=0.02)
    assert abs(np.corrcoef(np.log(drawn.T))[0, 1]) < 4 / math.sqrt(MANY)


def test_constants_are_constant():
    drawn = Independent(Constant(7), Constant(1)).draw(rng(), 3)
    assert drawn.tolist() == [[7, 1]] * 3


def test_sampled_rows_are_whole_and_equally_likely():
    drawn = Rows(PROMPTS, OUTPUTS).draw(rng(), MANY)
    rows, counts = np.unique(drawn, axis=0, return_counts=True)
    assert rows.tolist() == [[10, 1], [200, 20], [3000, 300]]
    assert stats.chisquare(counts).pvalue > 0.01


def test_rows_in_order_go_on_from_draw_to_draw_and_start_over_at_the_end():
    lengths = InOrder(Rows(PROMPTS, OUTPUTS))
    drawn = [lengths.draw(rng(), count) for count in (2, 0, 3, 7)]
    assert np.concatenate(drawn).tolist() == ([[10, 1], [200, 20], [3000, 300]] * 4)


def test_the_same_seed_gives_the_same_lengths():
    for lengths in (
        Independent(Lognormal(800, 0.8), Lognormal(220, 0.7, 1200)),
        Rows(PROMPTS, OUTPUTS),
    ):
        assert np.array_equal(lengths.draw(rng(5), 100), lengths.draw(rng(5), 100))
        assert not np.array_equal(lengths.draw(rng(5), 100), lengths.draw(rng(6), 100))


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(*[st.integers(1, 2**31 - 1)] * 2), min_size=1, max_size=50),
    limit=st.integers(2, 2**31 - 1),
)
def test_clipped_lengths_fit_and_only_those_that_were_too_long_change(rows, limit):
    clipped = Clipped(InOrder(Rows(*zip(*rows, strict=True))), limit)
    fitted = clipped.draw(rng(), len(rows)).tolist()
    long = [sum(row) > limit for row in rows]
    for before, after, cut in zip(rows, fitted, long, strict=True):
        assert min(after) >= 1
        assert sum(after) == (limit if cut else sum(before))
        assert cut or list(before) == after
    assert clipped.share_cut == sum(long) / len(long)


def test_clipping_keeps_the_proportion_of_prompt_to_output():
    clipped = Clipped(Independent(Constant(30_000), Constant(10_000)), 4000)
    assert clipped.draw(rng(), 2).tolist() == [[3000, 1000]] * 2


def test_the_share_cut_counts_every_draw():
    clipped = Clipped(InOrder(Rows(PROMPTS, OUTPUTS)), 1000)
    assert clipped.share_cut == 0
    for _ in range(2):
        clipped.draw(rng(), 2)
    assert clipped.share_cut == 1 / 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(0), "tokens is 0; give"),
        (lambda: Lognormal(median=0, sigma=1), "median is 0 tokens"),
        (lambda: Lognormal(median=math.nan, sigma=1), "median is nan tokens"),
        (lambda: Lognormal(median=9, sigma=-0.1), "sigma is -0.1"),
        (lambda: Lognormal(median=900, sigma=1, maximum=800), "above the maximum of 800"),
        (lambda: Rows([], []), r"the shapes \(0,\) and \(0,\)"),
        (lambda: Rows([1, 2], [1]), r"the shapes \(2,\) and \(1,\)"),
        (lambda: Rows([1, 2], [1, 0]), "a request has 0 tokens on one side"),
        (lambda: Rows([1.5], [1]), "token counts are of type float64"),
        (lambda: Clipped(Rows([1], [1]), 1), "max_model_len is 1"),
    ],
)
def test_impossible_lengths_are_refused_with_what_would_do(make, message):
    with pytest.raises(InputError, match=message):
        make()
