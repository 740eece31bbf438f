"""Files that tell of the same runs: counted once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetsieve.importing.formats import Format
from fleetsieve.importing.run import Run

Mark = tuple[Any, ...]
_TELLING = ("e2e_mean", "ttft_mean", "tpot_mean", "e2e_p50", "ttft_p50")


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
    best, singles = _best(files), _singles(files)
    kept, skipped = [], []
    for file in files:
        twin = best.get(_key(file), file)
        original = twin.path if twin.format.rank < file.format.rank else _retold(file, singles)
        if original is None:
            kept.append(file)
        else:
            skipped.append(Skipped(str(file.path), f"the same runs are in {original.name}"))
    return kept, skipped


def _key(file: Read) -> tuple[Any, ...]:
    """What exports of the same run have in common."""
    twin = file.format.twin
    name = None if twin is None else (file.format.tool, twin(file.path))
    return file.path.absolute().parent, name or file.path.name


def _best(files: Iterable[Read]) -> dict[tuple[Any, ...], Read]:
    """By key the file of the lowest rank that has runs."""
    best: dict[tuple[Any, ...], Read] = {}
    for file in files:
        first = best.setdefault(_key(file), file)
        if file.runs and (file.format.rank < first.format.rank or not first.runs):
            best[_key(file)] = file
    return best


def _singles(files: Iterable[Read]) -> dict[Path, dict[Mark, Path]]:
    """By folder the runs that files in it, or below it, hold as they were first written."""
    singles: dict[Path, dict[Mark, Path]] = {}
    for file in files:
        if not _retells(file):
            for folder in file.path.absolute().parents:
                marks = singles.setdefault(folder, {})
                for run in file.runs:
                    marks.setdefault(_mark(run), file.path)
    return singles


def _retells(file: Read) -> bool:
    """Whether this kind of file repeats what others were written for."""
    return file.format.retells or (file.format.tool == "vLLM" and file.path.stem == "summary")


def _retold(file: Read, singles: dict[Path, dict[Mark, Path]]) -> Path | None:
    """A file that holds one of its runs, if all of them are held by others."""
    if not (file.runs and _retells(file)):
        return None
    marks = singles.get(file.path.absolute().parent, {})
    found = [marks.get(_mark(run)) for run in file.runs]
    return found[0] if all(found) else None


def _mark(run: Run) -> Mark:
    """What no two runs have in common, and every file on a run; to the digits that units leave."""
    values = (run.throughput, *(run.latencies.get(name) for name in _TELLING))
    return tuple(None if value is None else f"{value:.9g}" for value in values)
