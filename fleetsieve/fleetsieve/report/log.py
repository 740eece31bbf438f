"""Every benchmark, in order."""

from xml.etree.ElementTree import Element

from fleetsieve.report.findings import Benchmark, Findings
from fleetsieve.report.markup import element
from fleetsieve.report.parts import details, section, table
from fleetsieve.report.wording import count
from fleetsieve.show import number, where

_MOST = 2000


def log(found: Findings) -> Element | None:
    """A table that unfolds; the oldest rows are left out of a very long one."""
    if not found.benchmarks:
        return None
    shown = found.benchmarks[-_MOST:]
    outputs = list(dict.fromkeys(n for c in found.columns for n in ("throughput", *c.limits)))
    titles = ("no.", "cell", "result", *outputs, "GPU-seconds")
    left = len(found.benchmarks) - len(shown)
    return section(
        "log",
        "Every benchmark",
        element("p", f"The first {left:,} are in the study alone.") if left else None,
        details(
            "log-values",
            count(len(shown), "benchmark"),
            table(
                "Benchmarks in the order in which they ended; latencies in seconds",
                titles,
                [_row(one, outputs) for one in shown],
                left=3,
            ),
        ),
    )


def _row(one: Benchmark, outputs: list[str]) -> list[str]:
    again = ", again" if one.again else ""
    other = "" if one.asked else ", which the fleet does not ask about any more"
    return [
        str(one.number),
        f"{where(one.cell)}{again}{other}",
        f"{one.state}: {one.why}" if one.why else one.state,
        *(number(one.values[o]) if o in one.values else "–" for o in outputs),
        f"{one.gpu_seconds:,.0f}",
    ]
