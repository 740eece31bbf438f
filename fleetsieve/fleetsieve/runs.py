"""Benchmarks in the order in which they were told, as arrays."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Int8

from fleetsieve.problem import ABSENT, FAILED, MEASURED, Problem, Truth
from fleetsieve_measure import Measured, Outcome

# A failure of the kind "error" says nothing of a cell that was measured in another run.
ERRED = 3


@dataclass(frozen=True)
class Runs:
    """n runs; a cell that was measured again has several.

    Attributes:
        cell: flat index of each run's cell.
        status: MEASURED, FAILED, or ERRED.
        values: requests/s and seconds, NaN where not measured.
        se: standard errors, NaN where none is known.
        saturated: whether the replica could not keep up.
    """

    cell: Int[np.ndarray, " n"]
    status: Int8[np.ndarray, " n"]
    values: Float[np.ndarray, "n P"]
    se: Float[np.ndarray, "n P"]
    saturated: Bool[np.ndarray, " n"]

    @classmethod
    def of(cls, problem: Problem, told: Iterable[tuple[int, Outcome]]) -> "Runs":
        """The outcomes of cells, given by their flat indices."""
        told = list(told)
        names = problem.outputs
        values, se = (np.full((len(told), len(names)), np.nan) for _ in range(2))
        status = np.zeros(len(told), np.int8)
        saturated = np.zeros(len(told), bool)
        for i, (_, outcome) in enumerate(told):
            if isinstance(outcome, Measured):
                status[i], saturated[i] = MEASURED, outcome.saturated
                values[i] = [outcome.values.get(name, np.nan) for name in names]
                se[i] = [outcome.se.get(name, np.nan) for name in names]
            else:
                status[i] = ERRED if outcome.kind == "error" else FAILED
        return cls(np.array([cell for cell, _ in told], int), status, values, se, saturated)

    @classmethod
    def of_truth(cls, truth: Truth, cells: Int[np.ndarray, " n"]) -> "Runs":
        """One run of each cell that comes out as the truth says."""
        outputs = truth.values.shape[-1]
        return cls(
            cells,
            truth.status.ravel()[cells],
            truth.values.reshape(-1, outputs)[cells],
            truth.se.reshape(-1, outputs)[cells],
            truth.saturated.ravel()[cells],
        )

    def __len__(self) -> int:
        return len(self.cell)

    def first(self, count: int) -> "Runs":
        """The first `count` runs."""
        return Runs(*(array[:count] for array in vars(self).values()))

    def then(self, later: "Runs") -> "Runs":
        """These runs and `later` ones."""
        pairs = zip(vars(self).values(), vars(later).values(), strict=True)
        return Runs(*(np.concatenate(pair) for pair in pairs))

    def truth(self, problem: Problem) -> Truth:
        """What the runs of each cell say together: the median of what was measured."""
        size, outputs = problem.exists.size, len(problem.outputs)
        status, saturated = np.full(size, ABSENT, np.int8), np.zeros(size, bool)
        values, se = (np.full((size, outputs), np.nan) for _ in range(2))
        status[self.cell[self.status == ERRED]] = FAILED
        ok = self.status == MEASURED
        cells = self.cell[ok]
        status[cells] = MEASURED
        values[cells], se[cells] = self.values[ok], self.se[ok]
        for cell in repeated(cells):
            own = self.values[ok][cells == cell]
            values[cell] = [np.median(v[~np.isnan(v)]) if (v == v).any() else np.nan for v in own.T]
        status[self.cell[self.status == FAILED]] = FAILED
        np.logical_or.at(saturated, cells, self.saturated[ok])
        shape = problem.exists.shape
        return Truth(
            status.reshape(shape),
            values.reshape(*shape, outputs),
            se.reshape(*shape, outputs),
            saturated.reshape(shape),
        )


def repeated(cells: Int[np.ndarray, " n"]) -> Int[np.ndarray, " r"]:
    """The cells that occur more than once."""
    found, counts = np.unique(cells, return_counts=True)
    return found[counts > 1]
