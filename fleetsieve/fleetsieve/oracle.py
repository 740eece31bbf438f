"""The truth of a replayed problem: best value, regret and violations of any allocation."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from fleetsieve.allocation import Allocation, value_of
from fleetsieve.choice import best_allocation, servable
from fleetsieve.observations import Observations
from fleetsieve.problem import ABSENT, MEASURED, Problem, Truth
from fleetsieve.recommendation import feasible_prefix
from fleetsieve.runs import Runs


@dataclass(frozen=True)
class Oracle:
    """What exhaustive measuring would decide.

    Attributes:
        holds: cells that meet every SLO in truth; one that was not measured is not met.
        metrics: latencies in seconds, NaN where not measured.
        kappa: true capacities, requests/s.
        active: workloads that some config can truly serve.
        best: the allocation that they lead to.
    """

    problem: Problem
    holds: Bool[np.ndarray, "W C L"]
    metrics: Float[np.ndarray, "W C L M"]
    kappa: Float[np.ndarray, "W C"]
    active: Bool[np.ndarray, " W"]
    best: Allocation

    @classmethod
    def of(cls, problem: Problem, truth: Truth) -> "Oracle":
        """The oracle of `problem` with `truth` known for all cells."""
        told = Runs.of_truth(truth, np.flatnonzero(truth.status.ravel() != ABSENT))
        observed = Observations.of(problem, told)
        holds = holding(problem, truth)
        kappa = feasible_prefix(problem, observed.value[None], ~holds.ravel())[0]
        active = servable(problem, kappa)
        best = best_allocation(problem, kappa, active)
        return cls(problem, holds, truth.values[..., 1:], kappa, active, best)

    def value(self, replicas: Int[np.ndarray, "W C"]) -> float:
        """V(n; κ) at the truth."""
        problem = self.problem
        return value_of(
            replicas,
            self.kappa,
            demand=problem.demand,
            weight=problem.weight,
            objective=problem.objective,
            active=self.active,
        )

    def regret(self, replicas: Int[np.ndarray, "W C"]) -> float:
        """What an allocation loses against the best one."""
        return max(self.best.value - self.value(replicas), 0.0)

    def violations(self, replicas: Int[np.ndarray, "W C"], level: Int[np.ndarray, "W C"]) -> int:
        """Allocated columns of which a level at or below the given one breaks an SLO."""
        holds = np.logical_and.accumulate(self.holds, axis=-1)
        reached = np.take_along_axis(holds, level[..., None], axis=-1)[..., 0]
        return int(((replicas > 0) & ~reached).sum())

    def excess(self, replicas: Int[np.ndarray, "W C"], level: Int[np.ndarray, "W C"]) -> float:
        """By which share the worst allocated column is over an SLO at or below the given level.

        0 where none is, inf where one fails.
        """
        problem = self.problem
        with np.errstate(invalid="ignore"):
            over = (self.metrics / problem.limit[:, None, None, :]).max(axis=-1) - 1
        over = np.where(self.holds, 0.0, np.where(over > 0, over, np.inf))
        worst = np.maximum.accumulate(over, axis=-1)
        given = np.take_along_axis(worst, level[..., None], axis=-1)[..., 0]
        return float(given[replicas > 0].max(initial=0.0))


def holding(problem: Problem, truth: Truth) -> Bool[np.ndarray, "W C L"]:
    """Cells that were measured, kept up with their load and met every SLO."""
    limit = problem.limit[:, None, None, :]
    with np.errstate(invalid="ignore"):
        within = ((truth.values[..., 1:] <= limit) | np.isinf(limit)).all(axis=-1)
    kept_up = (truth.status == MEASURED) & ~truth.saturated & ~(truth.values[..., 0] == 0)
    return within & problem.exists & kept_up
