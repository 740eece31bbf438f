"""Offline replays of NVIDIA Dynamo: a simulation, so it costs no GPU time, like a prediction.

TPOT there is (latency - TTFT) / (output tokens - 1) of a request, as here.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fleetsieve.importing.document import Document
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.source import Source

_STATISTIC = re.compile(r"(mean|median|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2e)(?:_latency)?_ms")


def is_replay(record: Mapping[str, Any]) -> bool:
    """Whether this is the result of a replay."""
    summary = record.get("summary")
    needed = {"completed_requests", "request_throughput_rps"}
    return isinstance(summary, Mapping) and needed <= summary.keys()


def replays(document: Document) -> Iterator[Reading]:
    """The runs of a file."""
    for number, record in enumerate(document.records):
        yield partial(_replay, Source(document.place(number), record).at("summary"))


def _replay(summary: Source) -> Run:
    run = Run(summary.place, notes=summary.notes, cost_free=True)
    run.no_load = "a replay states no load: say its rate or concurrency with --set"
    run.requests, asked = summary.whole("completed_requests"), summary.whole("num_requests")
    if asked is not None and run.requests is not None:
        run.failed = max(asked - run.requests, 0)
    duration = summary.finite("duration_ms")
    run.seconds = None if duration is None else duration / 1000
    run.throughput = summary.finite("request_throughput_rps")
    for name in summary.data:
        match = _STATISTIC.fullmatch(name)
        value = summary.number(name) if match else None
        if match and value is not None:
            run.put(match[2], match[1], value / 1000)
    return run
