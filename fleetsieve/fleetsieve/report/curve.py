"""The chart of a workload on a config: throughput and latencies against load, with bounds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from fleetsieve.report.drawing import (
    Frame,
    Point,
    across,
    band,
    label,
    line,
    mark,
    picture,
    x_axis,
    y_axis,
)
from fleetsieve.report.findings import Benchmark, Bound, Column, Level
from fleetsieve.report.markup import element
from fleetsieve.report.scale import Scale, around, from_zero, thinned
from fleetsieve.show import load, number, span

THROUGHPUT = "throughput"
_WIDTH, _PANEL, _TOP, _LEFT, _BOTTOM = 280, 92, 26, 40, 34
_UNIT = {"rate": "requests/s", "concurrency": "open requests"}
# Bounds and latencies further from the SLO than this are drawn at the edge.
_FAR = 30.0


@dataclass(frozen=True)
class Heights:
    """What the charts of a workload share, so that its configs can be compared by eye."""

    loads: tuple[float, float]
    outputs: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, columns: Sequence[Column]) -> "Heights":
        """Room for what was measured and what is expected, for the SLOs, not for every bound."""
        loads = [level.load for column in columns for level in column.levels]
        limits = {name: limit for column in columns for name, limit in column.limits.items()}
        names = (THROUGHPUT, *limits)
        outputs = {name: _ends(name, limits.get(name), columns) for name in names}
        return cls((min(loads, default=1.0), max(loads, default=1.0)), outputs)


def _ends(name: str, limit: float | None, columns: Sequence[Column]) -> tuple[float, float]:
    values = [one.values[name] for c in columns for one in c.benchmarks if name in one.values]
    values += [v.bounds[name].middle for c in columns for v in c.levels if name in v.bounds]
    values = [value for value in values if 0 < value < math.inf]
    if limit is None:
        return 0.0, max(values, default=1.0)
    near = [min(max(value, limit / _FAR), limit * _FAR) for value in values]
    return min([limit / 2, *near]), max([limit * 1.5, *near])


def curve(column: Column, heights: Heights) -> Element:
    """One panel for the throughput and one for each latency that has an SLO."""
    x = around(heights.loads, _LEFT, _WIDTH - 10, room=1.15)
    panels, top = [], 0.0
    for output in (THROUGHPUT, *column.limits):
        panels.append(element("g", *_panel(column, output, x, heights.outputs[output], top)))
        top += _TOP + _PANEL
    ticks = thinned([level.load for level in column.levels], x, 34)
    base = Frame(x, Scale(0, 1, top, top - _PANEL))
    return picture(
        _WIDTH,
        top + _BOTTOM,
        f"{column.workload} on {column.config}",
        _description(column),
        *panels,
        x_axis(base, ticks),
        label((_LEFT + _WIDTH) / 2, top + 30, f"load, {_UNIT[column.kind]}", anchor="middle"),
    )


def _description(column: Column) -> str:
    states = [one.state for one in column.benchmarks]
    parts = [
        f"Capacity {span(*column.capacity)} requests/s per replica",
        f"{column.measured} of {len(column.levels)} loads measured",
    ]
    kinds = ("broke", "saturated", "failed")
    parts += [f"{states.count(state)} {state}" for state in kinds if state in states]
    return f"{', '.join(parts)}; the table below has the values."


def _panel(
    column: Column, output: str, x: Scale, ends: tuple[float, float], top: float
) -> Iterator[Element]:
    start, end = top + _TOP + _PANEL - 4, top + _TOP
    limit = column.limits.get(output)
    y = from_zero(ends, start, end) if output == THROUGHPUT else around(ends, start, end, room=1.15)
    frame = Frame(x, y)
    unit = "requests/s" if output == THROUGHPUT else "s"
    yield label(_LEFT, top + 13, f"{output}, {unit}", kind="panel")
    yield y_axis(frame, y.ticks(3))
    yield across(frame, y.low, "base")
    yield from _believed(column, output, frame)
    if limit is not None:
        yield across(frame, limit, "slo")
        yield label(_WIDTH - 10, top + 13, f"SLO {number(limit)} s", anchor="end", kind="slo-text")
    elif column.capacity[0] > 0:
        yield across(frame, column.capacity[0], "capacity")
    for level in column.levels:
        if not level.measured and output in level.bounds:
            yield _open(level, column, output, frame)
    for one in column.benchmarks:
        yield _measured(one, column, output, frame)


def _believed(column: Column, output: str, frame: Frame) -> Iterator[Element]:
    """The bounds as a band, and what is expected as a line; a single level as a bar."""
    known = [
        (level.load, level.bounds[output]) for level in column.levels if output in level.bounds
    ]
    if not known:
        return
    lower: list[Point] = [(load, bound.lower) for load, bound in known]
    upper: list[Point] = [(load, bound.upper) for load, bound in known]
    if len(known) == 1:
        x = frame.x(known[0][0])
        low, high = frame.y(lower[0][1]), frame.y(upper[0][1])
        yield element("line", x1=x, x2=x, y1=low, y2=high, class_="whisker")
        return
    yield band(frame, lower, upper, "belief")
    yield line(frame, [(load, bound.middle) for load, bound in known], "expected")


def _open(level: Level, column: Column, output: str, frame: Frame) -> Element:
    bound = level.bounds[output]
    tip = f"{load(level.load, column.kind)}, not measured: {output} {_within(bound, output)}"
    return mark(frame.x(level.load), frame.y(bound.middle), "open", tip)


def _within(bound: Bound, output: str) -> str:
    unit = "requests/s" if output == THROUGHPUT else "s"
    return f"{number(bound.middle)} {unit} expected, {span(bound.lower, bound.upper)} possible"


def _measured(one: Benchmark, column: Column, output: str, frame: Frame) -> Element:
    """A benchmark; without a number it lies at the edge to which it would have broken."""
    value = one.values.get(output)
    unit = "requests/s" if output == THROUGHPUT else "s"
    what = "no value" if value is None else f"{number(value)} {unit}"
    why = f" ({one.why})" if one.why else ""
    tip = f"{load(one.cell.load, column.kind)}: {output} {what}, {one.state}{why}"
    edge = 0.0 if output == THROUGHPUT else math.inf
    return mark(frame.x(one.cell.load), frame.y(edge if value is None else value), one.state, tip)
