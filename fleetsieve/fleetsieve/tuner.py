"""Constrained Bayesian optimisation of each workload alone, as a tuner of one service does it.

The objective is a cell's requests/s per GPU, under the condition that all SLOs hold (Gardner et
al. 2014): expected improvement on the best cell so far, times the probability that the SLOs hold,
per GPU-second (Snoek et al. 2012). Workloads take turns. What such a tuner lacks, a view of the
fleet, is all that is left out: means and sds are the marginals of the joint model, so a workload
learns from the others here too.
"""

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtr

from fleetsieve.observations import throughput_scale
from fleetsieve.policies import Choice, Situation, likely

# An improvement by less than this share of the best cell so far is not worth a benchmark.
ENOUGH = 0.01


def bo(situation: Situation) -> Choice:
    """Constrained expected improvement per GPU-second, of the workload whose turn it is.

    That is the one with the fewest outcomes, first those that may still improve; with demand only.
    """
    shape = situation.belief.problem.exists.shape
    gain = improvement(situation)
    turn = np.repeat(_turn(situation, gain), shape[1] * shape[2])
    return Choice(np.where(turn, gain / situation.cost, -1.0), np.zeros(gain.size))


def settled(choice: Choice, cost: Float[np.ndarray, " N"]) -> bool:
    """Whether `bo` sees no improvement that is worth a benchmark, of any workload.

    `cost` are the GPU-seconds that the choice was made by.
    """
    return bool((choice.score * cost).max(initial=0.0) < ENOUGH)


def improvement(situation: Situation) -> Float[np.ndarray, " N"]:
    """Constrained expected improvement of free cells as a share of the best so far, else 0.

    The best so far is the best measured cell that holds, below every level that broke. Before
    there is one, any gain is an improvement on nothing, and counted in units of the largest.
    """
    belief, found, problem = situation.belief, situation.assessment, situation.belief.problem
    size = np.broadcast_to(problem.sizes[None, :, None], problem.exists.shape).ravel()
    log = found.mean[:, 0] + np.log(throughput_scale(problem) / size)
    log, sd, free, holds = (
        values.reshape(len(problem.workloads), -1)
        for values in (log, found.sd[:, 0], situation.free, _hold(situation))
    )
    best = np.where(holds, log, -np.inf).max(axis=1, keepdims=True)
    most = np.where(free, log + sd**2 / 2, -np.inf).max(axis=1, keepdims=True)
    unit = np.where(np.isfinite(best), best, np.where(np.isfinite(most), most, 0.0))
    gain = expected_improvement(log - unit, sd, np.exp(best - unit))
    return np.where(situation.free, gain.ravel() * likely(belief, found), 0.0)


def expected_improvement(
    mean: Float[np.ndarray, "*n"], sd: Float[np.ndarray, "*n"], best: Float[np.ndarray, "*#n"]
) -> Float[np.ndarray, "*n"]:
    """E[max(exp(x) - best, 0)] for x ~ N(mean, sd²): the price of a call (Black & Scholes 1973)."""
    sd = np.maximum(sd, 1e-12)
    with np.errstate(divide="ignore"):
        away = (mean - np.log(best)) / sd
    gain = np.exp(mean + sd**2 / 2) * ndtr(away + sd) - best * ndtr(away)
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


def _hold(situation: Situation) -> Bool[np.ndarray, " N"]:
    """Measured cells that hold, below every level of their column that broke."""
    belief, observed = situation.belief, situation.observed
    columns = belief.breaks(observed).reshape(belief.problem.exists.shape)
    below = ~np.logical_or.accumulate(columns, axis=-1).ravel()
    met = (situation.assessment.mean[:, 1:] <= 0) | ~belief.limited
    return observed.measured & below & met.all(axis=1)
