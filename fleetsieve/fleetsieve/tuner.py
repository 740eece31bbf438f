"""Constrained Bayesian optimisation of each workload alone, as a tuner of one service does it.

The objective is a cell's requests/s per GPU, under the condition that all SLOs hold (Gardner et
al. 2014): expected improvement on the best cell so far, times the probability that the SLOs hold.
Workloads take turns. What such tuners lack, a view of the fleet, is all that is left out: means
and sds are the marginals of the joint model, so a workload learns from others here too.
"""

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import norm

from fleetsieve.observations import throughput_scale
from fleetsieve.policies import Choice, Situation, likely

# An improvement by less than this share of the best cell so far is not worth a benchmark.
ENOUGH = 0.01


def bo(situation: Situation) -> Choice:
    """Constrained expected improvement of the workload whose turn it is.

    That is the one with the fewest outcomes, first those that may still improve; with demand only.
    """
    shape = situation.belief.problem.exists.shape
    gain = improvement(situation)
    turn = np.repeat(_turn(situation, gain), shape[1] * shape[2])
    return Choice(np.where(turn, gain, -1.0), np.zeros(gain.size))


def settled(choice: Choice) -> bool:
    """Whether `bo` sees no improvement that is worth a benchmark, of any workload."""
    return bool(choice.score.max(initial=0.0) < ENOUGH)


def improvement(situation: Situation) -> Float[np.ndarray, " N"]:
    """Constrained expected improvement of free cells as a share of the best so far, else 0.

    The best so far is the best measured cell that holds, below every level that broke. Before
    there is one, any gain is an improvement on nothing, and counted in units of the largest.
    """
    belief, found = situation.belief, situation.assessment
    problem, observed = belief.problem, situation.observed
    shape = problem.exists.shape
    size = np.broadcast_to(problem.sizes[None, :, None], shape).ravel()
    mean, sd = found.mean[:, 0] + np.log(throughput_scale(problem) / size), found.sd[:, 0]
    holds = observed.measured & ~observed.broken
    holds &= ((found.mean[:, 1:] <= 0) | ~belief.limited).all(axis=1)
    reached = _below_breaks(situation)
    best = np.where(holds & reached, mean, -np.inf).reshape(shape[0], -1).max(axis=1)
    expected = np.where(situation.free, mean + sd**2 / 2, -np.inf).reshape(shape[0], -1)
    unit = np.where(np.isfinite(best), best, expected.max(axis=1))
    unit = np.where(np.isfinite(unit), unit, 0.0)
    per_cell = [np.repeat(x, shape[1] * shape[2]) for x in (best, unit)]
    gain = expected_improvement(mean - per_cell[1], sd, np.exp(per_cell[0] - per_cell[1]))
    return np.where(situation.free, gain * likely(belief, found), 0.0)


def expected_improvement(
    mean: Float[np.ndarray, " N"], sd: Float[np.ndarray, " N"], best: Float[np.ndarray, " N"]
) -> Float[np.ndarray, " N"]:
    """E[max(exp(x) - best, 0)] for x ~ N(mean, sd²): the price of a call (Black & Scholes 1973)."""
    sd = np.maximum(sd, 1e-12)
    with np.errstate(divide="ignore"):
        away = (mean - np.log(best)) / sd
    gain = np.exp(mean + sd**2 / 2) * norm.cdf(away + sd) - best * norm.cdf(away)
    return np.maximum(gain, 0.0)


def _turn(situation: Situation, gain: Float[np.ndarray, " N"]) -> Bool[np.ndarray, " W"]:
    problem, observed = situation.belief.problem, situation.observed
    workloads = len(problem.workloads)

    def each(values: np.ndarray) -> np.ndarray:
        return values.reshape(workloads, -1)

    free = each(situation.free).any(axis=1) & (problem.demand > 0)
    worth = free & (each(gain).max(axis=1) >= ENOUGH)
    told = each(observed.measured | observed.broken).sum(axis=1)
    count = np.where(worth if worth.any() else free, told, np.inf)
    return np.arange(workloads) == np.argmin(count)


def _below_breaks(situation: Situation) -> Bool[np.ndarray, " N"]:
    breaks = situation.belief.breaks(situation.observed)
    columns = breaks.reshape(situation.belief.problem.exists.shape)
    return ~np.logical_or.accumulate(columns, axis=-1).ravel()
