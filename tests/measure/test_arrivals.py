"""Arrivals come at the rate and with the spread that was asked for, over and over."""

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fleetsieve_measure.arrivals import constant, gamma, poisson, replayed
from fleetsieve_measure.errors import InputError

MANY = 50_000


def rng(seed=0):
    return np.random.default_rng(seed)


def first(arrivals, count=MANY):
    return np.fromiter(arrivals, dtype=float, count=count)


def test_gaps_of_poisson_arrivals_are_exponential_and_independent():
    gaps = np.diff(first(poisson(2.5, rng())), prepend=0)
    assert stats.kstest(gaps, stats.expon(scale=1 / 2.5).cdf).pvalue > 0.01
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 4 / math.sqrt(MANY)


def test_counts_of_poisson_arrivals_have_a_variance_equal_to_their_mean():
    due = first(poisson(10.0, rng()))
    counts = np.bincount(due[due < 4000].astype(int), minlength=4000)
    assert counts.mean() == pytest.approx(10, rel=0.02)
    assert counts.var() == pytest.approx(10, rel=0.1)


def test_constant_arrivals_do_not_drift():
    due = constant(3.0)
    assert [next(due) for _ in range(4)] == [0, 1 / 3, 2 / 3, 1]
    assert next(itertools.islice(due, 3_000_000 - 4, None)) == 1_000_000


@pytest.mark.parametrize("cv", [0.2, 1.0, 3.0])
def test_gaps_of_gamma_arrivals_are_gamma_with_the_mean_and_the_cv(cv):
    gaps = np.diff(first(gamma(4.0, cv, rng())))
    expected = stats.gamma(1 / cv**2, scale=cv**2 / 4)
    # Many gaps of a bursty process are shorter than what due times of hours can tell apart.
    short = expected.cdf(1e-6)
    assert stats.binomtest(np.count_nonzero(gaps <= 1e-6), len(gaps), short).pvalue > 0.01
    longer = gaps[gaps > 1e-6]
    assert stats.kstest(longer, lambda x: (expected.cdf(x) - short) / (1 - short)).pvalue > 0.01
    assert gaps.mean() == pytest.approx(1 / 4, abs=4 * cv / 4 / math.sqrt(MANY))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


@pytest.mark.parametrize("cv", [0.5, 3.0])
def test_a_gamma_run_is_no_burstier_at_its_start_than_later(cv):
    """A stationary process has rate × t arrivals before t on average, however small t is."""
    runs, rate = 3000, 4.0
    dues = [first(gamma(rate, cv, rng(seed)), 200) for seed in range(runs)]
    for until in (0.25, 2.0):
        counts = np.array([np.count_nonzero(due < until) for due in dues])
        error = counts.std() / math.sqrt(runs)
        assert counts.mean() == pytest.approx(rate * until, abs=4 * error)


@settings(deadline=None)
@given(
    gaps=st.lists(st.floats(0, 1e4), min_size=1, max_size=30).filter(lambda gaps: sum(gaps) > 1e-3),
    start=st.floats(-1e6, 1e6),
    rate=st.floats(1e-3, 1e3),
)
def test_a_replayed_trace_repeats_at_the_rate_with_a_mean_gap_at_the_seam(gaps, start, rate):
    times = start + np.concatenate([[0], np.cumsum(gaps)])
    count = len(times)
    due = first(replayed(times, rate), 3 * count) * rate
    assert due[0] == 0
    assert (np.diff(due) >= 0).all()
    assert due[count:] - due[:-count] == pytest.approx(np.full(2 * count, count))
    assert due[count] - due[count - 1] == pytest.approx(1)
    shape = (times - times[0]) / (times[-1] - times[0])
    assert due[:count] == pytest.approx(shape * (count - 1), abs=1e-6)


def test_a_replay_keeps_together_what_arrived_together():
    due = first(replayed([5, 5, 5, 8], rate=2.0), 8)
    assert due.tolist() == [0, 0, 0, 1.5, 2, 2, 2, 3.5]


@pytest.mark.parametrize("count", [2, 5000])
def test_replays_do_not_drift(count):
    due = replayed(np.arange(count), rate=10.0)
    number = 20 * 5000
    assert next(itertools.islice(due, number, None)) == pytest.approx(number / 10, rel=1e-12)


def test_the_same_seed_gives_the_same_arrivals():
    for process in (lambda seed: poisson(1.0, rng(seed)), lambda seed: gamma(1.0, 2.0, rng(seed))):
        assert np.array_equal(first(process(1), 9000), first(process(1), 9000))
        assert not np.array_equal(first(process(1), 10), first(process(2), 10))


@pytest.mark.parametrize(
    "process",
    [
        lambda: poisson(5.0, rng()),
        lambda: constant(5.0),
        lambda: gamma(5.0, 2.0, rng()),
        lambda: replayed([0.0, 1.0], 5.0),
    ],
)
def test_a_million_arrivals_take_well_under_a_second(process):
    def seconds():
        start = time.process_time()
        first(process(), 1_000_000)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: poisson(0.0, rng()), "rate is 0.0; give a finite number above 0"),
        (lambda: constant(math.inf), "rate is inf"),
        (lambda: gamma(-1.0, 1.0, rng()), "rate is -1.0"),
        (lambda: gamma(1.0, 0.0, rng()), "cv is 0.0"),
        (lambda: replayed([0.0, 1.0], math.nan), "rate is nan"),
        (lambda: replayed([0.0], 1.0), r"of shape \(1,\), are no ascending list"),
        (lambda: replayed([0.0, 2.0, 1.0], 1.0), "no ascending list"),
        (lambda: replayed([0.0, math.nan], 1.0), "no ascending list"),
        (lambda: replayed([7.0, 7.0], 1.0), "all 7; give some that differ"),
    ],
)
def test_impossible_processes_are_refused_before_the_first_arrival(make, message):
    with pytest.raises(InputError, match=message):
        make()
