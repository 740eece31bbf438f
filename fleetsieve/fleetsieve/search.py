"""The search over cells of one problem: observe, assess, choose. Knows indices, not names."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from fleetsieve.allocation import Allocation, value_of
from fleetsieve.belief import Assessment, Belief, Hypothesis
from fleetsieve.choice import best_allocation, servable, used
from fleetsieve.observations import Observations
from fleetsieve.policies import Choice, Policy, Situation
from fleetsieve.problem import Truth
from fleetsieve.regret import loses_little
from fleetsieve.runs import Runs

# Up to this many cells hyperparameters are fitted at each one, later when they grew by a share.
_EACH, _GROWTH = 16, 1.2
# Two gaps of [0, 1] that differ by less are the same.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Pick:
    """A cell to measure next."""

    index: int
    gap_reduction: float
    score: float


@dataclass(frozen=True)
class Search:
    """What was observed, in order, and what follows from it.

    Everything is a function of the observations and their order, never of the path of fits, so a
    search that is rebuilt from a journal goes on as the unbroken one does.

    Attributes:
        told: what was observed, run by run.
        most_runs: how often a cell may be measured while its outcomes are noisy.
        stop: the rule that certifies, "gap" or "regret".
        fits: the scheduled and the newest fit by the observations that they rest on, shared with
            the next search.
        best: likewise, but as if the best hyperparameters were certain.
    """

    belief: Belief
    tolerance: float
    told: Runs
    most_runs: int = 1
    stop: str = "gap"
    fits: dict[tuple[int, ...], Hypothesis] = field(default_factory=dict, compare=False)
    best: dict[tuple[int, ...], Hypothesis] = field(default_factory=dict, compare=False)

    @classmethod
    def start(
        cls, belief: Belief, tolerance: float, most_runs: int = 1, stop: str = "gap"
    ) -> "Search":
        """Nothing observed yet."""
        return cls(belief, tolerance, Runs.of(belief.problem, ()), most_runs, stop)

    def after(self, run: Runs) -> "Search":
        """With one more run told, or several."""
        return replace(self, told=self.told.then(run))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Flat indices of cells as they were told."""
        return tuple(self.told.cell.tolist())

    @cached_property
    def truth(self) -> Truth:
        """Outcomes of the cells that were told, and of no other."""
        return self.told.truth(self.belief.problem)

    @cached_property
    def observed(self) -> Observations:
        """All observations."""
        return self._observed(self.told)

    @property
    def fresh(self) -> Assessment:
        """Bounds that rest on a fit to all observations, whatever the schedule."""
        return self._on_all[0]

    @property
    def assessment(self) -> Assessment:
        """Bounds now. Whenever they would certify, they rest on a fit to all observations."""
        return self._now[0]

    @property
    def hypothesis(self) -> Hypothesis:
        """The fit that `assessment` rests on."""
        return self._now[1]

    @cached_property
    def surely_open(self) -> bool:
        """Whether the gap exceeds the tolerance even by bounds that are too narrow.

        They take the hyperparameters as certain, and so cost a fit and no more. True bounds are
        wider, and leave no smaller a gap as long as the same workloads count, which is all of
        them, and no κ^L is higher by wider bounds.
        """
        if self.stop != "gap" or self.observed.noisy or not self.belief.best_first:
            return False
        best = self._best(_last_fit(len(self.order)))
        found, demand = self.belief.assess(self.observed, best), self.belief.problem.demand
        every = (found.kappa_upper.max(axis=1, initial=0.0) > 0) | (demand == 0)
        wide = found.gap > self.tolerance + _ROUNDING
        return wide and bool(every.all()) and not self._would_be_eased(found)

    def _would_be_eased(self, found: Assessment) -> bool:
        """Whether a level breaks by its bounds alone below one that was measured to hold.

        By wider bounds it may hold, as the one above it does, and both would count for κ^L.
        """
        observed, shape = self.observed, self.belief.problem.exists.shape
        over = ((found.mean - found.width)[:, 1:] > 0) & self.belief.limited
        alone = (over.any(axis=1) & ~observed.measured).reshape(shape)
        held = (observed.measured & ~self.belief.breaks(observed)).reshape(shape)
        held_above = np.logical_or.accumulate(held[..., ::-1], axis=-1)[..., ::-1]
        return bool((alone & held_above).any())

    @cached_property
    def certified(self) -> bool:
        """Whether the stop rule is met and there is a value to certify."""
        return self._passes(*self._now) and self.assessment.value_upper > self.tolerance

    @cached_property
    def infeasible(self) -> bool:
        """Whether no allocation can give a value that is worth a certificate.

        A workload that may be served, if hardly at all, may also turn out to be hopeless, and then
        pulls the value down no more: not while cells are left that would tell.
        """
        problem, found = self.belief.problem, self.assessment
        if found.value_upper > self.tolerance:
            return False
        unproven = (found.kappa_lower.max(axis=1, initial=0.0) == 0) & (problem.demand > 0)
        telling = (found.kappa_upper > 0) & unproven[:, None]
        return not (self.free & np.repeat(telling.ravel(), problem.exists.shape[2])).any()

    @cached_property
    def within_noise(self) -> bool:
        """Whether the gap stays open, however often cells that are at their SLO are measured."""
        if not self.observed.noisy or self.focus is not self.assessment or self.certified:
            return False
        args = (self.hypothesis, self.assessment, self.free, self.most_runs)
        return self.belief.least_gap(self.observed, *args) > self.tolerance

    @cached_property
    def at_face(self) -> Assessment:
        """Bounds that take noisy cells at face value; see `Belief.assess`."""
        if not self.observed.noise.any():
            return self.assessment
        return self.belief.assess(self.observed, self.hypothesis, self._left)

    @cached_property
    def basis(self) -> Assessment:
        """The bounds that the recommended allocation rests on: at face value if not certified."""
        return self.assessment if self.certified else self.at_face

    @cached_property
    def recommended(self) -> Allocation:
        """The best allocation by the conservative capacities of `basis`."""
        problem, found = self.belief.problem, self.basis
        return best_allocation(problem, found.kappa_lower, servable(problem, found.kappa_upper))

    @cached_property
    def value(self) -> tuple[float, float]:
        """V of the recommended allocation at least, and of any allocation at most."""
        problem, found = self.belief.problem, self.assessment
        if self.basis is found:
            return found.value_lower, found.value_upper
        sure = value_of(
            self.recommended.replicas,
            found.kappa_lower,
            demand=problem.demand,
            weight=problem.weight,
            objective=problem.objective,
            active=servable(problem, found.kappa_upper),
        )
        return sure, found.value_upper

    @property
    def gap(self) -> float:
        """Γ: no allocation is better than the recommended one by more, if the bounds hold."""
        return max(self.value[1] - self.value[0], 0.0)

    @cached_property
    def focus(self) -> Assessment:
        """The bounds that the next cell is to tighten: those at face value first."""
        if not self.observed.noisy or self.at_face.gap <= self.tolerance:
            return self.assessment
        return self.at_face if self._free(self.at_face).any() else self.assessment

    @cached_property
    def free(self) -> Bool[np.ndarray, " N"]:
        """Cells that may be measured and do not lie above a level that surely breaks.

        Those not measured yet, and noisy ones with runs left in columns that an allocation uses.
        """
        if self.observed.noisy:
            return self._free(self.focus)
        return self._unknown & self._below(self.belief.breaks(self.observed))

    @cached_property
    def _left(self) -> Int[np.ndarray, " N"]:
        """Runs that each cell has left."""
        problem = self.belief.problem
        return self.most_runs - np.bincount(self.told.cell, minlength=problem.exists.size)

    @property
    def _unknown(self) -> Bool[np.ndarray, " N"]:
        return ~(self.observed.measured | self.observed.broken)

    def _below(self, broken: Bool[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
        """Cells below the first of their column that is broken."""
        columns = broken.reshape(self.belief.problem.exists.shape)
        return self.belief.exists & ~np.maximum.accumulate(columns, axis=2).ravel()

    def _free(self, found: Assessment) -> Bool[np.ndarray, " N"]:
        observed = self.observed
        over = found.mean[:, 1:] > found.width[:, 1:]
        broken = observed.measured & (over & self.belief.limited).any(axis=1)
        below = self._below(self.belief.breaks(observed) | broken)
        return (self._unknown | self._repeatable(found)) & below

    def _repeatable(self, found: Assessment) -> Bool[np.ndarray, " N"]:
        observed = self.observed
        again = self._left > 0
        if found is not self.assessment:
            open_ = np.abs(found.mean[:, 1:]) <= found.width[:, 1:]
            again &= (open_ & self.belief.limited).any(axis=1)
        problem = self.belief.problem
        columns = used(problem, found.kappa_lower, found.kappa_upper)
        here = np.repeat(columns.ravel(), problem.exists.shape[2])
        return observed.measured & again & here & ~observed.exact.all(axis=1)

    def pick(
        self,
        policy: Policy,
        shuffle: Float[np.ndarray, " N"],
        *,
        pending: tuple[int, ...] = (),
        allowed: Bool[np.ndarray, " N"] | None = None,
        launch: Float[np.ndarray, " N"] | None = None,
        patient: bool = False,
    ) -> Pick | None:
        """The cell that `policy` chooses, ties by the largest `shuffle`; None when none is free.

        `patient`: also None when the policy would rather wait for the pending cells.
        `launch` is the cost of a cell on top of measuring it, 0 by default.
        """
        free = self.free.copy() if allowed is None else self.free & allowed
        free[list(pending)] = False
        if not free.any():
            return None
        choice = self.weigh(policy, free, pending, launch)
        if patient and pending and choice.wait:
            return None
        return best(choice, free, shuffle)

    def weigh(
        self,
        policy: Policy,
        free: Bool[np.ndarray, " N"],
        pending: tuple[int, ...] = (),
        launch: Float[np.ndarray, " N"] | None = None,
    ) -> Choice:
        """The scores that `policy` gives to the cells in `free`."""
        situation = Situation(
            self.belief,
            self.observed,
            lambda: (self.focus, self.hypothesis),
            pending,
            free,
            np.zeros(free.size) if launch is None else launch,
            self._left if self.observed.noisy and self.focus is not self.assessment else None,
        )
        return policy(situation)

    @cached_property
    def _on_all(self) -> tuple[Assessment, Hypothesis]:
        fitted = self._fitted(len(self.order))
        return self.belief.assess(self.observed, fitted), fitted

    @cached_property
    def _now(self) -> tuple[Assessment, Hypothesis]:
        last = _last_fit(len(self.order))
        if last == len(self.order):
            return self._on_all
        scheduled = self._fitted(last)
        found = self.belief.assess(self.observed, scheduled)
        return self._on_all if self._passes(found, scheduled) else (found, scheduled)

    def _passes(self, found: Assessment, hypothesis: Hypothesis) -> bool:
        if found.gap <= self.tolerance or self.stop == "gap":
            return found.gap <= self.tolerance
        # One look may pass by a lucky draw of cells; before the last outcome it has to hold, too.
        return self._loses_little(found, hypothesis) and self._before._loses_little(
            *self._before._on_all
        )

    def _loses_little(self, found: Assessment, hypothesis: Hypothesis) -> bool:
        if found.value_lower <= self.tolerance:
            return False
        problem = self.belief.problem
        active = servable(problem, found.kappa_upper)
        replicas = best_allocation(problem, found.kappa_lower, active).replicas
        return loses_little(self.belief, self.observed, hypothesis, replicas, self.tolerance)

    @cached_property
    def _before(self) -> "Search":
        return replace(self, told=self.told.first(len(self.order) - 1), fits={}, best={})

    def _fitted(self, count: int) -> Hypothesis:
        best = self.best.get(self.order[:count])
        return self._kept(self.fits, count, lambda seen: self.belief.learn(seen, best))

    def _best(self, count: int) -> Hypothesis:
        return self._kept(self.best, count, self.belief.fit)

    def _kept(
        self,
        fits: dict[tuple[int, ...], Hypothesis],
        count: int,
        learn: Callable[[Observations], Hypothesis],
    ) -> Hypothesis:
        key = self.order[:count]
        if key not in fits:
            scheduled = self.order[: _last_fit(len(self.order))]
            for old in [other for other in fits if other != scheduled]:
                del fits[old]
            fits[key] = learn(self._first(count))
        return fits[key]

    def _first(self, count: int) -> Observations:
        if count == len(self.order):
            return self.observed
        return self._observed(self.told.first(count))

    def _observed(self, told: Runs) -> Observations:
        return Observations.of(self.belief.problem, told, varies=self.most_runs > 1)


def best(choice: Choice, free: Bool[np.ndarray, " N"], shuffle: Float[np.ndarray, " N"]) -> Pick:
    """The free cell with the highest score, ties by the largest `shuffle`; one must be free."""
    score = np.where(free, np.nan_to_num(choice.score), -np.inf)
    tied = np.flatnonzero(score >= score.max() - 1e-9 * abs(score.max()))
    index = int(tied[np.argmax(shuffle[tied])])
    return Pick(index, float(choice.gap_reduction[index]), float(score[index]))


def _last_fit(count: int) -> int:
    """The largest scheduled count of observations that is not above `count`."""
    if count <= _EACH:
        return count
    scheduled = float(_EACH)
    while np.ceil(scheduled * _GROWTH) <= count:
        scheduled = np.ceil(scheduled * _GROWTH)
    return int(scheduled)
