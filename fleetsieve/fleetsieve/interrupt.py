"""Ctrl-C, SIGTERM and a closed terminal as a request to finish, which no code can miss."""

import asyncio
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

_TWICE = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """A context in which the first signal sets `event`, and a later one raises KeyboardInterrupt.

    Entered in a coroutine. The event loop's own handlers would wait until a long computation ends,
    and so would a second Ctrl-C; a plain handler runs in the midst of it. Outside the main thread,
    where Python allows no handlers, it only holds the event.
    """

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.requested, self._since = False, 0.0
        self._loop = asyncio.get_running_loop()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            self._previous = {
                number: signal.signal(number, self._handle)
                for number in _SIGNALS
                if not (nohup and number == signal.SIGHUP)
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            # Some senders, timeout among them, signal a process and then its whole group.
            if time.monotonic() - self._since > _TWICE:
                raise KeyboardInterrupt
            return
        self.requested, self._since = True, time.monotonic()
        # Wakes the loop, which may be asleep in a system call.
        self._loop.call_soon_threadsafe(self.event.set)
