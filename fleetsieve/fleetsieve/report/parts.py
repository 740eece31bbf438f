"""Parts of a page that sections are made of: headings, tables that scroll, bars."""

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from fleetsieve.report.markup import Content, element
from fleetsieve.report.wording import colour

Cells = Sequence[Content | Iterable[Content]]


def section(key: str, title: str, *content: Content | Iterable[Content]) -> Element:
    """A part of the page with a heading; `key` names it in links."""
    head = element("h2", title, id=f"{key}-title")
    return element("section", head, *content, id=key, aria_labelledby=f"{key}-title")


def table(caption: str, titles: Sequence[str], rows: Iterable[Cells], left: int = 1) -> Element:
    """A table that scrolls by itself where it is wider than the page.

    The first `left` columns hold text, the others numbers; the first names its row.
    """
    kinds = ["text" if at < left else "number" for at in range(len(titles))]
    head = element(
        "tr",
        [element("th", t, scope="col", class_=k) for t, k in zip(titles, kinds, strict=True)],
    )
    body = [
        element(
            "tr",
            [
                element("td" if at else "th", cell, scope=None if at else "row", class_=kinds[at])
                for at, cell in enumerate(row)
            ],
        )
        for row in rows
    ]
    made = element(
        "table",
        element("caption", caption),
        element("thead", head),
        element("tbody", body),
    )
    return element(
        "div", made, class_="scroll", tabindex="0", role="region", aria_label=caption
    )  # fmt: skip


def details(key: str, summary: str, *content: Content, open_: bool = False) -> Element:
    """What a reader may unfold."""
    return element("details", element("summary", summary), *content, id=key, open=open_)


def bar(parts: Sequence[tuple[float, str]], whole: float, limit: float | None = None) -> Element:
    """A bar of parts, each an amount and its class, as a share of `whole`; numbers stand beside."""
    made, at = [], 0.0
    for amount, kind in parts:
        width = 100 * amount / whole if whole > 0 else 0.0
        if width > 0:
            made.append(element("rect", x=at, y=0, width=width, height=10, class_=kind))
        at += width
    if limit is not None:
        place = 100 * limit / whole
        made.append(element("line", x1=place, x2=place, y1=-1, y2=11, class_="limit"))
    return element(
        "svg",
        element("rect", x=0, y=0, width=100, height=10, class_="rail"),
        *made,
        class_="bar",
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        aria_hidden="true",
        focusable="false",
    )


def legend(entries: Iterable[tuple[str, str]]) -> Element:
    """What the classes of rectangles mean."""
    return element(
        "ul",
        [element("li", _swatch(kind), text) for kind, text in entries],
        class_="legend",
    )


def key(letter: str) -> Element:
    """The letter of a workload in its colour."""
    return element("span", letter, class_=f"key {colour(letter)}")


def _swatch(kind: str) -> Element:
    box = element("rect", x=0.5, y=0.5, width=11, height=11, class_=kind)
    return element("svg", box, class_="swatch", viewBox="0 0 12 12", aria_hidden="true")
