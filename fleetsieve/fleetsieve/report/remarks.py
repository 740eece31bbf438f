"""What else there is to know of a decision, one sentence each."""

from xml.etree.ElementTree import Element

from fleetsieve.report.findings import Findings
from fleetsieve.report.markup import element
from fleetsieve.report.parts import section
from fleetsieve.show import remarks as sentences


def remarks(found: Findings) -> Element | None:
    """Runner-up, closest misses, noise, notes; what other sections say is left to them."""
    lines = list(sentences({**found.decision, "unmeasured": None, "next": []}, found.kinds))
    if not lines:
        return None
    return section(
        "notes", "Also to know", element("ul", [element("li", text) for text in lines])
    )  # fmt: skip
