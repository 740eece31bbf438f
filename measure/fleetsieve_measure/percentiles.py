"""Percentiles of latencies with failures among them, and what a sample says of the true ones.

A failed request counts as infinitely late. Nearest rank, so that no value is invented between two
samples; intervals by order statistics, which hold for every distribution (David & Nagaraja, Order
Statistics, section 7.1).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

# Each bound holds with this confidence; a normal one is so many standard errors away.
CONFIDENCE, _WIDTH = 0.95, 1.644854
# So few samples say nothing of how much others would differ.
_FEW = 5
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Statistic:
    """A statistic of a sample.

    Attributes:
        value: in the unit of the sample; inf where failures reach it.
        low, high: a lower and an upper 95 % bound for the true statistic; high is inf, or low 0,
            where the sample is too small to bound it.
        log_se: standard error of the log of the value; inf where nothing bounds it.
        count: how many requests it rests on, failures included.
        bounded: whether so many are enough for an upper bound.
    """

    value: float
    low: float
    high: float
    log_se: float
    count: int
    bounded: bool

    @property
    def se(self) -> float | None:
        """Standard error in the unit of the value, inf where nothing is known of it.

        None for an infinite value.
        """
        return self.value * self.log_se if 0 < self.value < math.inf else None


def percentile(values: Floats, failures: int, percent: float) -> Statistic:
    """The nearest-rank percentile of `values` and `failures` that are infinite; 0 < percent <= 100.

    Raises:
        ValueError: there is no request at all.
    """
    count = len(values) + failures
    if not count:
        raise ValueError("no request, no percentile")
    ordered = np.sort(values)

    def at(rank: int) -> float:
        """The value of a rank from 1; beyond the sample nothing is known."""
        if rank < 1:
            return 0.0
        return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf

    value = at(nearest_rank(count, percent))
    below, above = ranks(count, percent)
    low, high = at(below), at(above)
    log_se = _log_se(low, value, high)
    if above > count:
        log_se = max(log_se, _spread(ordered))
    return Statistic(value, low, high, log_se, count, above <= count)


def mean(values: Floats, failures: int) -> Statistic:
    """The mean; with a failure it is infinite.

    Raises:
        ValueError: there is no request at all.
    """
    count = len(values) + failures
    if not count:
        raise ValueError("no request, no mean")
    if failures:
        return Statistic(math.inf, math.inf, math.inf, math.inf, count, bounded=True)
    centre = float(values.mean())
    se = float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.inf
    half = _WIDTH * se
    log_se = se / centre if centre > 0 else math.inf
    return Statistic(centre, max(centre - half, 0.0), centre + half, log_se, count, count > 1)


def nearest_rank(count: int, percent: float) -> int:
    """The rank of a percentile among `count` samples, from 1; 99 % of 100 is 99, not 100."""
    return max(1, math.ceil(count * percent / 100 - 1e-9))


@lru_cache(maxsize=4096)
def ranks(count: int, percent: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Ranks of the order statistics that bound the true percentile below and above.

    Each bound holds with at least `confidence`. Rank 0 or `count` + 1: there is no such bound.
    """
    share, miss = percent / 100, 1 - confidence
    if share >= 1:
        return nearest_rank(count, percent), count + 1
    # With B of count samples below the true percentile, B is binomial: X_(r) > it if B < r.
    below = _binomial_cdf(count, share)
    low = int(np.searchsorted(below, miss, side="right"))
    high = int(np.searchsorted(below, 1 - miss, side="left")) + 1
    return low, min(high, count + 1)


def needed(percent: float, confidence: float = CONFIDENCE) -> int:
    """The fewest samples whose largest bounds a percentile above with `confidence`."""
    if percent >= 100:
        return 1
    return math.ceil(math.log(1 - confidence) / math.log(percent / 100))


def _binomial_cdf(count: int, share: float) -> Floats:
    k = np.arange(count + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    choose = log_factorial[count] - log_factorial[k] - log_factorial[count - k]
    return np.cumsum(np.exp(choose + k * math.log(share) + (count - k) * math.log1p(-share)))


def _spread(values: Floats) -> float:
    """Standard deviation of the logs: the least error where a sample bounds nothing above."""
    if len(values) < _FEW or values[0] <= 0:
        return math.inf
    return float(np.log(values).std(ddof=1))


def _log_se(low: float, value: float, high: float) -> float:
    """From the sides of the interval that are bounded; the wider one where only one is, doubled."""
    if not math.isfinite(value) or value <= 0:
        return math.inf
    up = math.log(high / value) if math.isfinite(high) else None
    down = math.log(value / low) if low > 0 else None
    if up is not None and down is not None:
        return (up + down) / (2 * _WIDTH)
    # A single bounded side says the least that the other spreads: tails are longer upwards.
    side = down if down is not None else up
    return math.inf if side is None else 2 * side / _WIDTH
