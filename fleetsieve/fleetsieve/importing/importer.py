"""From result files to a grid, and to what there is to say about it."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetsieve.errors import InputError
from fleetsieve.grid import LOADS, NEEDED, Grid
from fleetsieve.importing.document import read
from fleetsieve.importing.files import found
from fleetsieve.importing.formats import format_of
from fleetsieve.importing.given import PathPattern
from fleetsieve.importing.run import Reading, Run, cells, fell_behind
from fleetsieve.importing.twins import Read, Skipped, without_twins
from fleetsieve.table import Record

_NAMES = {"workload": "workload=NAME", "config": "config=NAME", "gpus": "gpus=N"}
_DEGREES = ("tp", "pp", "dp")


@dataclass(frozen=True)
class Row:
    """A row of the grid, the run that it is of, and the tool that measured it."""

    run: Run
    tool: str
    cells: dict[str, Any]


@dataclass(frozen=True)
class Imported:
    """A grid, its rows and what is not in it."""

    grid: Grid
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]


def import_files(
    paths: Sequence[Path], given: Mapping[str, str], pattern: PathPattern | None, out: Path
) -> Imported:
    """The grid of all runs in these files and folders; `given` holds for every run.

    A file that is no result, and a run that has no level of load, are skipped with a reason.

    Raises:
        InputError: nothing is left, or it is not known what the rows are about.
    """
    files, skipped = _read_all(path for path in found(paths) if path.absolute() != out.absolute())
    files, twins = without_twins(files)
    skipped += twins
    rows: list[Row] = []
    without_row: list[Skipped] = []
    for file in files:
        for run in file.runs:
            try:
                rows.append(_row(file, run, given, pattern))
            except InputError as error:
                reason = str(error).removeprefix(f"{run.place}: ")
                without_row.append(Skipped(run.place, reason))
    if not rows:
        raise InputError(_nothing(paths, [*without_row, *skipped]))
    _check_names(rows)
    _number_repeats(rows)
    return Imported(_grid(rows, str(out)), tuple(rows), (*skipped, *without_row))


def _read_all(paths: Iterable[Path]) -> tuple[list[Read], list[Skipped]]:
    files, skipped = [], []
    for path in paths:
        try:
            document = read(path)
            format_ = format_of(document)
            readings = list(format_.runs(document))
            if not readings:
                raise InputError(f"{path} has the form of a result and holds no run")
        except InputError as error:
            skipped.append(_skipped(path, error))
            continue
        if document.broken:
            skipped.append(Skipped(f"{path}, end of the file", document.broken))
        runs, wrong = _runs(path, readings)
        files.append(Read(path, format_, runs))
        skipped += wrong
    return files, skipped


def _runs(path: Path, readings: Iterable[Reading]) -> tuple[tuple[Run, ...], list[Skipped]]:
    runs, skipped = [], []
    for reading in readings:
        try:
            runs.append(reading())
        except InputError as error:
            skipped.append(_skipped(path, error))
    return tuple(runs), skipped


def _skipped(path: Path, error: InputError) -> Skipped:
    return Skipped(str(path), str(error).removeprefix(f"{path}").lstrip(":, "))


def _row(file: Read, run: Run, given: Mapping[str, str], pattern: PathPattern | None) -> Row:
    """The row of a run, whose cells are known to be right.

    Raises:
        InputError: a cell is wrong, the path does not fit, or there is no load.
    """
    said = {**(pattern.columns(file.path) if pattern else {}), **given}
    row = cells(run)
    _note_contradictions(run, row, said)
    if any(kind in said for kind in LOADS):
        row = {name: value for name, value in row.items() if name not in LOADS}
    row |= said
    if not any(kind in row for kind in LOADS):
        raise InputError(f"{run.place}: {run.no_load}")
    _complete(run, row, said)
    if all(name in row for name in _NAMES):
        _grid([Row(run, file.format.tool, row)], run.place)
    return Row(run, file.format.tool, row)


def _note_contradictions(run: Run, row: Mapping[str, Any], said: Mapping[str, str]) -> None:
    for name, value in said.items():
        stated = row.get(name)
        if stated is not None and not _same(stated, value):
            run.notes.append(f"{name} is {stated} in the file, {value} by --set or --path")


def _same(stated: Any, value: str) -> bool:
    try:
        return str(stated) == value or float(stated) == float(value)
    except ValueError:
        return False


def _complete(run: Run, row: dict[str, Any], said: Mapping[str, str]) -> None:
    """GPUs from the degrees of parallelism, the cost, and whether the server kept up."""
    if "gpus" not in row and "tp" in row:
        row["gpus"] = _product(row.get(name, 1) for name in _DEGREES)
    if row["status"] == "ok" and "saturated" not in said:
        row["saturated"] = row["saturated"] or fell_behind(row, run.sent)
    if "gpu_seconds" not in row and "seconds" not in row:
        raise InputError(f"{run.place}: how long it took is not stated; give --set seconds=S")


def _product(degrees: Iterable[Any]) -> Any:
    product = 1
    for degree in degrees:
        try:
            product *= int(float(degree))
        except (ValueError, OverflowError):
            return degree  # which the grid refuses in a sentence
    return product


def _check_names(rows: Sequence[Row]) -> None:
    missing = [name for name in _NAMES if any(name not in row.cells for row in rows)]
    if missing:
        place = next(row.run.place for row in rows if missing[0] not in row.cells)
        asked = " ".join(f"--set {_NAMES[name]}" for name in missing)
        raise InputError(
            f"{place} does not say {', '.join(missing)}; give {asked}, or --path with "
            f"{'/'.join(f'{{{name}}}' for name in missing)} where folders or files are named so"
        )


def _number_repeats(rows: Iterable[Row]) -> None:
    """Number the runs of each cell from 0, unless somebody has."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        loads = (float(row.cells.get(kind, math.nan)) for kind in LOADS)
        key = (row.cells["workload"], row.cells["config"], *map(repr, loads))
        row.cells.setdefault("repeat", counts[key])
        counts[key] += 1


def _grid(rows: Sequence[Row], source: str) -> Grid:
    columns = dict.fromkeys((*NEEDED, *LOADS, "gpu_seconds"))
    columns |= dict.fromkeys(name for row in rows for name in row.cells)
    return Grid.of(list(columns), [Record(row.run.place, row.cells) for row in rows], source)


def _nothing(paths: Sequence[Path], skipped: Sequence[Skipped]) -> str:
    if not skipped:
        return f"{', '.join(map(str, paths))}: there is no file; name others"
    first = skipped[0]
    separator = " " if first.reason.startswith(("is ", "has ", "does ", "cannot ")) else ": "
    more = f" (and {len(skipped) - 1} more were skipped)" if len(skipped) > 1 else ""
    return f"nothing to import: {first.place}{separator}{first.reason}{more}"
