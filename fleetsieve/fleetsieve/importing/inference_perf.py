"""Lifecycle reports of inference-perf, in seconds: one per stage, and a summary of all.

`time_per_output_token` there is from the first to the last token over the tokens between, as here,
`inter_token_latency` the gap between two; `normalized_time_per_output_token` includes the TTFT.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fleetsieve.importing.document import Document
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.source import Source

FAMILIES = {
    "e2e": "request_latency",
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "itl": "inter_token_latency",
}


def is_stage(record: Mapping[str, Any]) -> bool:
    """Whether this is the report of a stage, which says what its load was."""
    load = record.get("load_summary")
    return is_report(record) and isinstance(load, Mapping) and (
        load.get("requested_rate") is not None or load.get("concurrency") is not None
    )  # fmt: skip


def is_report(record: Mapping[str, Any]) -> bool:
    """Whether this is a report at all."""
    return {"load_summary", "successes", "failures"} <= record.keys()


def reports(document: Document) -> Iterator[Reading]:
    """The runs of a file."""
    for number, record in enumerate(document.records):
        yield partial(_report, Source(document.place(number), record))


def _report(source: Source) -> Run:
    load, successes = source.at("load_summary"), source.at("successes")
    run = Run(source.place, notes=source.notes)
    run.no_load = "a summary of all stages has no load of its own; import the stages"
    rate, concurrency = load.finite("requested_rate"), load.finite("concurrency")
    if concurrency:
        run.load = ("concurrency", concurrency)
    elif rate:
        run.load, run.sent = ("rate", rate), load.finite("achieved_rate")
    run.requests = successes.whole("count")
    run.failed = source.at("failures").whole("count")
    run.seconds = source.finite("benchmark_time_seconds")
    run.throughput = successes.at("throughput").finite("requests_per_sec")
    latency = successes.at("latency")
    for family, name in FAMILIES.items():
        run.put_all(family, latency.at(name).statistics(), 1.0)
    return run
