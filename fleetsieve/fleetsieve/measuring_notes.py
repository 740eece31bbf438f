"""What the summaries of measured cells say that a reader of the decision should know."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fleetsieve.cell import Cell
from fleetsieve.decision import Decision
from fleetsieve.events import Event, Told
from fleetsieve.problem import Problem
from fleetsieve_measure import Failed, Measured

_MOST = 3


def remarks(events: Iterable[Event]) -> Iterator[str]:
    """Sentences on cells that were measured live."""
    told = [event for event in events if isinstance(event, Told)]
    failed = [(event.cell, event.outcome) for event in told if isinstance(event.outcome, Failed)]
    for cell, outcome in failed[:_MOST]:
        if outcome.reason:
            yield f"{_name(cell)} failed ({outcome.kind}): {outcome.reason}"
    if len(failed) > _MOST:
        yield f"{len(failed) - _MOST} more cells failed; the study has their reasons"
    few = [
        event.cell
        for event in told
        if isinstance(event.outcome, Measured)
        and event.outcome.summary.get("enough_requests") is False
        and not event.outcome.summary.get("ended_early")
    ]
    if few:
        names = sorted(map(_name, few))
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        yield (
            f"too few requests to bound the percentiles of {', '.join(names[:_MOST])}{more}; "
            "measure.seconds would have to be larger"
        )
    early = [event.outcome.summary for event in told if event.outcome.summary.get("ended_early")]
    saved = sum(float(summary.get("saved_gpu_seconds", 0.0)) for summary in early)
    if saved > 0:
        runs = "1 run" if len(early) == 1 else f"{len(early)} runs"
        yield f"{runs} ended early, once decided, which saved {saved:.0f} GPU-seconds"


def highest_levels(decision: Decision, problem: Problem) -> Iterator[str]:
    """A sentence on columns that hold at the highest load there is, where more would help."""
    short = {
        row["name"] for row in decision.to_dict()["workloads"]
        if row["feasible"] and row["fulfillment"]["conservative"] < 1
    }  # fmt: skip
    top = [
        f"{row['workload']} on {row['config']}"
        for row in decision.to_dict()["allocation"]
        if row["workload"] in short and row["load"] == _highest(problem, row)
    ]
    more = f" and {len(top) - _MOST} more" if len(top) > _MOST else ""
    if top:
        yield (
            f"{', '.join(top[:_MOST])}{more} "
            "kept the SLOs at the highest of the loads; a replica may be able to carry more, which "
            "higher loads would show"
        )


def _highest(problem: Problem, row: Mapping[str, Any]) -> float:
    w, c = problem.workloads.index(row["workload"]), problem.configs.index(row["config"])
    return float(problem.load[w, c].max())


def _name(cell: Cell) -> str:
    return f"{cell.workload} on {cell.config} at {cell.load:g}"
