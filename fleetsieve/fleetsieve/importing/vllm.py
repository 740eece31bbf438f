"""Results of vLLM's `bench serve` and `bench sweep`, and of their forks: trtllm-serve, SGLang.

TPOT there is (latency - TTFT) / (output tokens - 1) of a request, as here; ITL is the gap between
two chunks.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fleetsieve.grid import RESERVED
from fleetsieve.importing.document import Document
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.sample import statistics
from fleetsieve.importing.source import Source, of_row

_STATISTIC = re.compile(r"(mean|median|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
_FROM_DUE = "_including_client_queue"
_SERVER = re.compile(r"SERVE--(.+?)(?:-(?:BENCH|WL)--.*)?")
_DEGREES = {
    "tp": ("tensor_parallel_size", "tp_size", "tp"),
    "pp": ("pipeline_parallel_size", "pp_size", "pp"),
    "dp": ("data_parallel_size", "dp_size", "dp"),
}
_KINDS = {
    "oom": re.compile(r"out of memory|outofmemory", re.IGNORECASE),
    "timeout": re.compile(r"timed out|timeout", re.IGNORECASE),
}
_MOST_OF_ERROR = 200
_STATED = ("request_rate", "max_concurrency", "num_prompts")
_DISAGREE = 0.01


def is_result(record: Mapping[str, Any]) -> bool:
    """Whether this is the result of a run."""
    return {"completed", "duration", "request_throughput"} <= record.keys()


def is_failure(record: Mapping[str, Any]) -> bool:
    """Whether this is what a sweep writes of a run, or of a server, that failed."""
    return {"error", "error_type", "serve_overrides"} <= record.keys()


def results(document: Document) -> Iterator[Reading]:
    """The runs of a result file, an appended one, or a summary."""
    for number, record in enumerate(document.records):
        yield partial(_result, document.path, Source(document.place(number), record))


def is_summary_table(document: Document) -> bool:
    """Whether this is a sweep's `summary.csv`."""
    return bool(document.table) and is_result(dict.fromkeys(document.table[0]))


def summary_table(document: Document) -> Iterator[Reading]:
    """The runs of a sweep's `summary.csv`."""
    header, *rows = document.table
    for number, row in enumerate(filter(any, rows), start=2):
        yield partial(_of_row, document.path, number, header, row)


def _of_row(path: Path, number: int, header: Sequence[str], row: Sequence[str]) -> Run:
    return _result(path, of_row(f"{path}, row {number}", header, row))


def failures(document: Document) -> Iterator[Reading]:
    """The runs that a sweep says have failed."""
    for number, record in enumerate(document.records):
        yield partial(_failure, document.path, Source(document.place(number), record))


def _failure(path: Path, source: Source) -> Run:
    error = f"{source.data['error_type']}: {source.data['error']}"[:_MOST_OF_ERROR]
    run = Run(source.place, names=_server(path))
    run.names |= _features(source.at("serve_overrides").data)
    run.status = _kind(f"{source.data['error_type']}: {source.data['error']}")
    run.notes.append(f"failed: {error}")
    if "bench_overrides" in source:
        _set_load(run, source.at("bench_overrides"))
    else:
        run.no_load = f"the server did not start, so that there is no load: {error}"
    run.cost_free = True  # what it cost is not written, and no benchmark ran
    return run


def _kind(error: str) -> str:
    return next((kind for kind, words in _KINDS.items() if words.search(error)), "error")


def _result(path: Path, source: Source) -> Run:
    run = Run(source.place, names=_server(path) | _swept(source.data), notes=source.notes)
    run.requests, run.seconds = source.whole("completed"), source.finite("duration")
    run.failed = _failed(source, run.requests)
    _set_throughput(run, source)
    _set_load(run, source)
    if source.data.get("run_number") in (-1, "-1"):
        run.load, run.no_load = None, "a warm-up is no measurement"
    for name in sorted(source.data, key=lambda name: _FROM_DUE in name):  # those last: they win
        match = _STATISTIC.fullmatch(name.replace(_FROM_DUE, ""))
        value = source.number(name) if match else None
        if match and value is not None:
            run.put("e2e" if match[2].startswith("e2e") else match[2], match[1], value / 1000)
    if not any(name.startswith("e2e_") for name in run.latencies):
        for name, value in statistics(_latencies(source, run.failed)):
            run.put("e2e", name, value)
    if source.number("burstiness") not in (None, 1.0):
        run.notes.append(f"burstiness is {source.data['burstiness']}: another workload than with 1")
    return run


