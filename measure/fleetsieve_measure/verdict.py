"""Ends a run early: nothing that still comes can change what it shows."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fleetsieve_measure.metrics import latency, percent_of
from fleetsieve_measure.percentiles import ranks
from fleetsieve_measure.record import Record

# An early verdict on an SLO holds with this confidence at each look, and looks are few: the
# sample grows by this factor from one to the next.
_SURE, _GROWTH, _FIRST, _SEEN = 0.999, 1.5, 20, 5
# The backlog grows by at least this share of the arrivals, and by so many standard deviations.
_SHARE, _DEVIATIONS, _ARRIVALS = 0.1, 3.0, 40
# Of what a backlog adds to the latency as it grows, at least so much has to be seen.
_SEEN_OF_RISE = 0.5
# Of the requests that ended last, so many have to have failed for a server that serves nobody.
_ALL_FAILED = 20


def overloaded(records: Sequence[Record], start: float, now: float) -> bool:
    """Whether an open loop's backlog grows without bound.

    In each of the last two thirds of the time so far fewer requests ended than came, by more than
    chance, and in the last third each took longer than the one before: where a system only fills
    up at the start, replies are late too, but no later from one to the next.
    """
    third = (now - start) / 3
    ended = [r for r in records if r.end is not None and r.end <= now]
    flows = [
        _flow(records, ended, start + part * third, start + (part + 1) * third) for part in (1, 2)
    ]
    came, left = (sum(flow) for flow in zip(*flows, strict=True))
    last_came, last_left = flows[1]
    rise = (1 - last_left / last_came) * third / 2 if last_came else math.inf
    return (
        all(part_came - part_left >= _SHARE * part_came for part_came, part_left in flows)
        and came >= _ARRIVALS
        and came - left >= _DEVIATIONS * math.sqrt(came + left)
        and _slows_down(ended, now - third, now, rise)
    )


def _flow(
    records: Sequence[Record], ended: Sequence[Record], since: float, until: float
) -> tuple[int, int]:
    """How many requests came and how many left."""
    came = sum(since <= r.due < until for r in records)
    left = sum(since <= r.end < until for r in ended if r.end is not None)
    return came, left


def _slows_down(ended: Sequence[Record], since: float, until: float, rise: float) -> bool:
    """Whether what ended later took longer, by a good part of `rise` seconds.

    When of every request that comes a share stays, those that end so much later have waited longer
    by this share of the time, however long the service itself takes.
    """
    middle = (since + until) / 2
    early = [r.end - r.due for r in ended if r.end is not None and since <= r.end < middle]
    late = [r.end - r.due for r in ended if r.end is not None and middle <= r.end < until]
    return bool(early and late and np.mean(late) - np.mean(early) >= _SEEN_OF_RISE * rise)


def serves_nobody(records: Sequence[Record]) -> bool:
    """Whether all of the requests that ended last have failed, and no older one is in flight.

    Failures may be quick, and what goes well slow.
    """
    newest = [r for r in records[-4 * _ALL_FAILED :] if r.end is not None][-_ALL_FAILED:]
    if len(newest) < _ALL_FAILED or any(r.ok for r in newest):
        return False  # mostly so, and cheap to see
    ends = sorted((r.end, r.due, r.ok) for r in records if r.end is not None)[-_ALL_FAILED:]
    middle = sorted(due for _, due, _ in ends)[_ALL_FAILED // 2]
    return not any(ok for *_, ok in ends) and all(
        r.end is not None or r.due >= middle for r in records
    )


class SloVerdict:
    """Whether percentile SLOs are already surely met or missed, at looks that get rarer.

    A request in flight counts as what it can still be: too late when that helps to be met, and
    as late as it is by now when that helps to be missed.
    """

    def __init__(self, slo: Mapping[str, float]) -> None:
        """Limits in seconds by METRIC_STAT; those on means are never decided early."""
        self._slo = slo
        self._next = _FIRST

    def look(self, measured: Sequence[Record], now: float) -> str | None:
        """Why the run may end, in words; None while it may not."""
        if len(measured) < self._next or not self._slo:
            return None
        if sum(record.end is not None for record in measured) < _SEEN:
            return None  # a cell that is cut off has to have a throughput, if a poor one
        self._next = math.ceil(len(measured) * _GROWTH)
        met = True
        for name, limit in self._slo.items():
            percent = percent_of(name)
            if percent is None:
                met = False
                continue
            least, most = _extremes(name, measured, now)
            low, high = ranks(len(measured), percent, _SURE)
            if low >= 1 and np.sort(least)[low - 1] > limit:
                return f"{name} surely exceeds {limit:g} s"
            met = met and high <= len(measured) and bool(np.sort(most)[high - 1] <= limit)
        return "every SLO is surely met" if met else None


def _extremes(name: str, measured: Sequence[Record], now: float) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most that each request's latency can be."""
    least, most = np.empty(len(measured)), np.empty(len(measured))
    for i, record in enumerate(measured):
        if record.end is not None:
            value = latency(name, record)
            # A latency that is not defined, as the TPOT of a single token, says nothing.
            least[i] = most[i] = (0.0 if record.ok else math.inf) if value is None else value
        else:
            least[i], most[i] = _so_far(name, record, now), math.inf
    return least, most


def _so_far(name: str, record: Record, now: float) -> float:
    if name.startswith("e2e_"):
        return now - record.due
    return now - record.due if name.startswith("ttft_") and not record.times else 0.0
