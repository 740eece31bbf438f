"""Names of statistics and units, as the tools write them."""

import re

_PERCENTILE = re.compile(r"p(\d{1,3})(?:[p.](\d{1,6}))?")
_MEAN = ("mean", "avg", "average")
_SECONDS = {
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0,
    "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9,
}  # fmt: skip


def statistic_name(key: str) -> str | None:
    """`mean` or `p<number>` of mean, avg, median, P50, p99.9, p99p9; None of anything else."""
    key = key.strip().lower()
    if key in _MEAN:
        return "mean"
    match = _PERCENTILE.fullmatch("p50" if key == "median" else key)
    percent = float(f"{match[1]}.{match[2] or 0}") if match else 0.0
    return f"p{percent:g}" if 0 < percent <= 100 else None


def in_seconds(unit: str | None) -> float | None:
    """How many seconds a unit of time is, per token too; None of anything else."""
    return _SECONDS.get((unit or "").strip().lower().removesuffix("/token"))
