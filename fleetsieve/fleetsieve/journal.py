"""Events as rows of text and back, with every float exact."""

import json
import math
from collections.abc import Iterable
from typing import Any, TypeVar, get_args

from fleetsieve.cell import Cell, LoadKind
from fleetsieve.events import Abandoned, Asked, Event, Told
from fleetsieve.problem import Problem
from fleetsieve_measure import Failed, FailureKind, Measured, Outcome

T = TypeVar("T")
_KINDS = {dict: "mapping", int: "whole number", str: "text"}
# Of a summary, what others calculate with; the rest is shown at most.
_ADDED_UP = {"launch_seconds", "saved_gpu_seconds"}
Row = tuple[str, int | None, str | None, str]
"""Kind, ticket, cell as a JSON list, and the rest as a JSON object."""


def row_of(event: Event) -> Row:
    """The row that stands for `event`."""
    match event:
        case Asked():
            rest = {
                "gpu_seconds": event.gpu_seconds,
                "expected_gap_reduction": event.expected_gap_reduction,
                "score": event.score,
            }
            return "asked", event.ticket, _of_cell(event.cell), _dump(rest)
        case Told():
            return "told", event.ticket, _of_cell(event.cell), _dump(_of_outcome(event.outcome))
        case Abandoned():
            return "abandoned", event.ticket, None, "{}"


def event_of(kind: str, ticket: int | None, cell: str | None, payload: str) -> Event:
    """The event that a row stands for.

    Raises:
        ValueError, KeyError, TypeError: it stands for none.
    """
    rest = _of_type(dict, json.loads(payload))
    match kind, ticket, cell:
        case "asked", int(), str():
            return Asked(ticket=ticket, cell=_cell(cell), **_numbers(rest))
        case "told", _, str():
            return Told(ticket=ticket, cell=_cell(cell), outcome=_outcome(rest))
        case "abandoned", int(), None:
            return Abandoned(ticket=ticket)
    raise ValueError(f"the journal has an event {kind!r} that this version does not know")


def passed_over(events: Iterable[Event], problem: Problem) -> str | None:
    """A sentence about the events that are about no cell of `problem`; None when all are."""
    cells = set(problem.cells())
    others = {event.cell for event in events if not isinstance(event, Abandoned)} - cells
    if not others:
        return None
    names = sorted({f"{cell.workload} on {cell.config}" for cell in others})
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"the study has measurements that the fleet does not ask about, {len(others)} in all, "
        f"which are passed over: {', '.join(names[:3])}{more}"
    )


def _of_cell(cell: Cell) -> str:
    return _dump([cell.workload, cell.config, cell.load, cell.kind])


def _cell(text: str) -> Cell:
    workload, config, load, kind = json.loads(text)
    return Cell(
        _of_type(str, workload),
        _of_type(str, config),
        _positive(load),
        _one_of(get_args(LoadKind), kind),
    )


def _of_outcome(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Failed):
        return {
            "failed": outcome.kind,
            "gpu_seconds": outcome.gpu_seconds,
            "reason": outcome.reason,
            "summary": dict(outcome.summary),
        }
    return {
        "values": dict(outcome.values),
        "se": dict(outcome.se),
        "gpu_seconds": outcome.gpu_seconds,
        "saturated": outcome.saturated,
        "requests": outcome.requests,
        "summary": dict(outcome.summary),
    }


def _outcome(plain: dict[str, Any]) -> Outcome:
    cost, summary = float(plain["gpu_seconds"]), _summary(plain)
    if "failed" in plain:
        kind: FailureKind = _one_of(get_args(FailureKind), plain["failed"])
        reason = _of_type(str, plain["reason"])
        return Failed(kind=kind, gpu_seconds=cost, reason=reason, summary=summary)
    requests = plain["requests"]
    return Measured(
        values=_numbers(plain["values"]),
        se=_numbers(plain["se"]),
        gpu_seconds=cost,
        saturated=bool(plain["saturated"]),
        requests=None if requests is None else _of_type(int, requests),
        summary=summary,
    )


def _summary(plain: dict[str, Any]) -> dict[str, Any]:
    summary = _of_type(dict, plain.get("summary", {}))
    for name in _ADDED_UP & set(summary):
        float(summary[name])
    return summary


def _numbers(plain: Any) -> dict[str, float]:
    return {name: float(value) for name, value in _of_type(dict, plain).items()}


def _positive(value: Any) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"the journal says {value!r}, where loads are above 0")
    return float(value)


def _of_type(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"the journal says {str(value)[:40]!r}, which is no {_KINDS[kind]}")
    return value


def _one_of(accepted: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, str) or value not in accepted:
        raise ValueError(f"the journal says {value!r}, where {accepted} are known")
    return value


def _dump(value: Any) -> str:
    """JSON whose floats read back exactly, since Python writes the shortest that do."""
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    """`value` with infinities and NaN as text, for which JSON has no number; float() reads it."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float):  # NumPy's float64 too, whose repr is no number
        return float(value) if math.isfinite(value) else repr(float(value))
    return value
