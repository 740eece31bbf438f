"""The CSV of GuideLLM: three header lines, a row per benchmark."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from fleetsieve.importing.document import Document
from fleetsieve.importing.guidellm import set_load
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.source import Source, of_row

_HEADERS = 3
_STRATEGY = re.compile(r"(\w+)(?:@(.+))?")
_LISTED = ("min", "p0.1", "p1", "p5", "p10", "p25", "p75", "p90", "p95", "p99", "max")
_FAMILIES = {
    "e2e": ("Request Latency", "Successful Sec", 1.0),
    "ttft": ("Time to First Token", "Successful ms", 1e-3),
    "tpot": ("Inter Token Latency", "Successful ms", 1e-3),
}


def is_table(document: Document) -> bool:
    """Whether this is such a file."""
    head = document.table[:_HEADERS]
    return len(head) == _HEADERS and "Request Counts" in head[0] and "Strategy" in head[1]


def table(document: Document) -> Iterator[Reading]:
    """The runs of a file."""
    columns = [
        " / ".join(part for part in parts if part)
        for parts in zip(*document.table[:_HEADERS], strict=False)
    ]
    for number, row in enumerate(filter(any, document.table[_HEADERS:]), start=_HEADERS + 1):
        yield partial(_row, f"{document.path}, row {number}", columns, row)


def _row(place: str, columns: Sequence[str], row: Sequence[str]) -> Run:
    source = of_row(place, columns, row)
    run = Run(source.place, notes=source.notes)
    match = _STRATEGY.fullmatch(source.text("Benchmark / Strategy") or "")
    if match:
        level = Source(source.place, {"Strategy": match[2]}).number("Strategy")
        set_load(run, match[1], level, level)
    run.requests = source.whole("Request Counts / Successful")
    run.failed = source.whole("Request Counts / Errored")
    run.seconds = source.finite("Timings / Duration / Sec") or source.finite("Timings / Duration")
    run.throughput = source.finite("Server Throughput / Successful Requests/Sec / Mean")
    for family, (group, unit, scale) in _FAMILIES.items():
        name = f"{group} / {unit}"
        for key in ("Mean", "Median"):
            value = source.number(f"{name} / {key}")
            run.put(family, key, None if value is None else value * scale)
        run.put_all(family, _percentiles(source, f"{name} / Percentiles"), scale)
    return run


def _percentiles(source: Source, key: str) -> dict[str, float]:
    """Of a cell with a list: the median has a column of its own."""
    text = source.text(key)
    if text is None:
        return {}
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or len(values) != len(_LISTED):
        raise source.error(key, f"a list of {len(_LISTED)} numbers is needed there")
    named: dict[str, Any] = dict(zip(_LISTED, values, strict=True))
    return Source(source.place, named, source.notes, f"{key}.").statistics()
