"""A proposal: a cell that the engine asks for."""

from dataclasses import dataclass

from fleetsieve.cell import Cell


@dataclass(frozen=True)
class Proposal:
    """A cell to measure.

    Attributes:
        ticket: what to tell or abandon.
        gpu_seconds: what measuring it is expected to cost.
        expected_gap_reduction: E[Γ - Γ'] alone; 0 where no single cell is expected to move it.
        score: what ranks proposals: expected reduction of gap and distance per GPU-second.
    """

    ticket: int
    cell: Cell
    gpu_seconds: float
    expected_gap_reduction: float
    score: float
