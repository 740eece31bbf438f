"""What the model believes of each workload on each config, in requests/s and seconds."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from fleetsieve.decision import Decision
from fleetsieve.observations import sharpen, units
from fleetsieve.problem import ABSENT
from fleetsieve.report.findings import Benchmark, Bound, Column, Level
from fleetsieve.search import Search

# Further out than this, in logarithms, nothing is known.
_FAR = 30.0


def columns(search: Search, decision: Decision, benchmarks: Sequence[Benchmark]) -> list[Column]:
    """All columns of the problem, by workload and config."""
    problem, found = search.belief.problem, search.assessment
    parts = _in_units(search)
    stated = _stated(search)
    measured = search.truth.status != ABSENT
    replicas = {(row.workload, row.config): row.replicas for row in decision.allocation}
    own = _by_column(benchmarks)
    made = []
    for w, workload in enumerate(problem.workloads):
        limits = dict(zip(problem.outputs[1:], problem.limit[w].tolist(), strict=True))
        for c, config in enumerate(problem.configs):
            levels = [
                Level(
                    load=float(problem.load[w, c, at]),
                    measured=bool(measured[w, c, at]),
                    bounds=_bounds(problem.outputs, parts[:, w, c, at], stated[w, c, at]),
                )
                for at in np.flatnonzero(problem.exists[w, c])
            ]
            lower, upper = float(found.kappa_lower[w, c]), float(found.kappa_upper[w, c])
            made.append(
                Column(
                    workload=workload,
                    config=config,
                    kind=problem.kind[w],
                    replicas=replicas.get((workload, config), 0),
                    capacity=(lower, max(lower, upper)),
                    limits={name: value for name, value in limits.items() if np.isfinite(value)},
                    levels=levels,
                    benchmarks=own.get((workload, config), []),
                )
            )
    return made


def _by_column(benchmarks: Sequence[Benchmark]) -> dict[tuple[str, str], list[Benchmark]]:
    found: dict[tuple[str, str], list[Benchmark]] = {}
    for one in benchmarks:
        if one.asked:
            found.setdefault((one.cell.workload, one.cell.config), []).append(one)
    return found


def _in_units(search: Search) -> Float[np.ndarray, "3 W C L P"]:
    """Lower bounds, means and upper bounds."""
    problem, found = search.belief.problem, search.assessment
    ends = np.stack([found.mean - found.width, found.mean, found.mean + found.width])
    logs = np.concatenate([ends[..., :1], sharpen(ends[..., 1:])], axis=-1)
    values = np.exp(np.clip(logs, -_FAR, _FAR)) * units(problem)
    return values.reshape(3, *problem.exists.shape, len(problem.outputs))


def _stated(search: Search) -> Bool[np.ndarray, "W C L P"]:
    """Outputs with bounds: throughput and what has an SLO, below a break."""
    problem, found = search.belief.problem, search.assessment
    shape = problem.exists.shape
    broken = search.belief.breaks(search.observed).reshape(shape)
    below = problem.exists & ~np.logical_or.accumulate(broken, axis=2)
    limited = np.isfinite(problem.limit)
    matters = np.concatenate([np.ones((len(limited), 1), bool), limited], axis=1)
    sound = np.isfinite(found.mean) & (found.width < _FAR)
    return below[..., None] & matters[:, None, None] & sound.reshape(*shape, len(problem.outputs))


def _bounds(
    outputs: Sequence[str], ends: Float[np.ndarray, "3 P"], stated: Bool[np.ndarray, " P"]
) -> dict[str, Bound]:
    return {
        name: Bound(*ends[:, p].tolist()) for p, name in enumerate(outputs) if stated[p]
    }  # fmt: skip
