"""One policy on one order of a replayed grid."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fleetsieve.belief import Assessment, Belief
from fleetsieve.choice import best_allocation, servable
from fleetsieve.clairvoyant import clairvoyant
from fleetsieve.columns import PLANS
from fleetsieve.observations import Observations
from fleetsieve.oracle import Oracle, holding
from fleetsieve.policies import BLIND, POLICIES, Choice, Policy
from fleetsieve.problem import ABSENT, MEASURED, Problem, Truth
from fleetsieve.pruned import prune
from fleetsieve.recommendation import level_of
from fleetsieve.runs import Runs
from fleetsieve.search import Search, best
from fleetsieve.tuner import bo, settled

# Steps that other orders may pass through again: this many bytes, some 100 per cell and output.
_MEMORY, _STEP = 2**27, 100


Reveal = Callable[[int, np.random.Generator], Runs]
"""A run of the cell at a flat index, as a benchmark would see it."""


@dataclass(frozen=True)
class Case:
    """What is replayed, the same for every policy and order.

    Attributes:
        noise: what a run shows instead of the truth; None: the truth.
        repeats: how often a cell may be measured under noise.
    """

    belief: Belief
    truth: Truth
    oracle: Oracle
    tolerance: float
    noise: Reveal | None = None
    repeats: int = 1
    stop: str = "gap"

    @property
    def problem(self) -> Problem:
        """The problem of the fleet."""
        return self.belief.problem

    def reveal(self, index: int, rng: np.random.Generator) -> Runs:
        """A run of the cell at the flat index."""
        if self.noise is not None:
            return self.noise(index, rng)
        return Runs.of_truth(self.truth, np.array([index]))


@dataclass(frozen=True)
class Run:
    """What a policy did on an order; costs in GPU-seconds, None for what never happened.

    Attributes:
        violations: allocated columns that break an SLO in truth at the load they were given.
        excess: by which share the worst of them is over its SLO; 0 where none is.
        covered: whether all bounds held at the end; None without a model.
        spent: GPU-seconds until the policy stopped.
    """

    order: int
    gpu_seconds_to_oracle: float | None
    gpu_seconds_to_certificate: float | None
    measurements: int
    certified: bool
    valid: bool | None
    regret: float
    violations: int
    allocation: list[dict[str, Any]]
    excess: float = 0.0
    covered: bool | None = None
    spent: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON form of a replay."""
        return {k: v for k, v in vars(self).items() if k not in ("excess", "covered", "spent")}


@dataclass
class _Ledger:
    """Costs so far, and what was recommended at each of them."""

    case: Case
    spent: float = 0.0
    measurements: int = 0
    recommended: list[tuple[float, Callable[[], Int[np.ndarray, "W C"]]]] = field(
        default_factory=list
    )

    def pay(self, index: tuple) -> None:
        self.spent += float(self.case.problem.gpu_seconds[index])
        self.measurements += 1

    def recommend(self, replicas: Callable[[], Int[np.ndarray, "W C"]]) -> None:
        """`replicas` are worked out only if they matter."""
        self.recommended.append((self.spent, replicas))

    @property
    def since(self) -> float | None:
        """When the recommended allocation became good enough to the end."""
        since = None
        for spent, replicas in reversed(self.recommended):
            if not self.case.oracle.regret(replicas()) <= self.case.tolerance + 1e-9:
                break
            since = spent
        return since

    def close(
        self,
        order: int,
        certified: bool,
        replicas: Int[np.ndarray, "W C"],
        level: Int[np.ndarray, "W C"],
        covered: bool | None,
    ) -> Run:
        problem, oracle = self.case.problem, self.case.oracle
        regret = oracle.regret(replicas)
        return Run(
            order=order,
            gpu_seconds_to_oracle=self.since,
            gpu_seconds_to_certificate=self.spent if certified else None,
            measurements=self.measurements,
            certified=certified,
            valid=regret <= self.case.tolerance + 1e-9 if certified else None,
            regret=regret,
            violations=oracle.violations(replicas, level),
            excess=oracle.excess(replicas, level),
            covered=covered,
            spent=self.spent,
            allocation=named(problem, replicas),
        )


