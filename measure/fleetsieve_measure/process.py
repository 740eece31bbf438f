"""A child process in a process group of its own, with its output in a file."""

import asyncio
import contextlib
import os
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Self

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.leftovers import Leftovers, members
from fleetsieve_measure.shared_memory import mapped, remove_leaked

_LONGEST_LOG = 16 << 20
_POLL = 0.05
# Seconds for processes without a leader to end, among them the one that removes the leader's
# shared memory; and for the kernel to end what was killed.
_TIDY, _KILLED = 2.0, 10.0


class Process:
    """A process that was started with `start`.

    Its group ends with it, also where the leader ends by itself, and with the event loop.
    """

    def __init__(
        self,
        child: asyncio.subprocess.Process,
        log: Path,
        leftovers: Leftovers | None,
        since: float,
    ) -> None:
        self.pid = child.pid
        self.log = log
        self._child = child
        self._leftovers = leftovers
        self._since = since
        self._shared: set[Path] = set()
        self._exit = asyncio.ensure_future(child.wait())
        self._end = asyncio.ensure_future(self._clear())
        self._end.add_done_callback(self._abandon)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        leftovers: Leftovers | None = None,
    ) -> Self:
        """Start `command` with the environment `env`, its output added to `log`.

        It runs in the folder of the log, which is made; `leftovers` adds a mark to `env`.

        Raises:
            InputError: the executable is not there, or is none, or the disk is full.
        """
        # A group, not a session: in a session of its own an engine gets a scheduling group of its
        # own too, and may starve the client that times it.
        since = time.time()
        with _opened(log, command) as output:
            try:
                child = await asyncio.create_subprocess_exec(
                    *command,
                    cwd=log.parent,
                    env={**env, **(leftovers.mark() if leftovers is not None else {})},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    process_group=0,
                )
            except (FileNotFoundError, PermissionError) as error:
                raise InputError(
                    f"{command[0]} cannot be started ({error.strerror}); install it, or give the "
                    "path of the executable in command"
                ) from None
        process = cls(child, log, leftovers, since)
        try:
            if leftovers is not None:
                leftovers.add(child.pid)
        except OSError as error:
            await process.stop(0.0)
            raise _cannot_be_written(log.parent, error) from None
        return process

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative where a signal ended it."""
        return self._child.returncode

    @property
    def exited(self) -> asyncio.Future[int]:
        """Done, with the exit code, as soon as the process has ended."""
        return asyncio.shield(self._exit)

    def log_size(self) -> int:
        """Bytes in the log so far."""
        return self.log.stat().st_size

    def log_lines(self, start: int = 0) -> list[str]:
        """What was logged from byte `start` on, without the middle of a log that got very long."""
        with self.log.open("rb") as file:
            file.seek(start)
            text = file.read(_LONGEST_LOG // 2)
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start + len(text), end - _LONGEST_LOG // 2))
            text += file.read()
        return text.decode(errors="replace").splitlines()

    def log_tail(self, lines: int) -> list[str]:
        """The last lines of the log."""
        return self.log_lines(max(0, self.log_size() - 400 * lines))[-lines:]

    def note_shared_memory(self) -> None:
        """Remember what shared memory the group has mapped by now, to remove it in the end."""
        self._shared |= mapped(members(self.pid))

    async def stop(self, grace: float = 10.0) -> None:
        """TERM to the group, KILL after `grace` seconds, and wait until nothing of it runs.

        What hangs in the kernel is not waited for much longer. Where the wait is cancelled the
        group is killed at once.
        """
        self.note_shared_memory()
        try:
            if not self._exit.done():
                self._signal(signal.SIGTERM)
                await asyncio.wait({self._exit}, timeout=grace)
        finally:
            if not self._exit.done():
                self._signal(signal.SIGKILL)
        await asyncio.wait({self._end}, timeout=_TIDY + 2 * _KILLED)

    async def _clear(self) -> None:
        """End what the leader leaves behind, with the time to tidy up, and then the traces."""
        await self.exited
        self.note_shared_memory()
        for number, patience in ((signal.SIGTERM, _TIDY), (signal.SIGKILL, _KILLED)):
            if members(self.pid):
                self._signal(number)
                await self._emptied(patience)
        remove_leaked(self._shared, self._since)
        if self._leftovers is not None:
            self._leftovers.remove(self.pid)

    def _abandon(self, end: asyncio.Future[None]) -> None:
        if end.cancelled():
            self._signal(signal.SIGKILL)

    async def _emptied(self, patience: float) -> None:
        for _ in range(max(1, round(patience / _POLL))):
            if not members(self.pid):
                return
            await asyncio.sleep(_POLL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _opened(log: Path, command: Sequence[str]) -> BinaryIO:
    """The log, to append to, with `command` as its next line."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            output.write(f"$ {' '.join(shlex.join(command).splitlines())}\n".encode())
        return log.open("ab")
    except OSError as error:
        raise _cannot_be_written(log.parent, error) from None


def _cannot_be_written(folder: Path, error: OSError) -> InputError:
    return InputError(f"{folder} cannot be written: {error.strerror}; make room there, and resume")
