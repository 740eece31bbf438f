"""The report of a study."""

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from fleetsieve.report.allocation import allocation
from fleetsieve.report.curves import curves
from fleetsieve.report.findings import Findings
from fleetsieve.report.gap import gap
from fleetsieve.report.gather import gather
from fleetsieve.report.glossary import glossary
from fleetsieve.report.log import log
from fleetsieve.report.page import page
from fleetsieve.report.remarks import remarks
from fleetsieve.report.served import served
from fleetsieve.report.spending import spending
from fleetsieve.report.surroundings import surroundings
from fleetsieve.report.unmeasured import unmeasured
from fleetsieve.report.verdict import verdict


def study_page(path: Path, grid: Path | None = None, *, live: bool = False) -> str:
    """An HTML document; `grid` takes the place of the grid that the study replays.

    A `live` one follows a server that serves it again as the study grows.

    Raises:
        InputError: the study or its grid cannot be read.
    """
    found = gather(path, grid)
    what = "How to split the GPUs, and how sure that is"
    return page(found.title, what, sections(found), live=live)


def sections(found: Findings) -> Iterator[Element | None]:
    """The parts of the report, the decision first."""
    yield verdict(found)
    yield served(found)
    yield allocation(found)
    yield gap(found)
    yield curves(found)
    yield spending(found)
    yield unmeasured(found)
    yield remarks(found)
    yield surroundings(found)
    yield log(found)
    yield glossary()
