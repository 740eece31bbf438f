"""Shared memory that a killed server leaves behind, where it takes up memory for good."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path("/dev/shm")


def mapped(pids: Iterable[int]) -> set[Path]:
    """The files of shared memory that some of the processes `pids` have mapped."""
    return {path for pid in pids for path in _mapped(pid)}


def remove_leaked(paths: Iterable[Path], since: float) -> None:
    """Remove those of `paths` that nobody has mapped and that are not older than `since`.

    What is older was there before the server; what is mapped is somebody's. `since` is in seconds
    since the epoch.
    """
    left = {path for path in paths if path.exists()}
    if not left:
        return
    in_use = mapped(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    for path in left - in_use:
        with contextlib.suppress(OSError):
            if path.stat().st_ctime >= since:
                path.unlink()


def _mapped(pid: int) -> set[Path]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    # address perms offset dev inode path
    paths = (line.split(maxsplit=5)[5:] for line in lines if f" {_FOLDER}/" in line)
    return {Path(path[0]) for path in paths if path and not path[0].endswith(" (deleted)")}
