"""The outcomes of a journal, one by one, as a reader wants to know them."""

from collections.abc import Collection, Mapping, Sequence

from fleetsieve.cell import Cell
from fleetsieve.events import Event, Told
from fleetsieve.fleet import Fleet
from fleetsieve.report.findings import Benchmark, State
from fleetsieve.show import number
from fleetsieve_measure import Failed, Measured, Outcome

Limits = Mapping[str, Mapping[str, float]]
"""The SLOs of each workload."""


def benchmarks(events: Sequence[Event], fleet: Fleet, asked: Collection[Cell]) -> list[Benchmark]:
    """What was measured, oldest first; `asked` are the cells of the fleet."""
    limits = {workload.name: workload.slo for workload in fleet.workloads}
    sizes = {config.name: config.gpus for config in fleet.configs}
    asked, seen, found = set(asked), set(), []
    for event in events:
        if isinstance(event, Told):
            cell, outcome = event.cell, event.outcome
            state, why = _judged(outcome, limits.get(cell.workload, {}))
            found.append(
                Benchmark(
                    number=len(found) + 1,
                    cell=cell,
                    again=cell in seen,
                    state=state,
                    values=outcome.values if isinstance(outcome, Measured) else {},
                    why=why,
                    gpu_seconds=outcome.gpu_seconds,
                    launch=_launch(outcome, sizes.get(cell.config, 0)),
                    asked=cell in asked,
                )
            )
            seen.add(cell)
    return found


def _judged(outcome: Outcome, limits: Mapping[str, float]) -> tuple[State, str]:
    if isinstance(outcome, Failed):
        return "failed", f"{outcome.kind}: {outcome.reason}" if outcome.reason else outcome.kind
    over = [
        f"{name} {number(outcome.values[name])} s over {number(limit)} s"
        for name, limit in limits.items()
        if outcome.values.get(name, 0.0) > limit
    ]
    if outcome.saturated:
        return "saturated", "; ".join(["did not keep up", *over])
    return ("broke", "; ".join(over)) if over else ("held", "")


def _launch(outcome: Outcome, gpus: int) -> float:
    """GPU-seconds of the launch that the cell caused."""
    seconds = outcome.summary.get("launch_seconds", 0.0)
    whole = seconds if isinstance(seconds, int | float) else 0.0
    return min(whole * gpus, outcome.gpu_seconds)
