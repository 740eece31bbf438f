"""The environment of the measurements, as lists."""

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from fleetsieve.report.findings import Findings
from fleetsieve.report.markup import element, name
from fleetsieve.report.parts import section, table

Rows = Sequence[tuple[str, str]]


def surroundings(found: Findings) -> Element:
    """Versions, seeds and rules, then the engine of each config."""
    parts = found.environment
    return section("environment", "Environment", _list(parts.general), _engines(parts.engines))


def _engines(engines: Mapping[str, Rows]) -> Element:
    """A row for each config, a column for each thing that is known of one."""
    titles = list(dict.fromkeys(key for rows in engines.values() for key, _ in rows))
    rows = []
    for config, known in engines.items():
        facts = dict(known)
        rows.append([name(config), *(facts.get(title, "–") for title in titles)])
    return table("What served each config", ["config", *titles], rows, left=1 + len(titles))


def _list(rows: Rows) -> Element:
    return element(
        "dl",
        [element("div", element("dt", key), element("dd", text)) for key, text in rows],
        class_="facts",
    )
