"""What there is to measure, what all of it would cost, and where to begin."""

from typing import Any

from fleetsieve.inputs import Inputs
from fleetsieve.sieve import Sieve

SCHEMA = "fleetsieve.plan/1"
_PROPOSALS = 5


def plan(inputs: Inputs) -> dict[str, Any]:
    """The plan as JSON: cells per workload and config, costs, and the first proposals."""
    fleet, problem = inputs.fleet, inputs.problem
    count = min(problem.n_cells, max(_PROPOSALS, fleet.measure.parallel))
    return {
        "schema": SCHEMA,
        "cells": problem.n_cells,
        "gpu_seconds": inputs.exhaustive,
        "gpu_hours": inputs.exhaustive / 3600,
        "price": fleet.price(inputs.exhaustive),
        "notes": list(inputs.notes()),
        "workloads": [_of_workload(inputs, w) for w in range(len(problem.workloads))],
        "next": [
            {
                "workload": proposal.cell.workload,
                "config": proposal.cell.config,
                "load": proposal.cell.load,
                "gpu_seconds": proposal.gpu_seconds,
                "expected_gap_reduction": proposal.expected_gap_reduction,
                "score": proposal.score,
            }
            for proposal in Sieve(fleet, grid=inputs.grid).ask(count)
        ],
    }


def _of_workload(inputs: Inputs, w: int) -> dict[str, Any]:
    problem = inputs.problem
    return {
        "name": problem.workloads[w],
        "configs": [
            {
                "name": name,
                "loads": [float(x) for x in problem.load[w, c][problem.exists[w, c]]],
                "gpu_seconds": float(problem.gpu_seconds[w, c].sum()),
            }
            for c, name in enumerate(problem.configs)
        ],
    }
