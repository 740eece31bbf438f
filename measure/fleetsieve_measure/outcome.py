"""What a run amounts to: numbers that can be trusted, or why there are none."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fleetsieve_measure.client import ABORTED
from fleetsieve_measure.load import ClosedLoop, Load, OpenLoop
from fleetsieve_measure.metrics import METRICS, latency, statistic
from fleetsieve_measure.percentiles import Statistic
from fleetsieve_measure.record import Record
from fleetsieve_measure.results import Failed, Measured, Outcome
from fleetsieve_measure.trial import GONE, SERVES_NOBODY, Rules, Sample
from fleetsieve_measure.verdict import overloaded

STANDARD = tuple(f"{m}_{s}" for m in METRICS for s in ("mean", "p50", "p90", "p95", "p99"))
# A client that sleeps this much too long, or that finds this many chunks in a read, was starved.
_MOST_LATE, _MOST_CHUNKS = 0.05, 8.0
# Lengths that the server reports may differ from those asked for by this share.
_LENGTH_ERROR = 0.05
_BATCHES = 10


@dataclass(frozen=True)
class Verdict:
    """An outcome, and whether the client spoilt it, so that the run has to be repeated."""

    outcome: Outcome
    spoilt: bool = False


def outcome_of(sample: Sample, load: Load, rules: Rules, gpu_seconds: float) -> Verdict:
    """The numbers of a run, unless something makes them worthless.

    A failed request is late for ever in every latency and is not in the throughput. Requests that
    were cut off because the run was decided early count as late as they were by then.
    """
    measured = sample.measured
    summary = _conditions(sample, load, rules)
    good = [record for record in measured if record.ok]
    starved = _starved(sample)
    if starved is not None and not sample.overload and sample.early != GONE:
        reason = f"the client was starved: {starved}"
        return Verdict(_failed(reason, gpu_seconds, summary), spoilt=True)
    why = _no_numbers(sample, rules)
    if why is not None:
        return Verdict(_failed(why, gpu_seconds, summary))
    wrong = _wrong_lengths(good)
    if wrong is not None:
        return Verdict(_failed(wrong, gpu_seconds, summary))
    overload = sample.overload or (
        isinstance(load, OpenLoop) and overloaded(sample.records, sample.start, sample.closes)
    )
    counted = [_so_far(r, sample) for r in measured] if sample.early else measured
    found = _statistics(counted, rules.slo)
    throughput, se = _throughput(sample, load, overload=overload)
    if sample.early and any(n in found and found[n].value > slo for n, slo in rules.slo.items()):
        se = math.inf  # it was not seen whether what is too late would have been served
    summary["statistics"] = {name: _plain(each) for name, each in found.items()}
    if sample.overload:
        # Latencies of a backlog that was cut off say how long it grew, not how long it will be.
        found = {}
    values = {"throughput": throughput} | {name: each.value for name, each in found.items()}
    errors = {name: _error(each, rules.slo.get(name, math.inf)) for name, each in found.items()}
    summary["enough_requests"] = all(found[n].bounded for n in rules.slo if n in found)
    summary["goodput"] = throughput * _share_within(counted, rules.slo)
    outcome = Measured(
        values=values,
        se={name: each for name, each in {"throughput": se, **errors}.items() if each},
        gpu_seconds=gpu_seconds,
        saturated=overload,
        requests=len(good),
        summary=summary,
    )
    return Verdict(outcome)


def _error(found: Statistic, limit: float) -> float | None:
    """Standard error of a statistic; inf where nothing is known of it.

    So it is with a percentile that a few failures make infinite, while it may well hold `limit`.
    """
    if math.isinf(found.value):
        return math.inf if found.low <= limit else None
    return found.se


def _failed(reason: str, gpu_seconds: float, summary: Mapping[str, Any]) -> Failed:
    return Failed(kind="error", gpu_seconds=gpu_seconds, reason=reason, summary=summary)


def _no_numbers(sample: Sample, rules: Rules) -> str | None:
    """Why nothing is known of a server that served nobody, or nobody any more."""
    error = next((r.error for r in sample.records if r.error not in (None, ABORTED)), None)
    if sample.early in (GONE, SERVES_NOBODY):
        return f"{sample.early}: {error}" if error else sample.early
    if sample.overload or any(record.ok for record in sample.measured):
        return None
    if not sample.measured:
        return "no request succeeded: none was due"
    late = sample.early or f"none ended within {rules.drain:g} s of the window"
    return f"no request succeeded: {error or late}"


def _statistics(records: Sequence[Record], slo: Mapping[str, float]) -> dict[str, Statistic]:
    names = dict.fromkeys((*slo, *STANDARD))
    found = {name: statistic(name, records) for name in names}
    return {name: each for name, each in found.items() if each is not None}


def _throughput(sample: Sample, load: Load, *, overload: bool) -> tuple[float, float | None]:
    """Completed requests/s, and its standard error; None where it is as exact as the load is.

    A server that keeps up with an open loop completes what is offered: its rate, less the share
    that failed. The rate at which this sample happened to arrive would only add noise. Requests
    that were cut off because the run was decided early neither failed nor succeeded.
    """
    if isinstance(load, OpenLoop) and not overload:
        known = [record for record in sample.measured if not _undecided(record, sample)]
        count = len(known)
        share = sum(record.ok for record in known) / count
        se = math.sqrt(share * (1 - share) / count) * load.rate
        return share * load.rate, se or None
    ends = np.array([r.end for r in sample.records if r.ok and r.end is not None])
    edges = np.linspace(sample.opens, sample.closes, _BATCHES + 1)
    if edges[-1] <= edges[0]:
        return 0.0, None
    rates = np.histogram(ends, edges)[0] / (edges[1] - edges[0])
    return float(rates.mean()), float(rates.std(ddof=1)) / math.sqrt(_BATCHES) or None


def _so_far(record: Record, sample: Sample) -> Record:
    """A request that the end of the run cut off, as if it had ended there."""
    if not _cut_off(record, sample):
        return record
    now = sample.stopped
    return replace(record, ok=True, first=record.first or now, last=now, tokens=None)


def _undecided(record: Record, sample: Sample) -> bool:
    """Whether an early end left open how the request would have ended."""
    return sample.early is not None and _cut_off(record, sample)


def _cut_off(record: Record, sample: Sample) -> bool:
    return not record.ok and record.end is not None and record.end >= sample.stopped


def _share_within(records: Sequence[Record], slo: Mapping[str, float]) -> float:
    """The share of requests of which every latency is within the limits of `slo`."""

    def within(record: Record) -> bool:
        values = [
            (latency(name, record), limit) for name, limit in slo.items() if name[:3] != "itl"
        ]
        return record.ok and all(value is None or value <= limit for value, limit in values)

    return sum(map(within, records)) / len(records) if records else 0.0


def _starved(sample: Sample) -> str | None:
    if sample.sleep_lateness > _MOST_LATE:
        return f"1 in 100 short sleeps ended {1000 * sample.sleep_lateness:.0f} ms too late"
    reads = sum(record.reads for record in sample.records)
    chunks = sum(len(record.times) for record in sample.records)
    if reads and chunks / reads > _MOST_CHUNKS:
        return f"{chunks / reads:.0f} chunks came with each read"
    return None


def _wrong_lengths(good: Sequence[Record]) -> str | None:
    for what, asked, reported in (
        ("prompts", "prompt_tokens", "prompt_reported"),
        ("outputs", "output_tokens", "tokens"),
    ):
        pairs = [(getattr(r, asked), getattr(r, reported)) for r in good]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if known and what == "outputs" and all(r.source == "chunks" for r in good):
            continue  # chunks are an estimate, too weak to refuse a run
        ratio = sum(b for _, b in known) / sum(a for a, _ in known) if known else 1.0
        if abs(ratio - 1) > _LENGTH_ERROR:
            return f"{what} had {100 * ratio:.0f} % of the tokens that were asked for"
    return None


def _conditions(sample: Sample, load: Load, rules: Rules) -> dict[str, Any]:
    """How the run went, as plain values."""
    measured = sample.measured
    lag = [r.sent - r.due for r in measured if r.sent is not None]
    lags = np.quantile(lag, [0.5, 0.99, 1.0]).tolist() if lag else [None] * 3
    failed = [r for r in measured if not r.ok and not _undecided(r, sample)]
    window = sample.closes - sample.opens
    planned = rules.warmup + rules.seconds
    saved = max(planned - (sample.stopped - sample.start), 0.0) if sample.early else 0.0
    return {
        "load": {"rate": load.rate}
        if isinstance(load, OpenLoop)
        else {"concurrency": load.concurrency}
        if isinstance(load, ClosedLoop)
        else {},
        "offered_rate": len(measured) / window if window > 0 else 0.0,
        "window_seconds": window,
        "warmup_seconds": rules.warmup,
        "requests": len(measured),
        "failed": len(failed),
        "first_error": next((record.error for record in failed), None),
        "dispatch_lag_seconds": dict(zip(("p50", "p99", "max"), lags, strict=True)),
        "most_in_flight": sample.most_in_flight,
        "sleep_lateness_p99": sample.sleep_lateness,
        "token_sources": sorted({str(r.source) for r in measured if r.ok}),
        "ended_early": sample.early,
        "saved_seconds": saved,
        "cut_off": sample.aborted,
    }


def _plain(found: Statistic) -> dict[str, float | int | None]:
    """JSON has no infinity: what is unbounded is null."""
    values = {"value": found.value, "low": found.low, "high": found.high}
    return {k: v if math.isfinite(v) else None for k, v in values.items()} | {"count": found.count}
