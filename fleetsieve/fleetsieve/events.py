"""What a study consists of: the journal of asks, tells and abandoned asks."""

from dataclasses import dataclass

from fleetsieve.cell import Cell
from fleetsieve_measure import Outcome


@dataclass(frozen=True)
class Asked:
    """A cell was proposed; see `Proposal` for the fields."""

    ticket: int
    cell: Cell
    gpu_seconds: float
    expected_gap_reduction: float
    score: float


@dataclass(frozen=True)
class Told:
    """The outcome of a cell; `ticket` is None when it was never asked."""

    ticket: int | None
    cell: Cell
    outcome: Outcome


@dataclass(frozen=True)
class Abandoned:
    """An ask that will not be answered; its cell is never asked again."""

    ticket: int


Event = Asked | Told | Abandoned
