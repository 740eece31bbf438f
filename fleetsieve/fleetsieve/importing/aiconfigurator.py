"""Predictions of NVIDIA's AIConfigurator as CSV: means in milliseconds, at no GPU time.

Two sets of columns: its own, of `pareto.csv` and `best_config_topn.csv`, and one of sweeps with a
status. TPOT is (latency - TTFT) / (output tokens - 1), as here.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from fleetsieve.importing.document import Document
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.source import Source, of_row

_LATENCIES = {
    "e2e": ("request_latency_ms", "request_latency"),
    "ttft": ("ttft_ms", "ttft"),
    "tpot": ("tpot_ms", "tpot"),
}
_THROUGHPUT = ("seq_per_s_per_replica", "seq/s")
_DEGREES = ("tp", "pp", "dp", "moe_tp", "moe_ep")
# Columns by which rows of one file may be configs of their own.
_PARTS = ("model", "system", "backend", "version", "gemm", "kvcache", "fmha", "moe", "comm")
_NOT_FITTING = ("oom", "kv_overflow")


def is_table(document: Document) -> bool:
    """Whether this is such a file."""
    columns = set(document.table[0]) if document.table else set()
    return "concurrency" in columns and any(
        {ttft, tpot, throughput} <= columns
        for ttft, tpot, throughput in zip(
            _LATENCIES["ttft"], _LATENCIES["tpot"], _THROUGHPUT, strict=True
        )
    )


def table(document: Document) -> Iterator[Reading]:
    """The rows of a file."""
    header, *rows = document.table
    varying = [part for part in _PARTS if part in header and _varies(rows, header.index(part))]
    for number, row in enumerate(filter(any, rows), start=2):
        yield partial(_row, f"{document.path}, row {number}", header, row, varying)


def _varies(rows: Sequence[Sequence[str]], column: int) -> bool:
    return len({row[column] for row in rows if len(row) > column}) > 1


def _row(place: str, header: Sequence[str], row: Sequence[str], varying: Sequence[str]) -> Run:
    source = of_row(place, header, row)
    run = Run(source.place, notes=source.notes, cost_free=True, status=_status(source))
    run.names = _names(source, varying)
    concurrency = source.finite("concurrency")
    run.load = ("concurrency", concurrency) if concurrency else None
    run.throughput = _first(source, _THROUGHPUT)
    for family, names in _LATENCIES.items():
        milliseconds = _first(source, names)
        run.put(family, "mean", None if milliseconds is None else milliseconds / 1000)
    return run


def _names(source: Source, varying: Sequence[str]) -> dict[str, Any]:
    degrees = {name: source.whole(name) for name in _DEGREES}
    sizes = {name: size for name, size in degrees.items() if size and (name == "tp" or size > 1)}
    names: dict[str, Any] = dict(sizes)
    parts = [part.rsplit("/", 1)[-1] for name in varying if (part := source.text(name))]
    if sizes:
        names["config"] = "-".join([*parts, *(f"{name}{size}" for name, size in sizes.items())])
    gpus = source.whole("num_total_gpus")
    names |= {"gpus": gpus} if gpus else {}
    names |= {name: part for name in varying if (part := source.text(name))}
    workload = source.text("workload") or _shape(source)
    return names | ({"workload": workload} if workload else {})


def _shape(source: Source) -> str | None:
    lengths = [source.whole(name) for name in ("isl", "osl")]
    return "x".join(map(str, lengths)) if all(lengths) else None


def _status(source: Source) -> str:
    status = source.text("status") or "ok"
    if status in _NOT_FITTING or source.text("memory_ok") in ("0", "False", "false"):
        return "oom"
    return status


def _first(source: Source, names: Sequence[str]) -> float | None:
    return next((source.finite(name) for name in names if name in source), None)
