"""Load on a server: when requests are sent, in open or in closed loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from fleetsieve_measure.client import Body
from fleetsieve_measure.record import Record

# A closed loop waits this long after a failure, longer after several: a dead server fails at once.
_BACK_OFF, _LONGEST_BACK_OFF = 0.05, 1.0


class Exchange(Protocol):
    """What load drives."""

    def prepare(self) -> Body:
        """The next request, built ahead of its time."""
        ...

    async def send(self, body: Body, due: float) -> Record:
        """Send it and return once it has ended."""
        ...


class Load(Protocol):
    """A way to load a server."""

    async def drive(self, exchange: Exchange, start: float) -> None:
        """Send requests from `start` on until this is cancelled; what is in flight then too."""
        ...


@dataclass(frozen=True)
class OpenLoop:
    """Requests are due when `arrivals` say, whatever the server does.

    Attributes:
        rate: mean requests/s.
        arrivals: makes the due offsets in seconds of one run, endless and ascending.
    """

    rate: float
    arrivals: Callable[[], Iterator[float]]

    async def drive(self, exchange: Exchange, start: float) -> None:
        """Send each request when it is due; a late one still counts from its due time."""
        async with _Tasks() as tasks:
            for offset in self.arrivals():
                body, due = exchange.prepare(), start + offset
                await asyncio.sleep(max(0.0, due - monotonic()))
                tasks.start(exchange.send(body, due))


@dataclass(frozen=True)
class ClosedLoop:
    """So many users, each of whom sends the next request once the one before has ended.

    They begin one after the other over `stagger` seconds, so that the first replies do not all
    compete for their prefill.
    """

    concurrency: int
    stagger: float

    async def drive(self, exchange: Exchange, start: float) -> None:
        """Keep `concurrency` requests in flight."""

        async def user(number: int) -> None:
            due, failures = start + number * self.stagger / self.concurrency, 0
            await asyncio.sleep(max(0.0, due - monotonic()))
            while True:
                body = exchange.prepare()
                record = await exchange.send(body, monotonic())
                failures = 0 if record.ok else failures + 1
                if failures:
                    await asyncio.sleep(min(_BACK_OFF * 2**failures, _LONGEST_BACK_OFF))

        async with _Tasks() as tasks:
            for number in range(self.concurrency):
                tasks.start(user(number))
            await asyncio.get_running_loop().create_future()  # until cancelled


class _Tasks:
    """Tasks that end with the block: cancelled and awaited."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task] = set()

    def start(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __aenter__(self) -> "_Tasks":
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
