"""Exports of AIPerf and its predecessor genai-perf: JSON, CSV, and AIPerf's records per request.

Their `inter_token_latency` is (latency - TTFT) / (output tokens - 1) of a request: TPOT here. The
gaps between chunks are AIPerf's `inter_chunk_latency`; genai-perf has none.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fleetsieve.cell import LoadKind
from fleetsieve.importing.document import Document
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.source import Source
from fleetsieve.importing.units import in_seconds

FAMILIES = {
    "e2e": "request_latency",
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
}
_TELLING = ("input_config", "request_throughput", "request_count", *FAMILIES.values())
_LEVELS: dict[str, LoadKind] = {
    "rate": "rate",
    "request_rate": "rate",
    "concurrency": "concurrency",
}
_OPTIONS: dict[LoadKind, re.Pattern[str]] = {
    "rate": re.compile(r"--request-rate[= ]'?([0-9.]+)"),
    "concurrency": re.compile(r"--concurrency[= ]'?([0-9]+)"),
}
_NAME_AND_UNIT = re.compile(r"(.+?)(?: \(([^()]+)\))?")


def is_export(record: Mapping[str, Any]) -> bool:
    """Whether this is the JSON export of a run."""
    return sum(isinstance(record.get(name), Mapping) for name in _TELLING) >= 2


def exports(document: Document) -> Iterator[Reading]:
    """The runs of a JSON export."""
    for number, record in enumerate(document.records):
        yield partial(_export, Source(document.place(number), record))


def _export(source: Source) -> Run:
    run = _run(source)
    _set_load(run, source)
    return run


def is_table(document: Document) -> bool:
    """Whether this is a CSV export."""
    return bool(document.table) and document.table[0][:2] == ("Metric", "avg")


def table(document: Document) -> Iterator[Reading]:
    """The run of a CSV export, which states no load."""
    yield partial(_table, document)


def _table(document: Document) -> Run:
    metrics: dict[str, Any] = {}
    header: tuple[str, ...] = ()
    for row in document.table:
        if not row or not row[0]:
            header = ()
        elif not header:
            header = row
        elif header[0] == "Metric":  # a table of GPUs may follow
            match = _NAME_AND_UNIT.fullmatch(row[0])
            name, unit = (match[1], match[2]) if match else (row[0], None)
            cells = dict(zip(header[1:], row[1:], strict=False))
            metrics[_plain(name)] = {
                "unit": unit,
                **cells,
                "avg": cells.get("avg", cells.get("Value")),
            }
    run = _run(Source(str(document.path), metrics))
    run.no_load = "the CSV states no load: import the JSON beside it, or say it with --set"
    return run


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _run(source: Source) -> Run:
    run = Run(source.place, notes=source.notes)
    run.throughput = source.at("request_throughput").finite("avg")
    run.requests = source.at("request_count").whole("avg")
    run.failed = _failed(source, run.requests)
    run.seconds = _time(source, "benchmark_duration", "avg")
    for family, name in FAMILIES.items():
        scale = _scale(source, name)
        run.put_all(family, source.at(name).statistics(), scale)
    if source.data.get("was_cancelled") is True or source.data.get("is_complete") is False:
        run.notes.append("the run did not complete")
    return run


def _failed(source: Source, completed: int | None) -> int | None:
    failed = source.at("error_request_count").whole("avg")
    ended = source.at("completed_request_count").whole("avg")
    if failed is None and ended is not None and completed is not None:
        return max(ended - completed, 0)
    return failed


def _scale(source: Source, name: str) -> float:
    metric = source.at(name)
    scale = in_seconds(metric.text("unit")) if metric.data else 1.0
    if scale is None:
        raise metric.error("unit", "s, ms, us or ns is needed there")
    return scale


def _time(source: Source, name: str, key: str) -> float | None:
    value = source.at(name).finite(key)
    return None if value is None else value * _scale(source, name)


def _set_load(run: Run, source: Source) -> None:
    """From the phase that was measured, else from older places, else from the command."""
    config = source.at("input_config")
    for place in (*_measured(config), config.at("loadgen"), config, _stimulus(config)):
        for key, kind in _LEVELS.items():
            level = _level(place, key)
            if level:
                run.load = (kind, level)
                return
    command = source.at("run_info").text("cli_command") or config.text("cli_command") or ""
    for kind, option in _OPTIONS.items():
        match = option.search(command)
        if match:
            run.load = (kind, float(match[1]))
            return


def _measured(config: Source) -> list[Source]:
    phases = config.each("phases")
    return [phase for phase in phases if phase.text("kind") in (None, "profiling")]


def _stimulus(config: Source) -> Source:
    return config.at("perf_analyzer").at("stimulus")


def _level(place: Source, key: str) -> float | None:
    """A level; genai-perf writes a list of one."""
    value = place.data.get(key)
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    if isinstance(value, Mapping):
        return None
    return Source(place.place, {key: value}, place.notes, place.prefix).finite(key)
