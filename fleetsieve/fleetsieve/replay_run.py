"""One policy on one order of a replayed grid."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from fleetsieve.belief import Belief
from fleetsieve.choice import best_allocation, servable
from fleetsieve.columns import PLANS
from fleetsieve.oracle import Oracle
from fleetsieve.policies import POLICIES
from fleetsieve.problem import Problem, Truth
from fleetsieve.recommendation import kappa_level
from fleetsieve.search import Search


@dataclass(frozen=True)
class Case:
    """What is replayed, the same for every policy and order."""

    belief: Belief
    truth: Truth
    oracle: Oracle
    tolerance: float

    @property
    def problem(self) -> Problem:
        """The problem of the fleet."""
        return self.belief.problem


@dataclass(frozen=True)
class Run:
    """What a policy did on an order; costs in GPU-seconds, None for what never happened."""

    order: int
    gpu_seconds_to_oracle: float | None
    gpu_seconds_to_certificate: float | None
    measurements: int
    certified: bool
    valid: bool | None
    regret: float
    violations: int
    allocation: list[dict[str, Any]]


@dataclass
class _Ledger:
    """Costs so far, and since when the recommended allocation has been good enough."""

    case: Case
    spent: float = 0.0
    measurements: int = 0
    since: float | None = None

    def pay(self, index: tuple) -> None:
        self.spent += float(self.case.problem.gpu_seconds[index])
        self.measurements += 1

    def recommend(self, replicas: Int[np.ndarray, "W C"]) -> None:
        good = self.case.oracle.regret(replicas) <= self.case.tolerance + 1e-9
        self.since = (self.spent if self.since is None else self.since) if good else None

    def close(
        self,
        order: int,
        certified: bool,
        replicas: Int[np.ndarray, "W C"],
        level: Int[np.ndarray, "W C"],
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


def run(case: Case, policy: str, order: int, seed: int) -> Run:
    """Replay `policy`; `order` and `seed` decide its draws and tie-breaks."""
    rng = np.random.default_rng([seed, order])
    if policy in PLANS:
        return _without_model(case, policy, order, rng)
    return _with_model(case, policy, order, rng)


def _with_model(case: Case, policy: str, order: int, rng: np.random.Generator) -> Run:
    problem, ledger = case.problem, _Ledger(case)
    shuffle = rng.random(problem.exists.size)
    search = Search.start(case.belief, case.tolerance)
    while True:
        found = search.assessment
        active = servable(problem, found.kappa_upper)
        replicas = best_allocation(problem, found.kappa_lower, active).replicas
        ledger.recommend(replicas)
        stopped = search.certified or search.infeasible
        pick = None if stopped else search.pick(POLICIES[policy], shuffle)
        if pick is None:
            level = kappa_level(search)
            return ledger.close(order, search.certified, replicas, level)
        ledger.pay(np.unravel_index(pick.index, problem.exists.shape))
        search = search.after(pick.index, case.truth)


def _without_model(case: Case, policy: str, order: int, rng: np.random.Generator) -> Run:
    problem, ledger = case.problem, _Ledger(case)
    measured = np.zeros(problem.exists.shape, bool)
    plan = PLANS[policy](problem, rng)
    index = next(plan, None)
    while True:
        kappa, level = _by_hand(case, measured, contiguous=policy == "exhaustive")
        replicas = best_allocation(problem, kappa, servable(problem, kappa)).replicas
        ledger.recommend(replicas)
        if index is None:
            return ledger.close(order, True, replicas, level)
        ledger.pay(index)
        measured[index] = True
        try:
            index = plan.send(bool(case.oracle.holds[index]))
        except StopIteration:
            index = None


def _by_hand(
    case: Case, measured: Bool[np.ndarray, "W C L"], *, contiguous: bool
) -> tuple[Float[np.ndarray, "W C"], Int[np.ndarray, "W C"]]:
    """Capacities and levels from measured cells that hold, below the first that broke.

    `contiguous`: every level below must have been measured; else it is taken to hold.
    """
    holds = measured & case.oracle.holds
    reached = np.logical_and.accumulate(holds if contiguous else ~measured | holds, axis=-1)
    throughput = np.where(reached & holds, np.nan_to_num(case.truth.values[..., 0]), 0.0)
    return throughput.max(axis=-1), throughput.argmax(axis=-1)
