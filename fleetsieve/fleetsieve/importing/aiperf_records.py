"""AIPerf's `profile_export.jsonl`, a record per request: all there is when every request failed."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fleetsieve.importing.aiperf import FAMILIES
from fleetsieve.importing.document import Document
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.sample import statistics
from fleetsieve.importing.source import Source
from fleetsieve.importing.units import in_seconds


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether this is the record of a request."""
    metadata = record.get("metadata")
    return isinstance(metadata, Mapping) and "request_start_ns" in metadata and "metrics" in record


def records(document: Document) -> Iterator[Reading]:
    """The run that a file's records are of."""
    yield partial(_run, document)


def _run(document: Document) -> Run:
    sources = [Source(document.place(i), record) for i, record in enumerate(document.records)]
    measured = [s for s in sources if s.at("metadata").text("benchmark_phase") != "warmup"]
    ended = [s for s in measured if s.at("metadata").data.get("was_cancelled") is not True]
    good = [s for s in ended if "error" not in s]
    run = Run(str(document.path), exact=True)
    run.no_load = "the records state no load: import the JSON beside them, or say it with --set"
    run.requests, run.failed = len(good), len(ended) - len(good)
    run.seconds = _span(ended)
    if len(sources) > len(ended):
        left_out = len(sources) - len(ended)
        run.notes.append(f"{left_out} records of warm-up or cancelled requests are left out")
    for family, name in FAMILIES.items():
        for statistic, value in statistics(_values(good, name), run.failed):
            run.put(family, statistic, value)
    return run


def _span(sources: Sequence[Source]) -> float | None:
    starts = [source.at("metadata").finite("request_start_ns") for source in sources]
    ends = [source.at("metadata").finite("request_end_ns") for source in sources]
    first, last = (sorted(t for t in times if t is not None) for times in (starts, ends))
    return (last[-1] - first[0]) / 1e9 if first and last and last[-1] > first[0] else None


def _values(sources: Sequence[Source], name: str) -> list[float]:
    """The values of a metric in seconds; one of gaps has a list per request."""
    found: list[float] = []
    for source in sources:
        metric = source.at("metrics").at(name)
        if not metric.data:
            continue
        scale = in_seconds(metric.text("unit"))
        if scale is None:
            raise metric.error("unit", "s, ms, us or ns is needed there")
        value = metric.data.get("value")
        listed = value if isinstance(value, list) else [value]
        numbers = (Source(metric.place, {name: item}).finite(name) for item in listed)
        found += [number * scale for number in numbers if number is not None]
    return found
