"""What was not measured, and why it does not matter, or what would come next."""

from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from fleetsieve.report.findings import Findings
from fleetsieve.report.markup import element, name
from fleetsieve.report.parts import details, section, table
from fleetsieve.report.wording import count, gpu_time, points
from fleetsieve.show import load, number, percent

_MOST, _FEW = 100, 8


def unmeasured(found: Findings) -> Element:
    """One row for each workload and config with cells that were never measured."""
    rest = found.decision["unmeasured"]
    columns = rest["columns"][:_MOST]
    rows = [_row(column) for column in columns]
    titles = ("workload", "config", "loads not measured", "capacity at most", "could add")
    left = len(rest["columns"]) - len(columns)
    return section(
        "unmeasured",
        "What was not measured",
        element("p", _sentence(found)),
        _folded(
            table("Pairs with loads that were never measured", titles, rows, left=2), len(rows)
        ),
        element("p", f"{count(left, 'more pair')} could add no more than the last.")
        if left > 0
        else None,
        _next(found) if found.decision["next"] else None,
    )


def _sentence(found: Findings) -> str:
    rest, certified = found.decision["unmeasured"], found.decision["certified"]
    if not rest["cells"]:
        return f"All {count(found.cells, 'cell')} were measured."
    what = (
        f"{rest['cells']:,} of {count(found.cells, 'cell')} were never measured, "
        f"{gpu_time(rest['gpu_seconds'])}."
    )
    if not certified:
        return f"{what} The last column says how much each pair alone could still add to the value."
    most = max((column["could_add"] for column in rest["columns"]), default=0.0)
    return (
        f"{what} They do not matter: even if one of these pairs reached its upper bound, it could "
        f"add at most {points(most)} to the value, and all of them together at most the gap of "
        f"{points(found.decision['gap'])}, with {percent(found.decision['confidence'])} confidence."
    )


def _folded(rows: Element, many: int) -> Element | None:
    if many <= _FEW:
        return rows if many else None
    return details("unmeasured-values", f"The {many} pairs", rows)


def _row(column: Mapping[str, Any]) -> tuple:
    return (
        name(column["workload"]),
        name(column["config"]),
        f"{column['cells']:,}",
        f"{number(column['capacity_upper'])} req/s",
        points(column["could_add"]),
    )


def _next(found: Findings) -> Element:
    rows = [
        (
            name(cell["workload"]),
            name(cell["config"]),
            load(cell["load"], found.kinds.get(cell["workload"])),
            f"{cell['gpu_seconds']:,.0f}",
            points(cell["expected_gap_reduction"]),
        )
        for cell in found.decision["next"]
    ]
    titles = ("workload", "config", "load", "GPU-seconds", "expected to close")
    return table("To measure next, best first", titles, rows, left=2)
