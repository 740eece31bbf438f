"""Files that tell of the same runs: counted once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetsieve.importing.formats import Format
from fleetsieve.importing.run import Run


@dataclass(frozen=True)
class Read:
    """A file that was read, and its runs."""

    path: Path
    format: Format
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Skipped:
    """What is not in the grid, and why."""

    place: str
    reason: str


def without_twins(files: Sequence[Read]) -> tuple[list[Read], list[Skipped]]:
    """The files without those whose runs others tell of, and better."""
    kept, skipped = [], []
    for file in files:
        twin = _better(file, files) or _single(file, files)
        if twin is None:
            kept.append(file)
        else:
            skipped.append(Skipped(str(file.path), f"the same runs are in {twin.path.name}"))
    return kept, skipped


def _better(file: Read, files: Iterable[Read]) -> Read | None:
    """A file of a lower rank beside it that has the same runs."""
    key = _key(file)
    same = [f for f in files if key is not None and _key(f) == key and f.runs]
    best = min(same, key=lambda f: f.format.rank, default=file)
    return best if best.format.rank < file.format.rank else None


def _key(file: Read) -> tuple[Any, ...] | None:
    twin = file.format.twin
    return (
        None if twin is None else (file.format.tool, file.path.absolute().parent, twin(file.path))
    )


def _single(file: Read, files: Iterable[Read]) -> Read | None:
    """Of a summary of a sweep, a file of one of its runs, if all have their own."""
    if file.path.stem != "summary" or file.format.tool != "vLLM":
        return None
    folder = file.path.absolute().parent
    single = [
        other
        for other in files
        if other.path.stem != "summary" and folder in other.path.absolute().parents
    ]
    known = {_mark(run) for other in single for run in other.runs}
    return single[0] if file.runs and known.issuperset(map(_mark, file.runs)) else None


def _mark(run: Run) -> tuple[Any, ...]:
    """What no two runs have in common."""
    return run.requests, run.seconds, run.throughput, tuple(sorted(run.latencies.items()))
