"""Measurements in flight: as many as fit at once, given back as they complete."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Generic, Self, TypeVar

from fleetsieve_measure.results import Outcome

Job = TypeVar("Job", bound=Hashable)


class Pool(Generic[Job]):
    """Runs at most `parallel` calls of `measure` at once; an asynchronous context manager.

    Leaving the context cancels what is still in flight and waits until it has ended, so that no
    server of a benchmark outlives it.
    """

    def __init__(self, measure: Callable[[Job], Awaitable[Outcome]], parallel: int = 1) -> None:
        if parallel < 1:
            raise ValueError(f"parallel is {parallel}; give at least 1")
        self._measure = measure
        self._parallel = parallel
        self._tasks: dict[asyncio.Task[Outcome], Job] = {}

    @property
    def free(self) -> int:
        """How many more measurements may start."""
        return self._parallel - len(self._tasks)

    @property
    def in_flight(self) -> tuple[Job, ...]:
        """Jobs that were started and not given back, in the order of their start."""
        return tuple(self._tasks.values())

    def start(self, job: Job) -> None:
        """Begin to measure `job`.

        Raises:
            RuntimeError: no slot is free.
        """
        if self.free < 1:
            raise RuntimeError(f"all {self._parallel} slots are taken; take a result first")
        self._tasks[asyncio.ensure_future(self._run(job))] = job

    async def next(self, stop: asyncio.Event | None = None) -> tuple[Job, Outcome] | None:
        """The next job to complete, with its outcome; of several the one started first.

        None when nothing is in flight, or when `stop` is set before anything completes.

        Raises:
            Exception: whatever `measure` raised; a benchmark that fails returns `Failed` instead.
        """
        if not self._tasks:
            return None
        stopped = asyncio.ensure_future(stop.wait()) if stop is not None else None
        try:
            waiting = {*self._tasks, stopped} if stopped is not None else set(self._tasks)
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if stopped is not None:
                stopped.cancel()
        done = next((task for task in self._tasks if task.done()), None)
        return None if done is None else (self._tasks.pop(done), done.result())

    async def cancel(self) -> None:
        """Cancel everything in flight and wait until it has ended; its outcomes are lost."""
        tasks, self._tasks = list(self._tasks), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.cancel()

    async def _run(self, job: Job) -> Outcome:
        return await self._measure(job)
