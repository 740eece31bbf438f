"""Where GPU-seconds went: by workload and config, and on what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from fleetsieve.report.findings import Benchmark, Findings
from fleetsieve.report.markup import element, name
from fleetsieve.report.parts import bar, legend, section, table
from fleetsieve.report.wording import count, gpu_time
from fleetsieve.show import percent

_PARTS = (
    ("first", "first measurements"),
    ("again", "repeats"),
    ("launches", "launches of servers"),
    ("failures", "benchmarks that failed"),
)
_MOST = 100


@dataclass(frozen=True)
class Spending:
    """GPU-seconds by what they went on; a failed benchmark counts as one, its launch apart."""

    first: float = 0.0
    again: float = 0.0
    launches: float = 0.0
    failures: float = 0.0

    @classmethod
    def of(cls, benchmarks: Sequence[Benchmark]) -> "Spending":
        """What `benchmarks` took together."""

        def taken(belongs: Callable[[Benchmark], bool]) -> float:
            return sum(one.gpu_seconds - one.launch for one in benchmarks if belongs(one))

        return cls(
            first=taken(lambda one: one.state != "failed" and not one.again),
            again=taken(lambda one: one.state != "failed" and one.again),
            launches=sum(one.launch for one in benchmarks),
            failures=taken(lambda one: one.state == "failed"),
        )

    @property
    def whole(self) -> float:
        """All of it."""
        return self.first + self.again + self.launches + self.failures


def spending(found: Findings) -> Element:
    """A bar for each workload on a config, longest first."""
    groups: dict[tuple[str, str], list[Benchmark]] = {}
    for one in found.benchmarks:
        groups.setdefault((one.cell.workload, one.cell.config), []).append(one)
    spent = sorted(groups.items(), key=lambda item: -Spending.of(item[1]).whole)
    whole = Spending.of(found.benchmarks)
    longest = Spending.of(spent[0][1]).whole if spent else 0.0
    rows = [_row(*pair, own, longest, whole.whole) for pair, own in spent[:_MOST]]
    if len(spent) > _MOST:
        rest = [one for _, own in spent[_MOST:] for one in own]
        rows.append(_row(f"{len(spent) - _MOST} more pairs", "", rest, longest, whole.whole))
    used = [part for part in _PARTS if getattr(whole, part[0]) > 0]
    titles = ("workload", "config", "", "GPU-seconds", "share", "benchmarks")
    return section(
        "spending",
        "Where GPU-seconds went",
        element("p", _sentence(found, whole)),
        legend(used) if len(used) > 1 else None,
        table("GPU-seconds by workload and config", titles, rows, left=3) if rows else None,
    )


def _sentence(found: Findings, whole: Spending) -> str:
    parts = [
        f"{getattr(whole, key):,.0f} on {text}" for key, text in _PARTS if getattr(whole, key) > 0
    ]
    of = f"; measuring every cell would take {gpu_time(found.exhaustive)}" if parts else ""
    return f"{gpu_time(whole.whole)} in all: {', '.join(parts) or 'nothing measured'}{of}."


def _row(
    workload: str, config: str, own: Sequence[Benchmark], longest: float, whole: float
) -> list:
    spent = Spending.of(own)
    again = sum(one.again for one in own)
    failed = sum(one.state == "failed" for one in own)
    more = [
        *([count(again, "repeat")] if again else []),
        *([f"{failed} failed"] if failed else []),
    ]
    return [
        name(workload),
        name(config),
        bar([(getattr(spent, key), key) for key, _ in _PARTS], longest),
        f"{spent.whole:,.0f}",
        percent(spent.whole / whole if whole else 0.0),
        f"{len(own)}" + (f" ({', '.join(more)})" if more else ""),
    ]
