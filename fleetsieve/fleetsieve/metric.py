"""Names of latency statistics, METRIC_STAT: which exist and how they are ordered."""

import re

from fleetsieve.nearest import close_to

FAMILIES = ("e2e", "tpot", "itl", "ttft")
ACCEPTED = "(ttft|tpot|itl|e2e)_(mean|p<number>) with a number above 0 and at most 100"
_NAME = re.compile(r"(ttft|tpot|itl|e2e)_(?:mean|p(\d+(?:\.\d+)?))")


def is_metric(name: str) -> bool:
    """Whether `name` is a latency statistic such as e2e_mean or ttft_p99.9."""
    match = _NAME.fullmatch(name)
    return match is not None and (match[2] is None or 0 < float(match[2]) <= 100)


def meant(name: str) -> str:
    """The usual statistic that a wrong `name` is nearest to, as a question in brackets, or ""."""
    usual = [f"{f}_{s}" for f in FAMILIES for s in ("mean", "p50", "p90", "p95", "p99")]
    close = close_to(name, usual)
    return f" ({close})" if close else ""


def order(name: str) -> tuple[int, float]:
    """Sort key of a metric: e2e, tpot, itl, ttft; in each the mean, then percentiles upwards."""
    family, statistic = name.split("_", 1)
    return FAMILIES.index(family), 0.0 if statistic == "mean" else float(statistic[1:])
