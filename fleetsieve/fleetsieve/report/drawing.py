"""Parts of charts in SVG: a frame with axes, lines, bands and marks that a reader can point at."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from fleetsieve.report.markup import Content, element, short
from fleetsieve.report.scale import Scale
from fleetsieve.show import number

Point = tuple[float, float]
_UNITS = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e5, 1e3, "k"))
_TEXT = 4.0  # from the baseline to the middle of small text


@dataclass(frozen=True)
class Frame:
    """The part of a chart that values are drawn in."""

    x: Scale
    y: Scale

    def points(self, values: Sequence[Point]) -> str:
        """The places of `values`, as SVG wants them."""
        return " ".join(f"{short(self.x(x))},{short(self.y(y))}" for x, y in values)


def picture(
    width: float,
    height: float,
    title: str,
    description: str,
    *content: Content | Iterable[Content],
    wide: bool = False,
) -> Element:
    """An SVG that says what it shows to those who do not see it; arrow keys walk its marks.

    The text of a `wide` one grows where the page is narrow.
    """
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *content,
        class_="chart wide" if wide else "chart",
        viewBox=f"0 0 {short(width)} {short(height)}",
        role="img",
        tabindex="0",
        aria_label=f"{title}. {description}",
    )


def band(frame: Frame, lower: Sequence[Point], upper: Sequence[Point], kind: str) -> Element:
    """The area between two lines."""
    return element("polygon", points=frame.points([*lower, *reversed(upper)]), class_=kind)


def line(frame: Frame, values: Sequence[Point], kind: str) -> Element:
    """A line through `values`."""
    return element("polyline", points=frame.points(values), class_=kind)


def across(frame: Frame, y: float, kind: str) -> Element:
    """A line over the whole width at the value `y`."""
    place = frame.y(y)
    return element("line", x1=frame.x.start, x2=frame.x.end, y1=place, y2=place, class_=kind)


def y_axis(frame: Frame, ticks: Sequence[float], texts: Sequence[str] | None = None) -> Element:
    """Ticks with their numbers left of the frame, and lines across it."""
    texts = [compact(tick) for tick in ticks] if texts is None else texts
    return element(
        "g",
        [across(frame, tick, "grid") for tick in ticks],
        [
            label(frame.x.start - 5, frame.y(tick) + _TEXT, text, anchor="end")
            for tick, text in zip(ticks, texts, strict=True)
        ],
        class_="axis",
    )


def x_axis(frame: Frame, ticks: Sequence[float], texts: Sequence[str] | None = None) -> Element:
    """Ticks with their numbers below the frame."""
    texts = [compact(tick) for tick in ticks] if texts is None else texts
    bottom = frame.y.start
    return element(
        "g",
        element("line", x1=frame.x.start, x2=frame.x.end, y1=bottom, y2=bottom, class_="base"),
        [
            element("line", x1=frame.x(t), x2=frame.x(t), y1=bottom, y2=bottom + 4, class_="base")
            for t in ticks
        ],
        [
            label(frame.x(tick), bottom + 15, text, anchor="middle")
            for tick, text in zip(ticks, texts, strict=True)
        ],
        class_="axis",
    )


def compact(value: float) -> str:
    """A number that fits beside an axis, however large it is."""
    for least, unit, suffix in _UNITS:
        if least <= value < 1e15:
            return f"{value / unit:.4g}{suffix}"
    return f"{value:,.0f}" if 1000 <= value < 1e15 else number(value)


def label(
    x: float, y: float, *content: Content, anchor: str = "start", kind: str | None = None
) -> Element:
    """Small text."""
    return element("text", *content, x=x, y=y, text_anchor=anchor, class_=kind)


def short_name(text: str, most: int) -> Element:
    """A name from a file for a label, in its own direction, of at most so many characters."""
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    return element("tspan", shown, class_="name")


def mark(x: float, y: float, shape: str, tip: str) -> Element:
    """A mark with what it says when a reader points at it: a shape, in a target that is larger."""
    return element(
        "g",
        element("title", tip),
        element("circle", cx=x, cy=y, r=9, class_="target"),
        element("path", d=_SHAPES[shape].format(x=short(x), y=short(y)), class_=shape),
        class_="mark",
    )


# States differ by shape, not by colour alone.
_SHAPES = {
    "held": "M{x} {y}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "broke": "M{x} {y}m-4-4h8v8h-8z",
    "saturated": "M{x} {y}m0-5l5 9h-10z",
    "failed": "M{x} {y}m-4-4l8 8m0-8l-8 8",
    "open": "M{x} {y}m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "dot": "M{x} {y}m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "step": "M{x} {y}m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0z",
}
