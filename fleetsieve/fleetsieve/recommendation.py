"""From what a search knows to a decision in words and numbers."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from fleetsieve.allocation import value_of
from fleetsieve.belief import Assessment
from fleetsieve.choice import best_allocation, servable
from fleetsieve.decision import (
    Alternative,
    Assignment,
    Capacity,
    CellName,
    Decision,
    Miss,
    Next,
    Range,
    RunnerUp,
    Unmeasured,
    UnmeasuredColumn,
    WorkloadOutcome,
)
from fleetsieve.observations import throughput_scale
from fleetsieve.problem import ABSENT, MEASURED, Problem
from fleetsieve.proposal import Proposal
from fleetsieve.search import Search

_DRAWS, _SEED = 256, 0


def recommend(
    search: Search,
    *,
    stop_reason: str | None,
    gpu_seconds: float,
    measurements: int,
    proposals: Sequence[Proposal] = (),
) -> Decision:
    """The decision that the observations of `search` support.

    Raises:
        InputError: the fewest replicas of all workloads need more GPUs than there are.
    """
    belief, found = search.belief, search.assessment
    problem = belief.problem
    active = servable(problem, found.kappa_upper)
    chosen = search.recommended
    kappas = _capacity_draws(search, chosen.replicas)
    values = [_value(problem, chosen.replicas, kappa, active) for kappa in kappas]
    sure = search.value[0]
    return Decision(
        objective=problem.objective,
        gap=search.gap,
        tolerance=search.tolerance,
        confidence=belief.confidence,
        certified=search.certified,
        stop_reason=stop_reason,
        measurements=measurements,
        gpu_seconds=gpu_seconds,
        gpus=problem.gpus,
        gpus_used=chosen.gpus_used,
        value=Range(sure, max(float(np.mean(values)), sure), max(found.value_upper, sure)),
        workloads=_workloads(search, chosen.replicas, kappas, active),
        allocation=_assignments(search, chosen.replicas, kappas),
        within_noise=within_noise(search) if stop_reason == "within_noise" else [],
        next=[_next(proposal) for proposal in proposals],
        runner_up=_runner_up(search, chosen.replicas, active),
        unmeasured=_unmeasured(search, active),
        infeasible=_misses(search, active),
        non_monotone=_non_monotone(search),
        unusable=problem.unusable,
        notes=tuple(filter(None, (search.hypothesis.warning, _at_face(search)))),
    )


def feasible_prefix(
    problem: Problem,
    value: Float[np.ndarray, "S n P"],
    broken: Bool[np.ndarray, " n"],
    columns: tuple[np.ndarray, ...] = (),
) -> Float[np.ndarray, "S *k"]:
    """κ of METHOD 1 for log outputs `value` relative to `observations.units`.

    Of all columns, [S, W, C], or of some, (w, c), of which `value` and `broken` have the cells.
    """
    exists = problem.exists[columns or ...]
    scale = throughput_scale(problem).reshape(problem.exists.shape)[columns or ...]
    limited = np.isfinite(problem.limit)[:, None, None, :]
    limited = np.broadcast_to(limited, (*problem.exists.shape[:2], *limited.shape[2:]))
    levels = value.reshape(len(value), *exists.shape, value.shape[-1])
    holds = ((levels[..., 1:] <= 0) | ~limited[columns or ...]).all(axis=-1)
    holds &= exists & ~broken.reshape(exists.shape)
    reached = np.logical_and.accumulate(holds, axis=-1)
    throughput = np.exp(np.minimum(levels[..., 0], 100.0)) * scale
    return np.where(reached, throughput, 0.0).max(axis=-1, initial=0.0)


def _capacity_draws(search: Search, replicas: Int[np.ndarray, "W C"]) -> Float[np.ndarray, "S W C"]:
    """Capacities under joint posterior draws, within their bounds; of allocated columns alone."""
    belief, found = search.belief, search.assessment
    shape, columns = belief.problem.exists.shape, np.nonzero(replicas)
    at = np.arange(belief.exists.size).reshape(shape)[columns].ravel()
    drawn = belief.draws(search.observed, search.hypothesis, at, _DRAWS, _SEED)
    prefix = feasible_prefix(belief.problem, drawn, search.observed.broken[at], columns)
    lower, upper = found.kappa_lower[columns], found.kappa_upper[columns]
    kappas = np.zeros((_DRAWS, *shape[:2]))
    kappas[:, *columns] = np.clip(prefix, lower, np.maximum(upper, lower))
    return kappas


def _value(
    problem: Problem,
    replicas: Int[np.ndarray, "W C"],
    kappa: Float[np.ndarray, "W C"],
    active: Bool[np.ndarray, " W"],
) -> float:
    return value_of(
        replicas,
        kappa,
        demand=problem.demand,
        weight=problem.weight,
        objective=problem.objective,
        active=active,
    )


def _workloads(
    search: Search,
    replicas: Int[np.ndarray, "W C"],
    kappas: Float[np.ndarray, "S W C"],
    active: Bool[np.ndarray, " W"],
) -> list[WorkloadOutcome]:
    problem, found = search.belief.problem, search.assessment
    demand = problem.demand
    ends = np.stack([found.kappa_lower, found.kappa_upper])
    served = np.minimum((replicas * ends).sum(axis=-1), demand)
    mean = np.minimum((replicas * kappas).sum(axis=-1), demand).mean(axis=0)
    share = np.where(demand > 0, 1 / np.where(demand > 0, demand, 1.0), 0.0)
    return [
        WorkloadOutcome(
            name=name,
            demand=float(demand[w]),
            feasible=bool(active[w] or demand[w] == 0),
            fulfillment=_fulfillment(served[:, w], mean[w], float(share[w])),
            served=Range(float(served[0, w]), float(mean[w]), float(served[1, w])),
        )
        for w, name in enumerate(problem.workloads)
    ]


def _fulfillment(served: Float[np.ndarray, "2"], mean: float, share: float) -> Range:
    if share == 0:  # nothing is asked for
        return Range(1.0, 1.0, 1.0)
    return Range(float(served[0]) * share, float(mean) * share, float(served[1]) * share)


def _assignments(
    search: Search, replicas: Int[np.ndarray, "W C"], kappas: Float[np.ndarray, "S W C"]
) -> list[Assignment]:
    problem, found, levels = search.belief.problem, search.assessment, kappa_level(search)
    rows = []
    for w, c in np.argwhere(replicas > 0):
        level = int(levels[w, c])
        count = int(replicas[w, c])
        capacity = Capacity(
            float(found.kappa_lower[w, c]),
            float(kappas[:, w, c].mean()),
            float(max(found.kappa_upper[w, c], found.kappa_lower[w, c])),
        )
        rows.append(
            Assignment(
                workload=problem.workloads[w],
                config=problem.configs[c],
                replicas=count,
                gpus=count * int(problem.sizes[c]),
                load=float(problem.load[w, c, level]),
                measured=bool(search.truth.status[w, c, level] == MEASURED),
                capacity=capacity,
            )
        )
    return rows


def kappa_level(search: Search) -> Int[np.ndarray, "W C"]:
    """The level that each κ^L rests on, a measured one where there is one; 0 where κ^L is 0."""
    return level_of(search, search.basis)


def level_of(search: Search, found: Assessment) -> Int[np.ndarray, "W C"]:
    """As `kappa_level`, for other bounds on the same observations."""
    problem = search.belief.problem
    bound = np.minimum(found.mean[:, 0] - found.width[:, 0], 100.0)
    lower = np.exp(bound) * throughput_scale(problem)
    columns = lower.reshape(problem.exists.shape)
    rests = problem.exists & np.isclose(columns, found.kappa_lower[..., None], rtol=1e-9)
    measured = search.truth.status == MEASURED
    return np.argmax(rests * (1 + measured), axis=-1)


def _runner_up(
    search: Search, replicas: Int[np.ndarray, "W C"], active: Bool[np.ndarray, " W"]
) -> RunnerUp | None:
    """The best allocation, by κ^L, that drops one of the recommended (workload, config) pairs."""
    problem, found = search.belief.problem, search.assessment
    best: tuple[float, float] | None = None
    rival = replicas
    for w, c in np.argwhere((replicas > 0) & (found.kappa_lower > 0)):
        without = found.kappa_lower.copy()
        without[w, c] = 0.0
        other = best_allocation(problem, without, active).replicas
        value = (
            _value(problem, other, found.kappa_lower, active),
            _value(problem, other, found.kappa_upper, active),
        )
        if best is None or value > best:
            best, rival = value, other
    if best is None or (rival == replicas).all() or not rival.any():
        return None
    rows = [
        Alternative(
            problem.workloads[w],
            problem.configs[c],
            int(rival[w, c]),
            int(rival[w, c] * problem.sizes[c]),
        )
        for w, c in np.argwhere(rival > 0)
    ]
    return RunnerUp({"conservative": best[0], "optimistic": best[1]}, rows)


def _unmeasured(search: Search, active: Bool[np.ndarray, " W"]) -> Unmeasured:
    problem, found = search.belief.problem, search.assessment
    absent = problem.exists & (search.truth.status == ABSENT)
    columns = np.argwhere(absent.any(axis=-1))
    raised = np.repeat(found.kappa_lower[None], len(columns), axis=0)
    for kappa, (w, c) in zip(raised, columns, strict=True):
        kappa[w, c] = max(found.kappa_upper[w, c], kappa[w, c])
    rows = [
        UnmeasuredColumn(
            problem.workloads[w],
            problem.configs[c],
            int(absent[w, c].sum()),
            float(found.kappa_upper[w, c]),
            max(float(value) - found.value_lower, 0.0),
        )
        for value, (w, c) in zip(search.belief.values(raised, active), columns, strict=True)
    ]
    rows.sort(key=lambda row: -row.could_add)
    return Unmeasured(int(absent.sum()), float(problem.gpu_seconds[absent].sum()), rows)


def _misses(search: Search, active: Bool[np.ndarray, " W"]) -> list[Miss]:
    problem = search.belief.problem
    hopeless = (problem.demand > 0) & ~active
    return [_miss(search, int(w)) for w in np.flatnonzero(hopeless)]


def _miss(search: Search, w: int) -> Miss:
    """The cell over an SLO that comes closest to all of them; without one, a cell that failed."""
    problem, truth = search.belief.problem, search.truth
    best: tuple[float, Miss] | None = None
    for c, level in np.argwhere(truth.status[w] == MEASURED):
        ratio = truth.values[w, c, level, 1:] / problem.limit[w]
        if not (ratio > 1).any():  # it failed to keep up, or holds above a level that breaks
            continue
        worst = int(np.nanargmax(ratio))
        miss = Miss(
            problem.workloads[w],
            problem.configs[c],
            float(problem.load[w, c, level]),
            problem.outputs[1 + worst],
            float(truth.values[w, c, level, 1 + worst]),
            float(problem.limit[w, worst]),
        )
        if best is None or ratio[worst] < best[0]:
            best = (float(ratio[worst]), miss)
    if best is not None:
        return best[1]
    if not problem.configs:
        return Miss(problem.workloads[w], None, None, None, None, None)
    told = truth.status[w] != ABSENT
    c, level = np.argwhere(told if told.any() else problem.exists[w])[0]
    load = float(problem.load[w, c, level])
    return Miss(problem.workloads[w], problem.configs[c], load, None, None, None)


def _non_monotone(search: Search) -> list[CellName]:
    """Measured levels that hold above a measured one that breaks."""
    problem, observed = search.belief.problem, search.observed
    broken = search.belief.breaks(observed).reshape(problem.exists.shape)
    before = np.logical_or.accumulate(broken, axis=-1).ravel()
    met = observed.seen[:, 1:] & (observed.value[:, 1:] <= 0) | ~search.belief.limited
    holds = observed.measured & ~observed.broken & met.all(axis=1) & before
    shape = problem.exists.shape
    return [_named(problem, *index) for index in np.argwhere(holds.reshape(shape))]


def _at_face(search: Search) -> str | None:
    """What the recommended allocation rests on where noise left no certificate."""
    if search.basis is search.assessment or search.at_face.gap >= search.gap:
        return None
    return (
        "cells within noise of their SLOs count as they were measured; if they are so, the "
        f"allocation loses at most {search.at_face.gap:.1%}"
    )


def within_noise(search: Search) -> list[CellName]:
    """Measured cells whose bounds on a noisy SLO metric straddle the SLO."""
    found, observed = search.assessment, search.observed
    open_ = (np.abs(found.mean[:, 1:]) <= found.width[:, 1:]) & (observed.noise[:, 1:] > 0)
    cells = observed.measured & (open_ & search.belief.limited).any(axis=1)
    shape = search.belief.problem.exists.shape
    return [_named(search.belief.problem, *i) for i in np.argwhere(cells.reshape(shape))]


def _named(problem: Problem, w: int, c: int, level: int) -> CellName:
    cell = problem.cell(int(w), int(c), int(level))
    return CellName(cell.workload, cell.config, cell.load)


def _next(proposal: Proposal) -> Next:
    return Next(
        proposal.cell.workload,
        proposal.cell.config,
        proposal.cell.load,
        proposal.gpu_seconds,
        proposal.expected_gap_reduction,
        proposal.score,
    )
