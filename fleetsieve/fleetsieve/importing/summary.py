"""What an import made of its files, in lines for a person."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fleetsieve.importing.importer import Imported, Row
from fleetsieve.metric import FAMILIES

_MOST = 3
_FEW = 100


def lines(imported: Imported, out: Path) -> Iterator[str]:
    """Rows, cells, repeats, failures, saturation, gaps, remarks and what was skipped."""
    rows = imported.rows
    tools = ", ".join(dict.fromkeys(row.tool for row in rows))
    count, cells = len(rows), len(imported.grid.cells)
    yield (
        f"{out}: {_many(count, 'row')} of {_many(cells, 'cell')}, "
        f"{_many(count - cells, 'repeat')} among them, from {tools}"
    )
    yield from _failures(rows)
    yield from _about(
        "saturated (completed or sent less than 90 % of its rate)",
        [row.run.place for row in rows if row.cells.get("saturated") is True],
    )
    yield from _lacking(rows)
    yield from _remarks(rows)
    yield from _skips(imported)


def gaps(imported: Imported) -> list[str]:
    """The p99 columns that no row fills although it has other statistics of that latency."""
    known = imported.grid.metrics
    families = dict.fromkeys(name.split("_", 1)[0] for name in known)
    return [f"{family}_p99" for family in families if f"{family}_p99" not in known]


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    for status in dict.fromkeys(row.cells["status"] for row in rows):
        if status != "ok":
            yield from _about(
                f"failed ({status})",
                [row.run.place for row in rows if row.cells["status"] == status],
            )
    some = [row.run.place for row in rows if row.run.failed and row.cells["status"] == "ok"]
    yield from _about("some requests failed, which count as late for ever", some)


def _lacking(rows: Sequence[Row]) -> Iterator[str]:
    """What measured rows do not have; ITL is missing from most tools and goes without saying."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    measured = [row for row in rows if row.cells["status"] == "ok"]
    for family in FAMILIES:
        bare = [row for row in measured if f"{family}_p99" not in row.cells]
        some = [any(name.startswith(f"{family}_") for name in row.cells) for row in bare]
        without = tuple(row.run.place for row, has in zip(bare, some, strict=True) if has)
        lacking.setdefault(without, []).append(f"{family}_p99")
        if family != "itl":
            none = tuple(row.run.place for row, has in zip(bare, some, strict=True) if not has)
            lacking.setdefault(none, []).append(f"any {family}")
    for places, what in lacking.items():
        yield from _about(f"without {', '.join(what)}", places)
    few = [row.run.place for row in measured if _few_for_p99(row)]
    yield from _about(f"p99 of fewer than {_FEW} requests, which is about their maximum", few)


def _few_for_p99(row: Row) -> bool:
    requests = row.run.requests
    has_p99 = any(name.endswith("_p99") for name in row.cells)
    return has_p99 and requests is not None and requests < _FEW


def _remarks(rows: Sequence[Row]) -> Iterator[str]:
    places: dict[str, list[str]] = {}
    for row in rows:
        for note in dict.fromkeys(row.run.notes):
            places.setdefault(note, []).append(row.run.place)
    for note, where in places.items():
        yield from _about(note, where)


def _skips(imported: Imported) -> Iterator[str]:
    if imported.skipped:
        yield f"skipped {len(imported.skipped)}:"
    places: dict[str, list[str]] = {}
    for skip in imported.skipped:
        places.setdefault(skip.reason, []).append(skip.place)
    for reason, where in places.items():
        yield f"  {_named(where)}: {reason}"


def _about(what: str, places: Sequence[str]) -> Iterator[str]:
    if places:
        yield f"  {what}: {_named(places)}"


def _named(places: Sequence[str]) -> str:
    more = f" and {len(places) - _MOST} more" if len(places) > _MOST else ""
    return f"{', '.join(places[:_MOST])}{more}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
