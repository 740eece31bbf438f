"""Reports of GuideLLM, versions 1 and 2: JSON and YAML; its CSV is in `guidellm_table`.

Its `time_per_output_token` includes the TTFT. What is TPOT here, from the first to the last token
over the tokens between, is its `inter_token_latency`, weighted by tokens; gaps it does not report.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fleetsieve.importing.document import Document
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.source import Source

FAMILIES = {
    "e2e": ("request_latency", 1.0),
    "ttft": ("time_to_first_token_ms", 1e-3),
    "tpot": ("inter_token_latency_ms", 1e-3),
}
_PERCENTILES = {
    "p001": "p0.1", "p01": "p1", "p05": "p5", "p10": "p10", "p25": "p25", "p50": "p50",
    "p75": "p75", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9",
}  # fmt: skip
_OPEN = ("constant", "poisson", "async")
_COUNTS = (
    ("metrics", "request_totals"),
    ("request_totals",),
    ("scheduler_metrics", "requests_made"),
    ("run_stats", "requests_made"),
)


def is_report(record: Mapping[str, Any]) -> bool:
    """Whether this is a report."""
    benchmarks = record.get("benchmarks")
    return isinstance(benchmarks, list) and all(
        isinstance(item, Mapping) and "metrics" in item for item in benchmarks
    )


def report(document: Document) -> Iterator[Reading]:
    """The runs of a report."""
    for number, record in enumerate(document.records):
        source = Source(document.place(number), record)
        for benchmark in source.each("benchmarks"):
            yield partial(_benchmark, benchmark)


def set_load(run: Run, kind: str | None, rate: float | None, streams: float | None) -> None:
    """The level of a strategy, by its name and what it says of rate and concurrency."""
    if kind in _OPEN and rate and math.isfinite(rate):
        run.load = ("rate", rate)
    elif kind == "concurrent" and streams and math.isfinite(streams):
        run.load = ("concurrency", streams)
    elif kind == "synchronous":
        run.load = ("concurrency", 1.0)
    elif kind in (*_OPEN, "concurrent"):
        run.no_load = f"its strategy is {kind!r} and the file does not say of what level"
    elif kind is not None:
        run.no_load = f"its strategy is {kind!r}, which is no level of load"


def _benchmark(source: Source) -> Run:
    run = Run(f"{source.place}, {source.prefix.rstrip('.')}")
    source = Source(run.place, source.data, run.notes)
    metrics = source.at("metrics")
    _set_strategy(run, source)
    _set_counts(run, source)
    run.seconds = _duration(source)
    rates = _successful(metrics, "requests_per_second")
    run.throughput = rates.finite("mean") if rates else None
    for family, (name, scale) in FAMILIES.items():
        distribution = _successful(metrics, name)
        if distribution is not None:
            run.put_all(family, _statistics(distribution), scale)
    return run


def _set_strategy(run: Run, source: Source) -> None:
    places = [source.at(name) for name in ("config", "args", "scheduler")]
    holder = next((place for place in places if "strategy" in place), None)
    if holder is None:
        return
    name = holder.text("strategy")
    if name is not None:  # without its settings
        set_load(run, name, None, None)
        return
    strategy = holder.at("strategy")
    streams = strategy.number("streams")
    most = streams if streams is not None else strategy.number("max_concurrency")
    set_load(run, strategy.text("type_"), strategy.number("rate"), most)
    run.saturated = _over_saturated(source)


def _over_saturated(source: Source) -> bool:
    """Whether GuideLLM itself ended the run because the server fell behind."""
    state = source.at("scheduler_state").data
    ends = (state.get(f"end_{name}_constraints") for name in ("queuing", "processing"))
    return any(isinstance(end, Mapping) and "over_saturation" in end for end in ends)


def _set_counts(run: Run, source: Source) -> None:
    for way in _COUNTS:
        counts = source
        for name in way:
            counts = counts.at(name)
        if "successful" in counts:
            run.requests, run.failed = counts.whole("successful"), counts.whole("errored")
            unfinished = counts.whole("incomplete")
            if unfinished:
                run.notes.append("requests still open at the end are left out")
            return


def _duration(source: Source) -> float | None:
    seconds = source.finite("duration")
    start, end = source.finite("start_time"), source.finite("end_time")
    if seconds is None and start is not None and end is not None and end > start:
        return end - start
    return seconds


def _successful(metrics: Source, name: str) -> Source | None:
    """The distribution over successful requests; an empty one is all zeros, and none."""
    found = metrics.at(name).at("successful")
    return found if found.data and found.number("count") != 0 else None


def _statistics(distribution: Source) -> dict[str, float]:
    percentiles = distribution.at("percentiles")
    named = {name: percentiles.number(key) for key, name in _PERCENTILES.items()}
    named |= {name: distribution.number(name) for name in ("mean", "median")}
    return {name: value for name, value in named.items() if value is not None}
