"""The exact allocation of a problem under given capacities."""

import numpy as np
from jaxtyping import Bool, Float

from fleetsieve.allocation import Allocation, allocate
from fleetsieve.errors import InputError
from fleetsieve.problem import Problem


def check(problem: Problem) -> None:
    """Refuse a problem that has no allocation at all.

    Raises:
        InputError: the fewest replicas need more GPUs than there are.
    """
    replicas, size = int(problem.min_replicas.sum()), int(problem.sizes.min(initial=problem.gpus))
    if replicas * size > problem.gpus:
        raise InputError(
            f"min_replicas ask for {replicas} replicas of at least {size} GPUs each, "
            f"{replicas * size} GPUs in all, and the fleet has {problem.gpus}; give more GPUs or "
            "fewer replicas"
        )


def servable(problem: Problem, kappa: Float[np.ndarray, "W C"]) -> Bool[np.ndarray, " W"]:
    """F: workloads with demand that some config may serve, by these capacities."""
    return (kappa.max(axis=1, initial=0.0) > 0) & (problem.demand > 0)


def used(
    problem: Problem, kappa_lower: Float[np.ndarray, "W C"], kappa_upper: Float[np.ndarray, "W C"]
) -> Bool[np.ndarray, "W C"]:
    """Columns with replicas in the conservative or the optimistic allocation."""
    active = servable(problem, kappa_upper)
    lower = best_allocation(problem, kappa_lower, active).replicas
    return (lower > 0) | (best_allocation(problem, kappa_upper, active).replicas > 0)


def best_allocation(
    problem: Problem, kappa: Float[np.ndarray, "W C"], active: Bool[np.ndarray, " W"]
) -> Allocation:
    """argmax V(n; κ) over the fleet's GPUs, ties by leximin, then served requests/s.

    Raises:
        InputError: the fewest replicas of all workloads need more GPUs than there are.
    """
    if not problem.configs:
        return Allocation(np.zeros(kappa.shape, int), 0, np.zeros(len(kappa)), 0.0)
    try:
        return allocate(
            kappa,
            demand=problem.demand,
            weight=problem.weight,
            sizes=problem.sizes.tolist(),
            gpus=problem.gpus,
            objective=problem.objective,
            active=active,
            min_replicas=problem.min_replicas,
            max_replicas=problem.max_replicas,
        )
    except ValueError as error:
        raise InputError(f"no allocation fits: {error}") from error
