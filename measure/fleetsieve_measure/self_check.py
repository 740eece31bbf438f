"""Whether the client itself was starved: how late a short sleep ends while it works."""

import asyncio
from array import array
from time import monotonic
from types import TracebackType
from typing import Self

import numpy as np

_SLEEP = 0.01


class SleepLateness:
    """Sleeps over and over while its context is open, and keeps how late each sleep ended."""

    def __init__(self) -> None:
        self._late = array("d")
        self._task: asyncio.Task | None = None

    def p99(self) -> float:
        """The 99th percentile of the lateness in seconds; 0 if nothing was seen."""
        return float(np.quantile(self._late, 0.99)) if self._late else 0.0

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            before = monotonic()
            await asyncio.sleep(_SLEEP)
            self._late.append(monotonic() - before - _SLEEP)
