"""Latency metrics of requests, and the statistics METRIC_STAT over them."""

import math
from collections.abc import Sequence

import numpy as np

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.percentiles import Statistic, mean, needed, percentile
from fleetsieve_measure.record import Record

METRICS = ("ttft", "tpot", "itl", "e2e")


def parse(name: str) -> tuple[str, float | None]:
    """Metric and percent of METRIC_STAT; the percent of a mean is None.

    Raises:
        InputError: it is none.
    """
    metric, _, stat = name.partition("_")
    try:
        percent = None if stat == "mean" else float(stat.removeprefix("p"))
    except ValueError:
        percent = math.nan
    plain = stat == "mean" or stat.startswith("p")
    if metric not in METRICS or not plain or not (percent is None or 0 < percent <= 100):
        raise InputError(f"metric {name!r} is unknown; give (ttft, tpot, itl or e2e)_(mean or pN)")
    return metric, percent


def percent_of(name: str) -> float | None:
    """The percent of a percentile over requests; None of a mean, or of gaps between tokens."""
    metric, percent = parse(name)
    return None if metric == "itl" else percent


def latency(name: str, record: Record) -> float | None:
    """The latency of one request in seconds; None where it failed or has none.

    One that went well and brought no token is late for ever with its first token and the rest.
    """
    metric = name.partition("_")[0]
    if metric in ("ttft", "tpot") and record.ok and record.first is None:
        return math.inf
    value: float | None = getattr(record, metric)
    return value


def requests_needed(names: Sequence[str]) -> int:
    """How many requests bound all of these statistics above with 95 % confidence."""
    percents = [percent for name in names if (percent := percent_of(name)) is not None]
    return max(map(needed, percents), default=1)


def statistic(name: str, records: Sequence[Record]) -> Statistic | None:
    """METRIC_STAT over requests that have ended; None where no request has the metric.

    A failed request is infinitely late. Requests of which the metric is not defined, such as the
    TPOT of a single token, are left out; so is ITL altogether where one reply hides its gaps.
    """
    metric, percent = parse(name)
    if metric == "itl":
        return _of_gaps(percent, records)
    failures = sum(not record.ok for record in records)
    seen = [value for r in records if r.ok and (value := latency(name, r)) is not None]
    values = np.array([value for value in seen if math.isfinite(value)])
    return _summary(values, failures + len(seen) - len(values), percent)


def _of_gaps(percent: float | None, records: Sequence[Record]) -> Statistic | None:
    gaps: list[float] = []
    failures = 0
    for record in records:
        if not record.ok:
            failures += max((record.output_tokens or 1) - 1, 1)
            continue
        own = record.itl
        if own is None and (record.tokens or 0) > 1:
            return None
        gaps += own or []
    found = _summary(np.array(gaps), failures, percent)
    if found is None:
        return None
    # Gaps of one request resemble each other, so that it says little more than a single gap.
    alike = math.sqrt(max(found.count / max(len(records), 1), 1.0))
    return Statistic(
        found.value, found.low, found.high, found.log_se * alike, len(records), found.bounded
    )


def _summary(values: np.ndarray, failures: int, percent: float | None) -> Statistic | None:
    if not len(values) and not failures:
        return None
    return mean(values, failures) if percent is None else percentile(values, failures, percent)