def named(problem: Problem, replicas: Int[np.ndarray, "W C"]) -> list[dict[str, Any]]:
    """An allocation with the names of its columns."""
    return [
        {
            "workload": problem.workloads[w],
            "config": problem.configs[c],
            "replicas": int(replicas[w, c]),
        }
        for w, c in np.argwhere(replicas > 0)
    ]


@dataclass(frozen=True)
class _Step:
    """Where a policy stands once some cells were measured; the order has no part in it."""

    search: Search
    policy: Policy

    @cached_property
    def hidden(self) -> bool:
        """Whether nobody needs to know the bounds: not the policy, nor the stop rule."""
        return self.policy in BLIND and self.search.surely_open

    @cached_property
    def choice(self) -> Choice | None:
        """Scores of the cells that are free; None at the end."""
        search = self.search
        if not self.hidden and (search.certified or search.infeasible or search.within_noise):
            return None
        return search.weigh(self.policy, search.free) if search.free.any() else None


class Replayer:
    """Runs policies on orders of one case, and remembers the steps that orders have in common."""

    def __init__(self, case: Case) -> None:
        """Nothing is computed before the first run."""
        self._case = case
        self._policies = {**POLICIES, "bo": bo, "clairvoyant": clairvoyant(case.truth)}
        cells = case.problem.exists.size * len(case.problem.outputs)
        self._most = max(1, _MEMORY // (_STEP * max(cells, 1)))
        self._steps: OrderedDict[tuple[Policy, tuple[int, ...]], _Step] = OrderedDict()

    def run(self, policy: str, order: int, seed: int) -> Run:
        """Replay `policy`; `order` and `seed` decide its draws and tie-breaks."""
        rng = np.random.default_rng([seed, order])
        if policy in PLANS:
            return _without_model(self._case, policy, order, rng)
        if policy == "bo_alone":
            return self._alone(order, rng)
        if policy == "pruned":
            return self._pruned(order, rng)
        return self._with_model(policy, order, rng)[0]

    def _with_model(self, policy: str, order: int, rng: np.random.Generator) -> tuple[Run, Search]:
        case, ledger = self._case, _Ledger(self._case)
        shuffle = rng.random(case.problem.exists.size)
        step = self._kept(_Step(self._start, self._policies[policy]))
        seen: list[tuple[np.ndarray, np.ndarray] | None] = []

        def recommended(count: int) -> Int[np.ndarray, "W C"]:
            """By the first `count` outcomes; bounds that nobody looked at are made up for."""
            last, bounds = step.search, seen[count]
            if bounds is None:
                return replace(last, told=last.told.first(count)).recommended.replicas
            lower, upper = bounds
            return best_allocation(case.problem, lower, servable(case.problem, upper)).replicas

        while True:
            search = step.search
            ledger.recommend(partial(recommended, len(seen)))
            seen.append(None if step.hidden else _columns(search.basis))
            if step.choice is None:
                return _close(ledger, order, search), search
            pick = best(step.choice, search.free, shuffle)
            ledger.pay(np.unravel_index(pick.index, case.problem.exists.shape))
            step = self._kept(_Step(search.after(case.reveal(pick.index, rng)), step.policy))

    @property
    def _start(self) -> Search:
        case = self._case
        return Search.start(case.belief, case.tolerance, case.repeats, case.stop)

    def _pruned(self, order: int, rng: np.random.Generator) -> Run:
        """The cells of a certificate of `sieve` less those that it does without.

        A set and no sequence: its cost is that of the oracle's decision too, if it decides so.
        """
        run, found = self._with_model("sieve", order, rng)
        if not run.certified:
            return run
        ledger = _Ledger(self._case)
        found = prune(self._start, found.told)
        for index in found.order:
            ledger.pay(np.unravel_index(index, self._case.problem.exists.shape))
        problem, seen = self._case.problem, found.fresh
        chosen = best_allocation(problem, seen.kappa_lower, servable(problem, seen.kappa_upper))
        ledger.recommend(lambda: chosen.replicas)
        levels, covered = level_of(found, seen), _covered(self._case, found, seen)
        return ledger.close(order, True, chosen.replicas, levels, covered)

    def _alone(self, order: int, rng: np.random.Generator) -> Run:
        """`bo` until no workload promises more, decided by what was measured."""
        case, ledger, search = self._case, _Ledger(self._case), self._start
        problem, cost = case.problem, case.problem.gpu_seconds.ravel()
        shuffle = rng.random(problem.exists.size)
        while True:
            kappa, level = _by_hand(problem, search.truth, contiguous=False)
            replicas = partial(_best_by, problem, kappa)
            ledger.recommend(replicas)
            choice = search.weigh(bo, search.free)
            if not search.free.any() or settled(choice, cost):
                return ledger.close(order, True, replicas(), level, None)
            pick = best(choice, search.free, shuffle)
            ledger.pay(np.unravel_index(pick.index, problem.exists.shape))
            search = search.after(case.reveal(pick.index, rng))

    def _kept(self, step: _Step) -> _Step:
        """The step that an earlier order computed, if it is still there and nothing is random."""
        if self._case.noise is not None:
            return step
        key = (step.policy, step.search.order)
        known = self._steps.setdefault(key, step)
        self._steps.move_to_end(key)
        if len(self._steps) > self._most:
            self._steps.popitem(last=False)
        return known


def _columns(found: Assessment) -> tuple[np.ndarray, np.ndarray]:
    return found.kappa_lower, found.kappa_upper


def _close(ledger: _Ledger, order: int, search: Search) -> Run:
    covered = _covered(ledger.case, search, search.assessment)
    levels = level_of(search, search.basis)
    return ledger.close(order, search.certified, search.recommended.replicas, levels, covered)


def _without_model(case: Case, policy: str, order: int, rng: np.random.Generator) -> Run:
    problem, ledger = case.problem, _Ledger(case)
    told, shape = Runs.of(problem, ()), problem.exists.shape
    plan = PLANS[policy](problem, rng)
    index = next(plan, None)
    while True:
        known = told.truth(problem)
        kappa, level = _by_hand(problem, known, contiguous=policy == "exhaustive")
        replicas = partial(_best_by, problem, kappa)
        ledger.recommend(replicas)
        if index is None:
            return ledger.close(order, True, replicas(), level, None)
        for _ in range(case.repeats):
            ledger.pay(index)
            told = told.then(case.reveal(int(np.ravel_multi_index(index, shape)), rng))
        try:
            index = plan.send(bool(holding(problem, told.truth(problem))[index]))
        except StopIteration:
            index = None


def _covered(case: Case, search: Search, found: Assessment) -> bool:
    """Whether the truth is within all bounds that are stated, and within those of capacity."""
    belief, kappa = case.belief, case.oracle.kappa
    exact = Runs.of_truth(case.truth, np.flatnonzero(case.truth.status.ravel() == MEASURED))
    truth = Observations.of(case.problem, exact)
    stated = belief.stated(search.observed) & truth.modelled
    within = np.abs(truth.value - found.mean) <= found.width + 1e-9
    slack = 1e-9 * (1 + kappa)
    return bool((within | ~stated).all() and _between(found, kappa, slack))


def _between(found: Assessment, kappa: np.ndarray, slack: np.ndarray) -> bool:
    low, high = found.kappa_lower - slack, found.kappa_upper + slack
    return bool(((low <= kappa) & (kappa <= high)).all())


def _best_by(problem: Problem, kappa: Float[np.ndarray, "W C"]) -> Int[np.ndarray, "W C"]:
    return best_allocation(problem, kappa, servable(problem, kappa)).replicas


def _by_hand(
    problem: Problem, known: Truth, *, contiguous: bool
) -> tuple[Float[np.ndarray, "W C"], Int[np.ndarray, "W C"]]:
    """Capacities and levels from measured cells that hold, below the first that broke.

    `contiguous`: every level below must have been measured; else it is taken to hold.
    """
    holds, open_ = holding(problem, known), known.status == ABSENT
    reached = np.logical_and.accumulate(holds if contiguous else open_ | holds, axis=-1)
    throughput = np.where(reached & holds, np.nan_to_num(known.values[..., 0]), 0.0)
    return throughput.max(axis=-1), throughput.argmax(axis=-1)
