"""The outcome of a benchmark: measured, or failed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FailureKind = Literal["oom", "unhealthy", "timeout", "error"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A benchmark that ran.

    Attributes:
        values: "throughput" in completed requests/s and latency statistics (METRIC_STAT) in
            seconds; a percentile may be inf; what was not measured is absent.
        se: standard errors, in the unit of their value; an absent one means exact.
        gpu_seconds: what the benchmark cost.
        saturated: whether the replica could not keep up with the load.
        requests: completed requests that the statistics rest on, where known.
        summary: how it was measured and what else was seen, as plain JSON values.
    """

    values: Mapping[str, float]
    se: Mapping[str, float] = field(default_factory=dict)
    gpu_seconds: float
    saturated: bool = False
    requests: int | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A benchmark that gave no numbers: why, in a kind and in words, and what it cost.

    `summary` is as that of `Measured`, with the last log lines of a server that failed.
    """

    kind: FailureKind
    gpu_seconds: float
    reason: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)


Outcome = Measured | Failed
