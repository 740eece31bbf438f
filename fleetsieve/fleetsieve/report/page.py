"""The page around sections: one file that asks nothing of the network."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from xml.etree.ElementTree import Element

from fleetsieve.report.markup import element, html, name, verbatim
from fleetsieve.version import installed


def page(title: str, what: str, sections: Iterable[Element | None], *, live: bool = False) -> str:
    """A whole HTML document; `live` ones fetch their sections again as a study grows."""
    style = _asset("style.css")
    script = _asset("script.js") + (_asset("live.js") if live else "")
    root = element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            _policy(style, script, live=live),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("meta", name="referrer", content="no-referrer"),
            element("meta", name="generator", content=f"FleetSieve {installed()}"),
            element("title", f"{title} – FleetSieve"),
            verbatim("style", style),
        ),
        element(
            "body",
            element("a", "Skip to the decision", href="#main", class_="skip"),
            element("header", element("h1", name(title)), element("p", what)),
            _live_status() if live else None,
            main(sections),
            element("footer", element("p", f"FleetSieve {installed()}")),
            element("div", id="tip", role="status", hidden=True),
            verbatim("script", script),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{html(root)}\n"


def main(sections: Iterable[Element | None]) -> Element:
    """The part of a page that a live one swaps: links to its sections, and the sections."""
    shown = [part for part in sections if part is not None]
    return element("main", _links(shown), shown, id="main")


def _links(sections: Sequence[Element]) -> Element:
    items = [
        element("li", element("a", "".join(part[0].itertext()), href=f"#{part.get('id')}"))
        for part in sections
    ]
    return element("nav", element("ul", items), aria_label="Sections", id="links")


def _live_status() -> Element:
    return element("p", "Live: the page follows the study.", id="live", role="status")


def _policy(style: str, script: str, *, live: bool) -> Element:
    """Nothing but this style and this script, whatever a name manages to say."""
    rules = [
        "default-src 'none'",
        f"style-src {_digest(style)}",
        f"script-src {_digest(script)}",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if live else []),
    ]
    return element("meta", http_equiv="Content-Security-Policy", content="; ".join(rules))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(file: str) -> str:
    return files("fleetsieve.report").joinpath(file).read_text(encoding="utf-8")
