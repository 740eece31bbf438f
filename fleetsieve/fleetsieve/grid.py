"""The grid file: measurements as rows, and the cells they are about."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import get_args

from fleetsieve import table
from fleetsieve.cell import Cell, LoadKind
from fleetsieve.errors import InputError
from fleetsieve.metric import ACCEPTED, FAMILIES, is_metric, order
from fleetsieve.repeats import combine
from fleetsieve.table import Record
from fleetsieve_measure import Failed, FailureKind, Measured, Outcome

NEEDED = ("workload", "config", "gpus", "throughput")
LOADS: tuple[LoadKind, ...] = get_args(LoadKind)
RESERVED = (
    *NEEDED,
    *LOADS,
    *("requests", "failed", "seconds", "gpu_seconds"),
    *("status", "saturated", "repeat"),
)
_STATUSES = ("ok", *get_args(FailureKind))


@dataclass(frozen=True)
class Row:
    """One measurement: a cell, what came out, and what the file says besides.

    Attributes:
        gpus: GPUs of the replica.
        seconds: how long was measured, where stated.
        failed: requests that failed, where stated.
        repeat: the file's own label of a repeat, as text.
        features: the feature columns of this row.
    """

    cell: Cell
    gpus: int
    outcome: Outcome
    seconds: float | None = None
    failed: int | None = None
    repeat: str | None = None
    features: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class CellData:
    """What all rows of a cell say together; `gpu_seconds` is their sum."""

    outcome: Outcome
    rows: int
    gpu_seconds: float


@dataclass(frozen=True)
class Grid:
    """Validated rows of a grid file; `source` is what errors call it."""

    rows: tuple[Row, ...]
    source: str = "grid"

    @classmethod
    def read(cls, path: str | Path) -> "Grid":
        """Read a grid file, CSV or Parquet by its suffix.

        Raises:
            InputError: the file cannot be read or a row is wrong; names the first such row.
        """
        return cls.of(*table.read(Path(path)), str(path))

    @classmethod
    def of(cls, columns: Sequence[str], records: Sequence[Record], source: str) -> "Grid":
        """The grid of a table; `source` is what errors call it.

        Raises:
            InputError: a row is wrong; names the first such row.
        """
        _check_columns(columns, source)
        numeric = _numeric_features(columns, records)
        rows = tuple(_row(record, columns, numeric) for record in records)
        if not rows:
            raise InputError(f"{source} has no rows; give one row per measurement")
        _check_gpus(zip(records, rows, strict=True))
        return cls(rows, source)

    def write(self, path: str | Path, empty: Iterable[str] = ()) -> None:
        """Write a file that `read` reads as the same rows, CSV or Parquet by its suffix.

        `empty` are columns that are there even if no row fills them.
        """
        records = [_plain(row) for row in self.rows]
        names = {name for record in records for name in record} | set(empty)
        table.write(Path(path), sorted(names, key=self._column_order), records)

    @cached_property
    def cells(self) -> dict[Cell, CellData]:
        """The truth of every cell (METHOD 1), in the order of the file."""
        outcomes: dict[Cell, list[Outcome]] = {}
        for row in self.rows:
            outcomes.setdefault(row.cell, []).append(row.outcome)
        return {
            cell: CellData(combine(o), len(o), math.fsum(x.gpu_seconds for x in o))
            for cell, o in outcomes.items()
        }

    @cached_property
    def by_pair(self) -> dict[tuple[str, str], list[Cell]]:
        """The cells of each workload and config, by load."""
        pairs: dict[tuple[str, str], list[Cell]] = {}
        for cell in sorted(self.cells, key=lambda cell: cell.load):
            pairs.setdefault((cell.workload, cell.config), []).append(cell)
        return pairs

    @cached_property
    def kinds(self) -> dict[str, tuple[LoadKind, ...]]:
        """What the loads of each workload are."""
        kinds: dict[str, dict[LoadKind, None]] = {}
        for cell in self.cells:
            kinds.setdefault(cell.workload, {})[cell.kind] = None
        return {workload: tuple(found) for workload, found in kinds.items()}

    @cached_property
    def workloads(self) -> tuple[str, ...]:
        """Workload names in the order of the file."""
        return tuple(dict.fromkeys(row.cell.workload for row in self.rows))

    @cached_property
    def configs(self) -> tuple[str, ...]:
        """Config names in the order of the file."""
        return tuple(self.gpus)

    @cached_property
    def gpus(self) -> dict[str, int]:
        """GPUs of one replica of each config."""
        return {row.cell.config: row.gpus for row in self.rows}

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The latency statistics that some row has."""
        found = {n for r in self.rows if isinstance(r.outcome, Measured) for n in r.outcome.values}
        return tuple(sorted(found - {"throughput"}, key=order))

    @cached_property
    def features(self) -> dict[str, dict[str, float | str]]:
        """The feature columns of each config; a column that varies within a config is none."""
        found: dict[str, dict[str, float | str]] = {config: {} for config in self.configs}
        for row in self.rows:
            for name, value in row.features.items():
                found[row.cell.config].setdefault(name, value)
        return {
            config: {n: v for n, v in values.items() if n not in self.varying_columns}
            for config, values in found.items()
        }

    @cached_property
    def varying_columns(self) -> tuple[str, ...]:
        """Unreserved columns that describe no config, since they differ between its rows."""
        values: dict[tuple[str, str], set[float | str | None]] = {}
        for name in dict.fromkeys(name for row in self.rows for name in row.features):
            for row in self.rows:
                values.setdefault((name, row.cell.config), set()).add(row.features.get(name))
        return tuple(dict.fromkeys(name for (name, _), seen in values.items() if len(seen) > 1))

    def _column_order(self, name: str) -> tuple[int, str]:
        order_of = ("workload", "config", "gpus", "", "rate", "concurrency", "throughput")
        if name in order_of:
            return order_of.index(name), name
        if _is_measure(name):
            return len(order_of), _measure_order(name)
        return (len(order_of) + 1, name) if name in RESERVED else (order_of.index(""), name)


