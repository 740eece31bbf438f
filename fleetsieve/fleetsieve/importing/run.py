"""One benchmark run as a tool's file tells it, and what it means as a row of a grid."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetsieve.cell import LoadKind
from fleetsieve.importing.units import statistic_name

# A run that completed less than this share of what was offered did not keep up.
KEPT_UP = 0.9


@dataclass
class Run:
    """A run in the grid's units: seconds, requests/s.

    Attributes:
        place: file, and record in it, for errors.
        names: what the file says of workload, config, GPUs and features.
        load: the level, where the file states one.
        no_load: why it does not.
        requests, failed: how many completed and how many failed.
        sent: requests/s that the client managed to send, where the tool tells.
        status: of the row; "ok" still becomes "error" where nothing completed.
        saturated: whether the tool itself says so.
        cost_free: a prediction, which took no GPU time.
        exact: whether failed requests are in the latencies already, as late for ever.
        latencies: METRIC_STAT in seconds over the requests that completed.
        notes: what a reader of the summary should know.
    """

    place: str
    names: dict[str, Any] = field(default_factory=dict)
    load: tuple[LoadKind, float] | None = None
    no_load: str = "the file states no load"
    requests: int | None = None
    failed: int | None = None
    seconds: float | None = None
    throughput: float | None = None
    sent: float | None = None
    status: str = "ok"
    saturated: bool = False
    cost_free: bool = False
    exact: bool = False
    latencies: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, family: str, key: str, seconds: float | None) -> None:
        """Take a statistic by the tool's name for it; other names, and None, say nothing."""
        name = statistic_name(key)
        if name is None or seconds is None:
            return
        self.latencies[f"{family}_{name}"] = seconds

    def put_all(self, family: str, statistics: Mapping[str, float], scale: float) -> None:
        """Take what of `statistics`, in a unit of `scale` seconds, is a mean or a percentile."""
        for key, value in statistics.items():
            self.put(family, key, value * scale)


Reading = Callable[[], Run]
"""Reads a run; one that is wrong in a file does not keep the others from being read."""


def cells(run: Run) -> dict[str, Any]:
    """The row of a run, without what only the user can say.

    A failed request is late for ever, as when FleetSieve measures itself: the tools' latencies are
    of those that completed, so that a percentile that failures reach is infinite, as is a mean.
    """
    row = dict(run.names)
    if run.load is not None:
        row[run.load[0]] = run.load[1]
    row |= {"requests": run.requests, "failed": run.failed, "seconds": _seconds(run)}
    row["gpu_seconds"] = 0 if run.cost_free else None
    nothing = run.requests == 0 or (run.requests is None and run.throughput == 0)
    row["status"] = "error" if run.status == "ok" and nothing else run.status
    if row["status"] == "ok":
        row["throughput"] = _throughput(run)
        zeros = [name for name, value in run.latencies.items() if value == 0]
        row |= {name: _of_all(run, name) for name in run.latencies if name not in zeros}
        row["saturated"] = run.saturated
        if zeros:  # which is how tools write what they lack
            run.notes.append(f"left empty, since no latency is 0: {', '.join(zeros)}")
    return {name: value for name, value in row.items() if value is not None}


def fell_behind(row: Mapping[str, Any], sent: float | None) -> bool:
    """Whether clearly fewer requests were completed, or sent, than `rate` says."""
    try:
        rate, throughput = float(row["rate"]), float(row["throughput"])
    except (KeyError, ValueError, TypeError):
        return False
    return min(throughput, math.inf if sent is None else sent) < KEPT_UP * rate


def _throughput(run: Run) -> float | None:
    if not run.throughput and run.requests is not None and run.seconds:
        return run.requests / run.seconds  # a table of two decimals has 0.00
    return run.throughput


def _seconds(run: Run) -> float | None:
    if run.seconds is None and run.requests and run.throughput:
        return run.requests / run.throughput
    return run.seconds


def _of_all(run: Run, name: str) -> float:
    """A latency statistic over all requests; by nearest rank the failed ones come last."""
    if run.exact or not run.failed or run.requests is None:
        return run.latencies[name]
    statistic = name.split("_", 1)[1]
    rank = 1.0 if statistic == "mean" else float(statistic[1:]) / 100
    total = run.requests + run.failed
    reached = math.ceil(rank * total - 1e-9) > run.requests
    return math.inf if reached else run.latencies[name]
