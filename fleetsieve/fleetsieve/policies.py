"""Policies: which cell to measure next, given what is known.

A policy maps a `Situation` to a score per cell, higher is better; the caller breaks ties at random.
All share the model and the stop rule of `Search`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr

from fleetsieve.belief import Assessment, Belief, Hypothesis
from fleetsieve.choice import used
from fleetsieve.observations import Observations

# Less than this is rounding noise of a gap in [0, 1].
_NOTHING = 1e-12
# With more candidates than this only so many get the full score, twice.
_MANY, _KEPT = 256, 32


@dataclass(frozen=True)
class Situation:
    """What a policy may look at; `free` are the cells it may choose.

    `look` gives the bounds and the hyperparameters, which are worked out for policies that ask.
    `left` are the runs that cells have left if the assessment is at face value, else None.
    `launch` is what measuring a cell costs on top, in GPU-seconds, since no server of its config
    is up.
    """

    belief: Belief
    observed: Observations
    look: Callable[[], tuple[Assessment, Hypothesis]]
    pending: tuple[int, ...]
    free: Bool[np.ndarray, " N"]
    launch: Float[np.ndarray, " N"]
    left: Int[np.ndarray, " N"] | None = None

    @property
    def assessment(self) -> Assessment:
        """The bounds that the next cell is to tighten."""
        return self.look()[0]

    @property
    def hypothesis(self) -> Hypothesis:
        """The hyperparameters that they rest on."""
        return self.look()[1]

    @property
    def cost(self) -> Float[np.ndarray, " N"]:
        """GPU-seconds of each cell, at least a little so that free ones can be ranked."""
        return np.maximum(self.belief.problem.gpu_seconds.ravel() + self.launch, 1e-9)


@dataclass(frozen=True)
class Choice:
    """Score of every cell and, where the policy computes it, the expected gap reduction.

    `wait`: no cell promises anything if the pending ones turn out as expected, so that whoever can
    wait should do so until one has.
    """

    score: Float[np.ndarray, " N"]
    gap_reduction: Float[np.ndarray, " N"]
    wait: bool = False


Policy = Callable[[Situation], Choice]


def sieve(situation: Situation) -> Choice:
    """Expected reduction of gap and distance per GPU-second (METHOD 4).

    Where neither moves, the most SLO-uncertain cells of the columns that an allocation uses.
    """
    state = situation.observed, situation.hypothesis, situation.pending, situation.left
    among = situation.free
    if np.count_nonzero(among) > _MANY:
        among = _screened(situation, *situation.belief.own_gains(*state))
    gap, distance = situation.belief.gains(*state, among)
    return by_gains(situation, gap, distance)


def _screened(
    situation: Situation, distance: Float[np.ndarray, " N"], span: Float[np.ndarray, " N"]
) -> Bool[np.ndarray, " N"]:
    """Cells that deserve the full score: those that do most to their own columns.

    Of each workload also those that narrow the capacity of their column most, since a column that
    others could replace brings nobody closer alone.
    """
    workloads = len(situation.belief.problem.workloads)
    kept = np.zeros(situation.free.size, bool)
    kept[_largest(np.where(situation.free, distance / situation.cost, -np.inf), _KEPT)] = True
    narrowed = np.where(situation.free, span / situation.cost, -np.inf).reshape(workloads, -1)
    for w, score in enumerate(narrowed):
        kept[w * score.size + _largest(score, _KEPT // workloads)] = True
    return kept & situation.free


def _largest(score: Float[np.ndarray, " n"], count: int) -> Int[np.ndarray, " k"]:
    return np.argsort(-score, kind="stable")[: max(count, 1)]


def by_gains(
    situation: Situation, gap: Float[np.ndarray, " N"], distance: Float[np.ndarray, " N"]
) -> Choice:
    """Cells by what they take off the gap and the distance, with the fallback of `sieve`."""
    total = np.where(situation.free, gap + distance, 0.0)
    nothing = bool(total.max(initial=0.0) <= _NOTHING)
    if nothing:
        total = _uncertain(situation)
    # Before the first outcome the model expects nothing in particular, and slots are better used.
    wait = nothing and situation.observed.n_measured > 0
    return Choice(total / situation.cost, np.where(situation.free, gap, 0.0), wait)


def likely(belief: Belief, assessment: Assessment) -> Float[np.ndarray, " N"]:
    """Probability that a cell holds all its SLOs, one metric independent of the other."""
    sd = np.maximum(assessment.sd[:, 1:], 1e-12)
    holds = ndtr(-assessment.mean[:, 1:] / sd)
    return np.where(belief.limited, holds, 1.0).prod(axis=1)


def random(situation: Situation) -> Choice:
    """Uniform over the free cells: all tie."""
    return _plain(np.zeros(situation.free.size))


def uncertainty(situation: Situation) -> Choice:
    """Largest posterior variance, summed over the outputs, per GPU-second."""
    return _plain((situation.assessment.sd**2).sum(axis=1) / situation.cost)


def cheapest(situation: Situation) -> Choice:
    """Fewest GPU-seconds."""
    return _plain(1 / situation.cost)


# Policies that look at no bounds.
BLIND = (random, cheapest)

POLICIES: dict[str, Policy] = {
    "sieve": sieve,
    "random": random,
    "uncertainty": uncertainty,
    "cheapest": cheapest,
}


def _plain(score: Float[np.ndarray, " N"]) -> Choice:
    return Choice(score, np.zeros_like(score))


def _uncertain(situation: Situation) -> Float[np.ndarray, " N"]:
    """How open it is whether a cell holds its SLOs, times its column's capacity range.

    Of the columns in n^L and n^U first, of any column if those hold no free cell.
    """
    assessment, problem = situation.assessment, situation.belief.problem
    holds = likely(situation.belief, assessment)
    spread = assessment.kappa_upper - assessment.kappa_lower
    worth = np.repeat(spread.ravel(), problem.exists.shape[2])
    value = np.where(situation.free, (holds * (1 - holds) + 1e-9) * (worth + 1e-9), 0.0)
    here = np.repeat(
        used(problem, assessment.kappa_lower, assessment.kappa_upper).ravel(),
        problem.exists.shape[2],
    )
    return np.where(here, value, 0.0) if (here & situation.free).any() else value
