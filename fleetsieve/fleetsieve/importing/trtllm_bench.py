"""Reports of `trtllm-bench throughput` and `latency` (`--report_json`).

TPOT there is (latency - TTFT) / (output tokens - 1) of a request, as here; there is no ITL, and
without `--streaming` neither TTFT nor TPOT.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fleetsieve.importing.document import Document
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.source import Source


def is_result(record: Mapping[str, Any]) -> bool:
    """Whether this is such a report."""
    return {"world_info", "request_info", "performance"} <= record.keys()


def results(document: Document) -> Iterator[Reading]:
    """The runs of a file."""
    for number, record in enumerate(document.records):
        yield partial(_result, Source(document.place(number), record))


def _result(source: Source) -> Run:
    performance, streaming = source.at("performance"), source.at("streaming_metrics")
    run = Run(source.place, names=_world(source.at("world_info")), notes=source.notes)
    run.no_load = (
        "trtllm-bench writes no load: say what --concurrency was with --set concurrency=N "
        "(without it all requests come at once, which is no level)"
    )
    run.requests = source.at("request_info").whole("num_requests")
    total = performance.finite("total_latency_ms")
    run.seconds = None if total is None else total / 1000
    run.throughput = performance.finite("request_throughput_req_s")
    for family, where, mean, percentiles in (
        ("e2e", performance, "avg_request_latency_ms", "request_latency_percentiles_ms"),
        ("ttft", streaming, "avg_ttft_ms", "ttft_percentiles"),
        ("tpot", streaming, "avg_tpot_ms", "tpot_percentiles"),
    ):
        run.put_all(family, where.at(percentiles).statistics(), 1e-3)
        average = where.number(mean)
        run.put(family, "mean", None if average is None else average / 1000)
    return run


def _world(world: Source) -> dict[str, Any]:
    sizes = {"gpus": "world_size", "tp": "tp_size", "pp": "pp_size", "ep": "ep_size"}
    found = {name: world.whole(size) for name, size in sizes.items()}
    always = ("gpus", "tp")
    return {n: size for n, size in found.items() if size and (n in always or size > 1)}
