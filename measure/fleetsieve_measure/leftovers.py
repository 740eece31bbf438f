"""Process groups that run, written down, so that the next run ends what a killed one left."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

_PROC = Path("/proc")
_MARK = "FLEETSIEVE_RUN"


def start_time(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None where it does not run.

    With the number of the process it names the process for good: a number is used again, in the
    same tick it is not.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def members(group: int) -> list[int]:
    """The processes of a process group that still run; a zombie does not."""
    stats = {pid: _stat(pid) for pid in _processes()}
    return [
        pid
        for pid, fields in stats.items()
        if fields is not None and int(fields[2]) == group and fields[0] not in "ZX"
    ]


class Leftovers:
    """Process groups of ours that run, a small file for each in `folder`.

    They also carry a mark in their environment, for a run that was killed before it wrote the
    file, or whose group lost its leader.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def mark(self) -> dict[str, str]:
        """The variable that tells a process of this folder and of this owner."""
        return {_MARK: json.dumps([str(self._folder), *_owner()])}

    def add(self, group: int) -> None:
        """Write down that `group` runs and that this process looks after it."""
        record = {
            "boot": _boot(),
            "owner": _owner(),
            "leader": [group, start_time(group)],
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._file(group).with_suffix(".part")
        part.write_text(json.dumps(record))
        part.replace(self._file(group))

    def remove(self, group: int) -> None:
        """`group` has ended."""
        self._file(group).unlink(missing_ok=True)

    def end(self) -> list[int]:
        """Kill the groups, and the marked processes, whose owner is gone, and say which.

        A group whose leader is not the process that was written down is left alone.
        """
        ends = [_end(file) for file in self._folder.glob("*.json")]
        for part in self._folder.glob("*.part"):
            part.unlink()
        return sorted({group for group in ends if group is not None} | set(self._end_marked()))

    def _end_marked(self) -> Iterator[int]:
        for pid in _processes():
            folder, *owner = _mark_of(pid)
            if folder == str(self._folder) and not _runs(owner):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    yield pid

    def _file(self, group: int) -> Path:
        return self._folder / f"{group}.json"


def _end(file: Path) -> int | None:
    try:
        record = json.loads(file.read_text())
        boot, owner, leader = record["boot"], tuple(record["owner"]), tuple(record["leader"])
    except (OSError, ValueError, KeyError, TypeError):
        # Cut short by the same kill; there is nothing to hold on to.
        file.unlink(missing_ok=True)
        return None
    if boot == _boot() and _runs(owner):
        return None
    killed = boot == _boot() and _runs(leader)
    if killed:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader[0], signal.SIGKILL)
    file.unlink(missing_ok=True)
    return leader[0] if killed else None


def _runs(process: Sequence[int | None]) -> bool:
    pid, started = process
    return pid is not None and started is not None and start_time(pid) == started


def _owner() -> list[int | None]:
    return [os.getpid(), start_time(os.getpid())]


def _processes() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _mark_of(pid: int) -> tuple[str, int | None, int | None]:
    """The mark that a process carries; that of none where it has none or is not ours to read."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        mark = next(text for text in environment if text.startswith(f"{_MARK}=".encode()))
        folder, owner, started = json.loads(mark.partition(b"=")[2])
    except (OSError, ValueError, TypeError, StopIteration):
        return "", None, None
    return folder, owner, started


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
