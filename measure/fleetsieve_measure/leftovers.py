"""Process groups that run, written down, so that the next run ends what a killed one left."""

import contextlib
import json
import os
import signal
from pathlib import Path

_PROC = Path("/proc")


def start_time(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None where it does not run.

    With the number of the process it names the process for good: a number is used again, in the
    same tick it is not.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def members(group: int) -> list[int]:
    """The processes of a process group that still run; a zombie does not."""
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    stats = {pid: _stat(pid) for pid in pids}
    return [
        pid
        for pid, fields in stats.items()
        if fields is not None and int(fields[2]) == group and fields[0] not in "ZX"
    ]


class Leftovers:
    """Process groups of ours that run, a small file for each in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, group: int) -> None:
        """Write down that `group` runs and that this process looks after it."""
        record = {
            "boot": _boot(),
            "owner": [os.getpid(), start_time(os.getpid())],
            "leader": [group, start_time(group)],
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file(group).write_text(json.dumps(record))

    def remove(self, group: int) -> None:
        """`group` has ended."""
        self._file(group).unlink(missing_ok=True)

    def end(self) -> list[int]:
        """Kill the groups whose owner is gone, and say which.

        A group whose leader is not the process that was written down is left alone.
        """
        return [
            group
            for file in sorted(self._folder.glob("*.json"))
            if (group := _end(file)) is not None
        ]

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


def _runs(process: tuple[int, int | None]) -> bool:
    pid, started = process
    return started is not None and start_time(pid) == started


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
