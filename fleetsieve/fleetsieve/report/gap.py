"""How the decision became sure: the two ends of the value against GPU-seconds."""

from collections.abc import Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

from fleetsieve.report.drawing import Frame, Point, band, label, line, mark, picture, x_axis, y_axis
from fleetsieve.report.findings import Benchmark, Findings
from fleetsieve.report.markup import element
from fleetsieve.report.parts import details, legend, section, table
from fleetsieve.report.scale import Scale, thinned
from fleetsieve.report.wording import count, points
from fleetsieve.show import number, percent, where
from fleetsieve.standing import Standing

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 276, 56, 48
# More marks than this would be one blot.
_MOST = 400


def gap(found: Findings) -> Element | None:
    """The narrowing of the gap; nothing before the first measurement."""
    standings = found.history.standings
    if len(standings) < 2:
        text = found.history.note or "Nothing has been measured yet."
        return section("gap", "How it became sure", element("p", text))
    told = {one.number: one for one in found.benchmarks}
    return section(
        "gap",
        "How it became sure",
        element(
            "p",
            "The value that is certain and the value that is possible, as measurements came in. "
            "What lies between them is the gap.",
            f" {found.history.note}" if found.history.note else None,
        ),
        legend([("area", "gap"), ("certain", "certain value"), ("possible-line", "possible")]),
        _chart(standings, told, found.decision["tolerance"]),
        details("gap-values", "The values of this chart", _table(standings, told)),
    )


def _chart(standings: Sequence[Standing], told: dict[int, Benchmark], tolerance: float) -> Element:
    last = standings[-1]
    ends = standings[0].gpu_seconds, max(last.gpu_seconds, standings[0].gpu_seconds + 1e-9)
    x = Scale(*ends, _LEFT, _WIDTH - 12)
    high = max(one.upper for one in standings)
    y = Scale(0.0, max(high * 1.05, 1e-9), _HEIGHT - _BOTTOM, 14)
    frame = Frame(x, y)
    lower = _steps([(one.gpu_seconds, one.lower) for one in standings])
    upper = _steps([(one.gpu_seconds, one.upper) for one in standings])
    ticks = thinned(x.ticks(6), x, 90)
    shown = standings[:: -(-len(standings) // _MOST)]
    return picture(
        _WIDTH,
        _HEIGHT,
        "Gap against GPU-seconds",
        f"After {number(last.gpu_seconds)} GPU-seconds the value is between {percent(last.lower)} "
        f"and {percent(last.upper)}; the gap is {points(last.gap)}, the tolerance "
        f"{points(tolerance)}.",
        y_axis(frame, y.ticks(5), [percent(tick) for tick in y.ticks(5)]),
        x_axis(frame, ticks),
        label((_LEFT + _WIDTH) / 2, _HEIGHT - 4, "GPU-seconds of benchmarks", anchor="middle"),
        band(frame, lower, upper, "area"),
        line(frame, upper, "possible-line"),
        line(frame, lower, "certain-line"),
        *(_mark(frame, one, told) for one in shown),
        wide=True,
    )


def _steps(values: Sequence[Point]) -> list[Point]:
    """A value stays until the next measurement ends."""
    found = [values[0]]
    for (_, before), (x, after) in pairwise(values):
        found += [(x, before), (x, after)]
    return found


def _mark(frame: Frame, one: Standing, told: dict[int, Benchmark]) -> Element:
    tip = (
        f"{_after(one, told)}: {percent(one.lower)} to {percent(one.upper)}, gap "
        f"{points(one.gap)}, {one.gpu_seconds:,.0f} GPU-seconds"
    )
    return mark(frame.x(one.gpu_seconds), frame.y(one.upper), "step", tip)


def _after(one: Standing, told: dict[int, Benchmark]) -> str:
    if one.measurements not in told:
        return f"after {count(one.measurements, 'measurement')}"
    return f"{one.measurements}. {where(told[one.measurements].cell)}"


def _table(standings: Sequence[Standing], told: dict[int, Benchmark]) -> Element:
    rows = [
        (
            _after(one, told),
            f"{one.gpu_seconds:,.0f}",
            percent(one.lower),
            percent(one.upper),
            points(one.gap),
        )
        for one in standings
    ]
    titles = ("after", "GPU-seconds", "certain", "possible", "gap")
    return table("The gap after each measurement", titles, rows)
