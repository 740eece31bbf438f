"""How much of each workload's demand is served."""

from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from fleetsieve.report.findings import Findings
from fleetsieve.report.markup import name
from fleetsieve.report.parts import bar, key, legend, section, table
from fleetsieve.report.wording import letters
from fleetsieve.show import number, percent_range, span


def served(found: Findings) -> Element:
    """A bar for each workload, from what is sure to what is possible."""
    keys = letters(found.decision["workloads"])
    rows = [_row(workload, keys[workload["name"]]) for workload in found.decision["workloads"]]
    titles = ("workload", "", "demand served", "requests/s served", "demand, requests/s")
    return section(
        "served",
        "What each workload gets",
        legend([("certain", "certain"), ("possible", "possible at the upper bounds")]),
        table("Demand served by workload", titles, rows, left=2),
    )


def _row(workload: Mapping[str, Any], letter: str) -> list:
    share, rate = workload["fulfillment"], workload["served"]
    low, high = share["conservative"], share["optimistic"]
    return [
        [key(letter), " ", name(workload["name"])],
        bar([(low, "certain"), (max(high - low, 0.0), "possible")], 1.0),
        percent_range(low, high) if workload["feasible"] else "infeasible",
        span(rate["conservative"], rate["optimistic"]),
        number(workload["demand"]),
    ]