def _measure_order(column: str) -> str:
    """Sort key: a metric by family and statistic, p5 before p10, its standard error behind it."""
    name = column.removesuffix("_se")
    family, statistic = order(name) if is_metric(name) else (0, 0.0)
    return f"{family}{statistic:09.4f}{column}"


def _is_measure(column: str) -> bool:
    """Whether a column holds a value or a standard error of an output."""
    name = column.removesuffix("_se")
    return name == "throughput" or is_metric(name)


def _is_feature(column: str) -> bool:
    return column not in RESERVED and not _is_measure(column)


def _check_columns(columns: Sequence[str], source: str) -> None:
    twice = next((name for name, count in Counter(columns).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{source} has the column {twice!r} twice; keep one")
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise InputError(
            f"{source} lacks the columns {', '.join(missing)} (it has {', '.join(columns)[:100]}); "
            "add them, separated by commas in a CSV file"
        )
    if not set(LOADS) & set(columns):
        raise InputError(f"{source} has no load column; add rate (requests/s) or concurrency")
    if not {"gpu_seconds", "seconds"} & set(columns):
        raise InputError(f"{source} has no cost column; add gpu_seconds, or seconds")
    for name in filter(_is_feature, columns):
        if name.lower().startswith(FAMILIES):
            raise InputError(
                f"{source}: the column {name!r} is no metric; latency columns are in seconds and "
                f"match {ACCEPTED}, with _se for a standard error"
            )


def _numeric_features(columns: Sequence[str], records: Sequence[Record]) -> frozenset[str]:
    return frozenset(
        name
        for name in filter(_is_feature, columns)
        if all(record.looks_numeric(name) for record in records if record.text(name))
    )


def _row(record: Record, columns: Sequence[str], numeric: frozenset[str]) -> Row:
    gpus = record.whole("gpus", at_least=1)
    if gpus is None:
        raise record.error("gpus", "give a whole number, at least 1")
    features: dict[str, float | str] = {}
    for name in filter(_is_feature, columns):
        value = record.number(name, at_least=-math.inf) if name in numeric else record.text(name)
        if value is not None:
            features[name] = value
    return Row(
        cell=_cell(record),
        gpus=gpus,
        outcome=_outcome(record, columns, gpus),
        seconds=record.number("seconds"),
        failed=record.whole("failed"),
        repeat=record.text("repeat"),
        features=features,
    )


def _cell(record: Record) -> Cell:
    names = [record.text(column) for column in ("workload", "config")]
    for column, name in zip(("workload", "config"), names, strict=True):
        if name is None:
            raise record.error(column, "give a name")
    loads: dict[LoadKind, float | None] = {
        "rate": record.number("rate"),
        "concurrency": record.number("concurrency"),
    }
    given: list[tuple[LoadKind, float]] = [(k, v) for k, v in loads.items() if v is not None]
    if len(given) != 1:
        found = "both rate and concurrency" if given else "neither rate nor concurrency"
        raise InputError(f"{record.place} has {found}; fill exactly one")
    kind, load = given[0]
    if load <= 0:
        raise record.error(kind, "give a number above 0")
    return Cell(str(names[0]), str(names[1]), load, kind)


def _outcome(record: Record, columns: Sequence[str], gpus: int) -> Outcome:
    cost, seconds = record.number("gpu_seconds"), record.number("seconds")
    if cost is None and seconds is not None:
        cost = gpus * seconds
    if cost is None:
        raise record.error("gpu_seconds", "give what the row cost, or fill seconds")
    status = record.text("status") or "ok"
    if status not in _STATUSES:
        raise record.error("status", f"give {', '.join(_STATUSES)}")
    numbers = {
        name: number
        for name in filter(_is_measure, columns)
        if (number := record.number(name, infinite=is_metric(name))) is not None
    }
    saturated, requests = record.truth("saturated"), record.whole("requests")
    if status != "ok":
        return Failed(kind=_failure(status), gpu_seconds=cost)
    if "throughput" not in numbers:
        raise record.error("throughput", "give completed requests/s, as the status is ok")
    return Measured(
        values={n: v for n, v in numbers.items() if not n.endswith("_se")},
        se={n[:-3]: v for n, v in numbers.items() if n.endswith("_se") and n[:-3] in numbers},
        gpu_seconds=cost,
        saturated=saturated,
        requests=requests,
    )


def _failure(status: str) -> FailureKind:
    return next(kind for kind in get_args(FailureKind) if kind == status)


def _check_gpus(pairs: Iterable[tuple[Record, Row]]) -> None:
    gpus: dict[str, int] = {}
    for record, row in pairs:
        config, first = row.cell.config, gpus.setdefault(row.cell.config, row.gpus)
        if first != row.gpus:
            raise record.error("gpus", f"config {config!r} had {first} before; give one number")


def _plain(row: Row) -> dict[str, float | str | bool | None]:
    """The row as cells of a table; absent ones are left out."""
    plain: dict[str, float | str | bool | None] = {
        "workload": row.cell.workload,
        "config": row.cell.config,
        "gpus": row.gpus,
        **row.features,
        row.cell.kind: row.cell.load,
        "throughput": None,
        "gpu_seconds": row.outcome.gpu_seconds,
        "status": "ok",
    }
    optional = {"seconds": row.seconds, "failed": row.failed, "repeat": row.repeat}
    plain |= {name: value for name, value in optional.items() if value is not None}
    if isinstance(row.outcome, Failed):
        return plain | {"status": row.outcome.kind}
    plain |= row.outcome.values
    plain |= {f"{name}_se": value for name, value in row.outcome.se.items()}
    plain |= {} if row.outcome.requests is None else {"requests": row.outcome.requests}
    return plain | ({"saturated": True} if row.outcome.saturated else {})