def _latencies(source: Source, failed: int | None) -> list[float]:
    """End-to-end latencies of the requests that completed, which are there without statistics."""
    listed = source.data.get("latencies") or source.data.get("e2els")
    if not isinstance(listed, list):
        return []
    errors = source.data.get("errors")
    if isinstance(errors, list) and len(errors) == len(listed):
        listed = [value for value, error in zip(listed, errors, strict=True) if not error]
    elif failed != 0:  # those of failed requests cannot be told from the others
        return []
    values = [Source(source.place, {"latencies": value}).finite("latencies") for value in listed]
    return [value for value in values if value is not None]


def _failed(source: Source, completed: int | None) -> int | None:
    """How many failed; files of before October 2025 do not count them."""
    failed, asked = source.whole("failed"), source.whole("num_prompts")
    if failed is not None or asked is None or completed is None:
        return failed
    if completed > asked:
        raise source.error("completed", f"at most num_prompts, {asked}, can complete")
    return asked - completed


def _set_throughput(run: Run, source: Source) -> None:
    """Completed requests over the duration, which is what the tools' own figure is."""
    stated = source.finite("request_throughput")
    run.throughput = run.requests / run.seconds if run.requests and run.seconds else stated
    if stated and run.throughput and abs(stated / run.throughput - 1) > _DISAGREE:
        run.notes.append(
            f"request_throughput is {stated:g}, completed / duration {run.throughput:.4g}: "
            "the latter is taken"
        )


def _set_load(run: Run, source: Source) -> None:
    rate, most = source.number("request_rate"), source.number("max_concurrency")
    if "ramp_up_strategy" in source:
        run.no_load = "its rate was ramped up, which is no level"
    elif rate and math.isfinite(rate):
        run.load = ("rate", rate)
        held_back = most is not None and (source.number("max_concurrent_requests") or 0) >= most
        if held_back and not any(_FROM_DUE in name for name in source.data):
            run.notes.append("max_concurrency held requests back: latencies leave that wait out")
    elif most and math.isfinite(most):
        run.load = ("concurrency", most)
    elif rate:
        run.no_load = "request_rate is inf without max_concurrency: all at once is no level"


def _server(path: Path) -> dict[str, Any]:
    """The config, from the name that a sweep gives the folder of a server's settings."""
    matches = (
        _SERVER.fullmatch(part.removesuffix("-failure.json")) for part in path.absolute().parts
    )
    return next(({"config": match[1]} for match in matches if match), {})


def _swept(record: Mapping[str, Any]) -> dict[str, Any]:
    """Degrees of parallelism wherever they stand, and all that a sweep wrote last: its settings."""
    keys = list(record)
    last = keys[keys.index("run_number") + 1 :] if "run_number" in record else []
    degrees = {name for names in _DEGREES.values() for name in names}
    named = {key: value for key, value in record.items() if _plain(key) in degrees}
    return _features({key: record[key] for key in last if not key.startswith("_")} | named)


def _features(settings: Mapping[str, Any]) -> dict[str, Any]:
    plain = {
        _plain(key): value
        for key, value in settings.items()
        if isinstance(value, str | int | float) and value != "" and _is_feature(_plain(key))
    }
    for short, names in _DEGREES.items():
        found = [plain.pop(name) for name in names if name in plain]
        plain |= {short: found[0]} if found else {}
    return plain


def _is_feature(name: str) -> bool:
    """Whether a setting can be a column of its own, and is not already in another."""
    return name.isidentifier() and name not in (*RESERVED, *_STATED)


def _plain(key: str) -> str:
    return key.lstrip("-").replace("-", "_")
