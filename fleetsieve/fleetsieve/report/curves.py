"""Capacity and tails: the charts of every workload on every config, with their values."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element
from zlib import crc32

from fleetsieve.report.curve import THROUGHPUT, Heights, curve
from fleetsieve.report.drawing import mark
from fleetsieve.report.findings import Column, Findings, Level
from fleetsieve.report.markup import element, name
from fleetsieve.report.parts import details, legend, section, table
from fleetsieve.report.wording import count
from fleetsieve.show import load, number, percent, span

# Charts beyond that would make a page that no browser likes.
_MOST = 240
_NOTHING = "Nothing has been measured yet, so any load may turn out to be anything."


def curves(found: Findings) -> Element:
    """A group for each workload; charts that matter least are left out where there are too many."""
    title = "Capacity and latency by load"
    if not found.known:
        return section("curves", title, element("p", _NOTHING))
    shown, left = _shown(found.columns)
    groups = [
        _group(at, workload["name"], shown)
        for at, workload in enumerate(found.decision["workloads"])
    ]
    sure = percent(found.decision["confidence"])
    return section(
        "curves",
        title,
        element(
            "p",
            f"What one replica does at each load. Bands hold all at the same time with {sure} "
            "confidence and end where a load is known to break; a band that pinches is a "
            "measurement without noise.",
        ),
        element("div", _marks(), class_="key-row"),
        element(
            "p", f"{count(left, 'chart')} of pairs that were neither measured nor used not drawn."
        )
        if left
        else None,
        *groups,
    )


def _shown(columns: Sequence[Column]) -> tuple[list[Column], int]:
    """What is used first, then what was measured; in the order of the fleet."""
    ranked = sorted(columns, key=lambda c: (-c.replicas, -c.measured))
    chosen = {id(column) for column in ranked[:_MOST]}
    return [c for c in columns if id(c) in chosen], max(len(columns) - _MOST, 0)


def _marks() -> list[Element]:
    states = [
        ("held", "within its SLOs"),
        ("broke", "over an SLO"),
        ("saturated", "did not keep up"),
        ("failed", "failed"),
        ("open", "not measured"),
    ]
    shapes = element("ul", [_state(*state) for state in states], class_="legend")
    return [
        shapes,
        legend([("belief", "bounds"), ("slo-box", "SLO"), ("capacity-box", "certain capacity")]),
    ]


def _state(shape: str, text: str) -> Element:
    icon = element(
        "svg", mark(6, 6, shape, text)[2], class_="swatch", viewBox="0 0 12 12", aria_hidden="true"
    )
    return element("li", icon, text)


def _group(at: int, workload: str, columns: Sequence[Column]) -> Element | None:
    own = [column for column in columns if column.workload == workload and column.levels]
    if not own:
        return None
    heights = Heights.of(own)
    limits = ", ".join(f"{key} ≤ {number(limit)} s" for key, limit in own[0].limits.items())
    return element(
        "section",
        element("h3", name(workload)),
        element("p", f"SLOs: {limits}" if limits else "No SLOs."),
        element("div", [_card(c, heights) for c in own], class_="cards"),
        class_="workload",
        id=f"workload-{at}",
        data_workload=workload,
    )


def _card(column: Column, heights: Heights) -> Element:
    used = f"{count(column.replicas, 'replica')} used" if column.replicas else "not used"
    return element(
        "article",
        element("h4", name(column.config), " ", element("span", used, class_=_badge(column))),
        element("p", f"capacity {span(*column.capacity)} requests/s", class_="capacity-text"),
        curve(column, heights),
        details(_key(column), "Values", _values(column)),
        class_="card",
    )


def _badge(column: Column) -> str:
    return "badge used" if column.replicas else "badge"


def _key(column: Column) -> str:
    return f"values-{crc32(repr((column.workload, column.config)).encode()):08x}"


def _values(column: Column) -> Element:
    outputs = (THROUGHPUT, *column.limits)
    rows = [
        [
            load(level.load, column.kind),
            _state_of(level, column),
            *(_measured(level, column, output) for output in outputs),
            *(_bound(level, output) for output in outputs),
        ]
        for level in column.levels
    ]
    titles = ("load", "state", *outputs, *(f"{output} bounds" for output in outputs))
    return table(f"{column.workload} on {column.config} by load", titles, rows, left=2)


def _state_of(level: Level, column: Column) -> str:
    states = [one.state for one in column.benchmarks if one.cell.load == level.load]
    return ", ".join(dict.fromkeys(states)) or "not measured"


def _measured(level: Level, column: Column, output: str) -> str:
    own = [one.values for one in column.benchmarks if one.cell.load == level.load]
    return ", ".join(number(values[output]) for values in own if output in values) or "–"


def _bound(level: Level, output: str) -> str:
    bound = level.bounds.get(output)
    return "–" if bound is None else span(bound.lower, bound.upper)
