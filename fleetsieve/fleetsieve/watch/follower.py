"""Follows a study: renders it again when it has grown, not too often, and tells who waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleetsieve.errors import InputError
from fleetsieve.study import Study

_POLL, _REST = 1.0, 3.0
# Rendering takes at most one part in so many of the time.
_SHARE = 5


@dataclass(frozen=True)
class State:
    """The newest page, and why there is no newer one; `version` grows with each page."""

    version: int
    page: str
    error: str | None = None


class Follower:
    """Keeps the newest `State` of a study; `render` makes its page or raises an InputError."""

    def __init__(
        self,
        study: Path,
        render: Callable[[], Awaitable[str]],
        first: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first` is the page until one is rendered."""
        self.state = State(0, first)
        self._study, self._render = study, render
        self._sleep, self._clock = sleep, clock
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Follow until cancelled."""
        seen: Any = None
        while True:
            now = stamp(self._study)
            if now == seen:
                await self._sleep(_POLL)
                continue
            begin = self._clock()
            await self._refresh(now)
            # The stamp is of before: what came while it was rendered is rendered next.
            seen = now
            # The first page takes longer: a process starts for it.
            took = self._clock() - begin if self.state.version > 1 else 0.0
            await self._sleep(max(_REST, (_SHARE - 1) * took))

    async def after(self, known: State, seconds: float) -> State | None:
        """The state once it is another than `known`; None if it still is after `seconds`."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self.state is not known)
        except TimeoutError:
            return None
        return self.state

    async def publish(self, state: State) -> None:
        """Make `state` the newest one."""
        async with self._changed:
            self.state = state
            self._changed.notify_all()

    async def _refresh(self, now: Any) -> None:
        old = self.state
        try:
            if isinstance(now, InputError):
                raise now
            new = State(old.version + 1, await self._render())
        except InputError as error:
            new = replace(old, error=f"{error}.")
        await self.publish(new)


class Unreadable(InputError):
    """Why a study cannot be read; equal to another one that says the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unreadable) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def stamp(path: Path) -> Any:
    """Differs once the study has grown or is another file; why it cannot be read, if it cannot."""
    try:
        inode = path.stat().st_ino
        with Study.open_read_only(path) as study:
            return inode, study.stamp
    except InputError as error:
        return Unreadable(str(error))
    except OSError as error:
        return Unreadable(f"{path} cannot be read: {error.strerror}; put the study back")
