"""What a report of a study shows: numbers and names, no pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fleetsieve.cell import Cell, LoadKind
from fleetsieve.standing import Standing

State = Literal["held", "broke", "saturated", "failed"]
"""What a benchmark said of its cell: within its SLOs, over one, did not keep up, gave no number."""


@dataclass(frozen=True)
class Benchmark:
    """One benchmark of a cell; `number` counts them from 1 in the order in which they ended.

    Attributes:
        again: whether its cell was measured before.
        values: requests/s and seconds, by output.
        why: of a failure its kind and reason, else of a broken SLO which one.
        launch: the part of `gpu_seconds` that launching a server took.
        asked: whether the fleet asks about the cell still.
    """

    number: int
    cell: Cell
    again: bool
    state: State
    values: Mapping[str, float]
    why: str
    gpu_seconds: float
    launch: float
    asked: bool


@dataclass(frozen=True)
class Bound:
    """What an output is expected to be, and between which bounds it lies."""

    lower: float
    middle: float
    upper: float


@dataclass(frozen=True)
class Level:
    """A load level of a column; an output without a bound is one that none is stated for."""

    load: float
    measured: bool
    bounds: Mapping[str, Bound]


@dataclass(frozen=True)
class Column:
    """A workload on a config: its load levels, and what was measured of them."""

    workload: str
    config: str
    kind: LoadKind
    replicas: int
    capacity: tuple[float, float]
    limits: Mapping[str, float]
    levels: Sequence[Level]
    benchmarks: Sequence[Benchmark]

    @property
    def measured(self) -> int:
        """How many levels have been measured."""
        return sum(level.measured for level in self.levels)


@dataclass(frozen=True)
class History:
    """Where the run stood after each measurement, and why earlier ones are not among them."""

    standings: Sequence[Standing]
    note: str | None = None


@dataclass(frozen=True)
class Environment:
    """What was measured with; each part is a list of names and what they are."""

    general: Sequence[tuple[str, str]]
    engines: Mapping[str, Sequence[tuple[str, str]]]


@dataclass(frozen=True)
class Findings:
    """A study as its report shows it; `decision` is the JSON form.

    Attributes:
        exhaustive: GPU-seconds of measuring every cell.
        pending: cells that were asked and neither told nor given up.
        known: whether anything says what loads do, a measurement or a prior.
    """

    title: str
    decision: Mapping[str, Any]
    gpus_per_node: int
    kinds: Mapping[str, LoadKind]
    cells: int
    exhaustive: float
    columns: Sequence[Column]
    benchmarks: Sequence[Benchmark]
    pending: Sequence[Cell]
    history: History
    environment: Environment
    known: bool = True
