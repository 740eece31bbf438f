"""What each of a range of GPU budgets could give, from the same measurements."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from fleetsieve.allocation import EQUAL, Allocation
from fleetsieve.choice import best_allocation, servable
from fleetsieve.errors import InputError
from fleetsieve.events import Event
from fleetsieve.inputs import Inputs
from fleetsieve.problem import Problem
from fleetsieve.sieve import Sieve
from fleetsieve.what_if import changed

SCHEMA = "fleetsieve.sweep/1"


def sweep(inputs: Inputs, budgets: Sequence[int], events: Sequence[Event], seed: int) -> Any:
    """The value, and who gets what, for each number of GPUs, ascending; as JSON.

    What a replica can do does not depend on how many there are, so all budgets share the bounds of
    the largest one. `smallest` is the first budget at which every demand is served for certain.
    """
    widest = inputs.of(changed(inputs.fleet, gpus=max(budgets)))
    sieve = Sieve(widest.fleet, grid=widest.grid, seed=seed, events=events)
    seen = sieve.search.fresh
    tolerance = inputs.fleet.decision.tolerance
    points = [
        _point(replace(widest.problem, gpus=gpus), seen.kappa_lower, seen.kappa_upper, tolerance)
        for gpus in budgets
    ]
    serving = (point["gpus"] for point in points if point.get("serves_all"))
    return {
        "schema": SCHEMA,
        "objective": widest.problem.objective,
        "tolerance": tolerance,
        "budgets": points,
        "smallest": next(serving, None),
    }


def _point(
    problem: Problem,
    lower: Float[np.ndarray, "W C"],
    upper: Float[np.ndarray, "W C"],
    tolerance: float,
) -> dict[str, Any]:
    """The decision within the GPUs of `problem`; configs that do not fit have no capacity."""
    fits = problem.sizes <= problem.gpus
    active = servable(problem, np.where(fits, upper, 0.0))
    try:
        sure, hoped = (
            best_allocation(problem, np.where(fits, kappa, 0.0), active) for kappa in (lower, upper)
        )
    except InputError as error:
        return {"gpus": problem.gpus, "error": str(error)}
    gap = max(hoped.value - sure.value, 0.0)
    asked = problem.demand > 0
    return {
        "gpus": problem.gpus,
        "gpus_used": sure.gpus_used,
        "gap": gap,
        "certified": gap <= tolerance < hoped.value,
        "value": {"conservative": sure.value, "optimistic": max(sure.value, hoped.value)},
        "allocation": _rows(problem, sure),
        "infeasible": [problem.workloads[w] for w in np.flatnonzero(asked & ~active)],
        "serves_all": bool((sure.fulfillment[asked] >= 1 - EQUAL).all()),
    }


def _rows(problem: Problem, allocation: Allocation) -> list[dict[str, Any]]:
    return [
        {
            "workload": problem.workloads[w],
            "config": problem.configs[c],
            "replicas": int(allocation.replicas[w, c]),
            "gpus": int(allocation.replicas[w, c] * problem.sizes[c]),
        }
        for w, c in np.argwhere(allocation.replicas > 0)
    ]
