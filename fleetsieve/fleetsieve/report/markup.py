"""Elements of HTML and SVG; text becomes text, whatever characters it has."""

from collections.abc import Iterable
from xml.etree.ElementTree import Element, tostring

from fleetsieve.show import printable

Content = Element | str | None
"""What an element holds; None is nothing."""
Value = str | float | bool | None
"""Of an attribute: True is one without a value, None and False are none."""


def element(tag: str, *content: Content | Iterable[Content], **attributes: Value) -> Element:
    """An element; `class_` and `aria_label` are the attributes class and aria-label."""
    made = Element(tag)
    for key, value in attributes.items():
        if value is not None and value is not False:
            made.set(key.rstrip("_").replace("_", "-"), _attribute(value))
    return add(made, *content)


def add(parent: Element, *content: Content | Iterable[Content]) -> Element:
    """Append `content` to `parent`, which is returned."""
    for part in content:
        if isinstance(part, str):
            _append_text(parent, printable(part))
        elif isinstance(part, Element):
            parent.append(part)
        elif part is not None:
            add(parent, *part)
    return parent


def name(text: str) -> Element:
    """A name from a file, in its own direction."""
    return element("bdi", text, class_="name")


def verbatim(tag: str, text: str, **attributes: Value) -> Element:
    """A style or a script of ours, which HTML reads without escapes."""
    made = element(tag, **attributes)
    made.text = text
    return made


def html(root: Element) -> str:
    """`root` as HTML."""
    return tostring(root, encoding="unicode", method="html")


def short(value: float) -> str:
    """A coordinate: two digits after the point, and no more than it takes."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def _attribute(value: Value) -> str:
    if isinstance(value, bool):
        return ""
    return short(value) if isinstance(value, int | float) else printable(str(value))


def _append_text(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text
