"""One run of load against one server, until its window is measured or it is decided."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from fleetsieve_measure.client import Body
from fleetsieve_measure.load import Load, OpenLoop
from fleetsieve_measure.metrics import requests_needed
from fleetsieve_measure.record import Record
from fleetsieve_measure.self_check import SleepLateness
from fleetsieve_measure.verdict import SloVerdict, overloaded, serves_nobody
from fleetsieve_measure.window import Window

_TICK = 0.1
# An overloaded server has to have served so many requests for its throughput to be known.
_SERVED = 30
# Ends of a run that leave no numbers, however well it began.
GONE, SERVES_NOBODY = "the server ended", "every request fails"


class Sender(Protocol):
    """What sends requests, such as a `Client`; `in_flight` is how many it is waiting for."""

    in_flight: int

    async def send(self, body: Body, record: Record, /) -> Record:
        """Send a request and fill in its record, also where it is cancelled."""
        ...


class Bodies(Protocol):
    """Where requests come from, such as a `Source`."""

    def next(self) -> Body:
        """The next request."""
        ...


@dataclass(frozen=True)
class Rules:
    """How long a run measures; all in seconds.

    Attributes:
        slo: limits by METRIC_STAT: what has to have enough requests, and what may end a run early.
        warmup: requests that are due before are not measured.
        seconds: the window, at least.
        longest: the window, at most, when its statistics need more requests.
        drain: how long after the window its requests may take to end.
    """

    slo: Mapping[str, float]
    warmup: float
    seconds: float
    longest: float
    drain: float


@dataclass
class Sample:
    """What a run saw.

    Attributes:
        records: every request, in the order in which they were due.
        start, opens, closes, stopped: when load began, the window, and when load ended.
        early: why the run ended before its time, if it did; `overload` if by a growing backlog.
        overload: whether the backlog of an open loop grew without bound.
        aborted: whether requests of the window were cut off at the end.
        sleep_lateness: 99th percentile of how late a short sleep of the client ended.
        most_in_flight: the most requests in flight at once.
    """

    records: list[Record] = field(default_factory=list)
    start: float = 0.0
    opens: float = 0.0
    closes: float = 0.0
    stopped: float = 0.0
    early: str | None = None
    overload: bool = False
    aborted: bool = False
    sleep_lateness: float = 0.0
    most_in_flight: int = 0

    @property
    def measured(self) -> list[Record]:
        """The requests that were due in the window."""
        return [r for r in self.records if self.opens <= r.due < self.closes]


async def run_trial(
    client: Sender,
    source: Bodies,
    load: Load,
    rules: Rules,
    gone: Callable[[], bool] = lambda: False,
) -> Sample:
    """Load the server until every request of the window has ended, or nothing is left to learn.

    Load goes on until then, so that the last requests of the window meet it as the first did.
    `gone` says that there is no server any more.
    """
    trial = _Trial(client, source, load, rules)
    async with SleepLateness() as lateness:
        driver = asyncio.ensure_future(load.drive(trial, trial.sample.start))
        try:
            await trial.watch(driver, gone)
        finally:
            trial.stop()
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)
    trial.sample.sleep_lateness = lateness.p99()
    trial.sample.records.sort(key=lambda record: record.due)
    return trial.sample


class _Trial:
    def __init__(self, client: Sender, source: Bodies, load: Load, rules: Rules) -> None:
        self._client, self._source, self._rules = client, source, rules
        self._open = isinstance(load, OpenLoop)
        self._verdict = SloVerdict(rules.slo)
        self._window = Window(
            start := monotonic(),
            warmup=rules.warmup,
            seconds=rules.seconds,
            longest=rules.longest,
            enough=requests_needed(list(rules.slo)),
        )
        self._waiting = 0
        self._next_look = start + rules.warmup
        self.sample = Sample(start=start, opens=self._window.opens)

    def prepare(self) -> Body:
        return self._source.next()

    async def send(self, body: Body, due: float) -> Record:
        record, sample = Record(due), self.sample
        sample.records.append(record)
        measured = self._window.admit(due)
        self._waiting += measured
        sample.most_in_flight = max(sample.most_in_flight, self._client.in_flight + 1)
        await self._client.send(body, record)
        self._waiting -= measured
        return record

    async def watch(self, driver: asyncio.Future[None], gone: Callable[[], bool]) -> None:
        """Wait until there is a reason to end."""
        while not self._over(monotonic(), gone):
            await asyncio.wait({driver}, timeout=_TICK)
            if driver.done():
                driver.result()

    def stop(self) -> None:
        """Note where the run ends; requests in flight are cut off next."""
        now = monotonic()
        self.sample.stopped = now
        self.sample.closes = now if self._window.closes is None else self._window.closes
        self.sample.aborted = self._waiting > 0

    def _over(self, now: float, gone: Callable[[], bool]) -> bool:
        window, sample = self._window, self.sample
        window.tick(now)
        if gone():
            sample.early = GONE
        elif serves_nobody(sample.records):
            sample.early = SERVES_NOBODY
        elif window.closes is not None:
            return self._waiting == 0 or now > window.closes + self._rules.drain
        elif now >= self._next_look:
            # The longer it runs, the rarer a look, so that looking stays cheap.
            self._next_look = now + max(_TICK, 0.05 * (now - sample.start))
            self._look(now)
        return sample.early is not None

    def _look(self, now: float) -> None:
        sample = self.sample
        done = sum(r.ok and (r.end or 0) >= sample.opens for r in sample.records)
        if self._open and done >= _SERVED and overloaded(sample.records, sample.start, now):
            sample.overload, sample.early = True, "the backlog grows without bound"
        else:
            sample.early = self._verdict.look(
                [record for record in sample.records if self._window.covers(record.due)], now
            )
