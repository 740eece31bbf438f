"""A limit on how long nothing is heard, which costs nothing while something is."""

import asyncio
from types import TracebackType
from typing import Self


class Silence:
    """Raises TimeoutError in its block once nothing was heard for `seconds`.

    Whoever hears something sets `heard` to the time of the event loop, which is `time.monotonic`.
    A timer looks at it only when the limit could be reached; one anew for each token is dear.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._guard = asyncio.timeout(None)
        self.heard = self._loop.time()

    async def __aenter__(self) -> Self:
        await self._guard.__aenter__()
        self._timer = self._loop.call_later(self._seconds, self._look)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._guard.__aexit__(kind, error, traceback)

    def _look(self) -> None:
        due = self.heard + self._seconds
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._look)
        else:
            self._guard.reschedule(due)
