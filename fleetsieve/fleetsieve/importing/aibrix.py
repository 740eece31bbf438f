"""AIBrix's GPU optimizer profiles: JSON lines, one per metric of a run, in seconds.

Its `TPOT` pools the gaps between chunks of all requests, which is ITL here; only the mean of that
is a TPOT too, weighted by tokens.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fleetsieve.importing.document import Document
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.source import Source

_FAMILIES = {"E2E": "e2e", "TTFT": "ttft", "TPOT": "itl"}
_IDENTITY = ("input_tokens", "output_tokens", "request_rate", "seed", "model", "samples")


def is_line(record: Mapping[str, Any]) -> bool:
    """Whether this is a line of a profile."""
    return {"input_tokens", "output_tokens", "request_rate", "metric", "mean"} <= record.keys()


def lines(document: Document) -> Iterator[Reading]:
    """The runs of a file; a metric that comes again begins another run."""
    group: list[Source] = []
    for number, record in enumerate(document.records):
        source = Source(document.place(number), record)
        if group and not _continues(group, source):
            yield partial(_run, group)
            group = []
        group.append(source)
    yield partial(_run, group)


def _continues(group: list[Source], source: Source) -> bool:
    first, seen = group[0].data, [other.data["metric"] for other in group]
    same = all(repr(first.get(name)) == repr(source.data.get(name)) for name in _IDENTITY)
    return same and source.data["metric"] not in seen


def _run(group: list[Source]) -> Run:
    run = _begun(group[0])
    for source in group:
        _add(run, source.text("metric") or "", source)
    return run


def _begun(source: Source) -> Run:
    lengths = [source.whole(name) for name in ("input_tokens", "output_tokens")]
    run = Run(source.place)
    if all(lengths):
        run.names["workload"] = "x".join(map(str, lengths))
    run.requests = source.whole("samples")
    rate = source.number("request_rate")
    if rate and math.isfinite(rate):
        run.load = ("rate", rate)
    elif rate:
        run.no_load = "request_rate is inf: all at once is no level"
    return run


def _add(run: Run, metric: str, source: Source) -> None:
    if metric == "TPUT":
        run.throughput = source.finite("mean")
    family = _FAMILIES.get(metric)
    if family is not None:
        found = source.statistics()
        run.put_all(family, found, 1.0)
        if family == "itl":
            run.put("tpot", "mean", found.get("mean"))
    run.notes += source.notes
