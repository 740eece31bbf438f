"""Arrival processes: when the requests of an open loop are due, whatever the server does.

Each function gives the due times of one run: endless, ascending, in seconds from its start, at a
mean rate in requests/s. They draw ahead in blocks, so give each a generator of its own.
"""

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleetsieve_measure.errors import InputError

_BLOCK = 4096


def poisson(rate: float, rng: np.random.Generator) -> Iterator[float]:
    """Independent exponential gaps: many users who know nothing of each other."""
    mean = 1 / _positive("rate", rate)
    return _after(0.0, lambda: rng.exponential(mean, _BLOCK))


def constant(rate: float) -> Iterator[float]:
    """One request every 1/rate seconds, the first at 0."""
    _positive("rate", rate)
    return (number / rate for number in itertools.count())


def gamma(rate: float, cv: float, rng: np.random.Generator) -> Iterator[float]:
    """Independent Gamma gaps with coefficient of variation `cv`: 1 is Poisson, above 1 bursty.

    A run starts at a moment like any other. Were a whole gap to come first, the start would be
    a burst for cv above 1, (cv² - 1)/2 requests too many on average. So the first gap is what is
    left of the one that covers the start: a uniform share of a length-biased gap, Gamma(k + 1, θ)
    (Cox, Renewal Theory, chapter 5).
    """
    shape = 1 / _positive("cv", cv) ** 2
    scale = 1 / (_positive("rate", rate) * shape)
    first = rng.uniform() * rng.gamma(shape + 1, scale)
    return itertools.chain([first], _after(first, lambda: rng.gamma(shape, scale, _BLOCK)))


def replayed(times: ArrayLike, rate: float) -> Iterator[float]:
    """The arrivals of a trace, stretched to a mean rate and repeated end to end.

    The last arrival of one pass and the first of the next are a mean gap of the trace, 1/rate,
    apart: neither together nor separated by a silence, and every pass takes n/rate seconds.

    Args:
        times: (n,) arrivals in seconds, ascending; equal ones stay equal.
        rate: requests/s.
    """
    at = np.asarray(times, dtype=np.float64)
    _positive("rate", rate)
    if at.ndim != 1 or len(at) < 2 or not np.isfinite(at).all() or (np.diff(at) < 0).any():
        raise InputError(
            f"the times to replay, of shape {at.shape}, are no ascending list; give at least 2 "
            "finite times in seconds"
        )
    span = at[-1] - at[0]
    if span <= 0:
        raise InputError(f"the {len(at)} times to replay are all {at[0]:g}; give some that differ")
    return _passes((at - at[0]) / span * ((len(at) - 1) / rate), len(at) / rate)


def _passes(once: NDArray[np.float64], period: float) -> Iterator[float]:
    repeats = -(-_BLOCK // len(once))
    for block in itertools.count(step=repeats):
        starts = (block + np.arange(repeats)) * period
        yield from (starts[:, None] + once).ravel().tolist()


def _after(start: float, gaps: Callable[[], NDArray[np.float64]]) -> Iterator[float]:
    while True:
        due = start + np.cumsum(gaps())
        yield from due.tolist()
        start = due[-1]


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise InputError(f"{name} is {value}; give a finite number above 0")
    return value
