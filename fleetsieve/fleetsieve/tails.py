"""How far the median of a cell's runs may be off when their noise has heavy tails."""

import numpy as np
from jaxtyping import Float
from scipy.special import betaincinv, ndtr, stdtr, stdtrit

from fleetsieve.observations import share

# Noise from run to run is taken to have the tails of Student's t with so many degrees of freedom.
_TAILS = 4


def excess(q: float, most: int) -> Float[np.ndarray, " k"]:
    """By the number of runs, 0 to `most`: squared ratio of quantiles, less 1, of their median.

    The Gaussian's quantile is q sd; the other is as likely to be exceeded by the median of k values
    with the tails of Student's t and the variance of the Gaussian.
    """
    reach = np.array([0.0, *(_reach(float(ndtr(-q)), k) for k in range(1, most + 1))])
    return np.maximum(reach**2 / (q**2 * share(np.arange(most + 1))) - 1, 0.0)


def _reach(tail: float, runs: int) -> float:
    """What the median of `runs` values exceeds with probability `tail`, in sd of one value."""
    unit = np.sqrt((_TAILS - 2) / _TAILS)
    if runs == 2:
        from scipy.optimize import root_scalar

        far = -float(stdtrit(_TAILS, tail))
        found = root_scalar(lambda x: _mean_of_two(x) - tail, bracket=(0.0, far))
        return float(found.root) * unit
    odd = runs - 1 + runs % 2
    # The median of an odd number is beyond x when more than half of the values are.
    each = betaincinv(odd // 2 + 1, odd // 2 + 1, tail)
    return -float(stdtrit(_TAILS, each)) * unit


def _mean_of_two(beyond: float) -> float:
    """The probability that the mean of two values exceeds `beyond`, over the larger of both."""
    above = stdtr(_TAILS, -beyond)
    larger = -stdtrit(_TAILS, above * (np.arange(64) + 0.5) / 64)
    other = stdtr(_TAILS, larger) - stdtr(_TAILS, 2 * beyond - larger)
    return float(2 * above * other.mean())
