"""The progress of a replay: a bar per policy on a terminal, else a line per tenth of its runs."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


class ReplayDisplay:
    """Shows each (policy, done, total) it is called with; a context manager.

    `clock` tells seconds, from which follows how long the rest takes.
    """

    def __init__(self, out: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock, self._start = out, clock, clock()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bars = Progress(*columns, TimeRemainingColumn(), console=out, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._out.is_terminal:
            self._bars.stop()

    def __call__(self, policy: str, done: int, total: int) -> None:
        """Show that `done` of the policy's `total` runs are finished."""
        if self._out.is_terminal:
            if policy not in self._tasks:
                self._tasks[policy] = self._bars.add_task(policy, total=total)
            self._bars.update(self._tasks[policy], completed=done)
        elif done == total or done * 10 // total > (done - 1) * 10 // total:
            spent = self._clock() - self._start
            self._out.print(f"{policy}: {done} of {total} runs, {spent:.0f} s")
