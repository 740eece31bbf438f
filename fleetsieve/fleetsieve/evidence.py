"""Where the cells of a problem lie, and what was observed of them, as rows for the kernels."""

from dataclasses import dataclass
from typing import cast

import jax
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from fleetsieve.guess import guess_of
from fleetsieve.observations import Observations
from fleetsieve.predicted import Predicted
from fleetsieve.problem import Problem
from fleetsieve_kernels.covariance import Cells
from fleetsieve_kernels.padding import bucket
from fleetsieve_kernels.posterior import Noise, Rows, Table


@dataclass(frozen=True)
class Assumed:
    """Pending cells as if one run of each had been told: conditioned on where they lie.

    Attributes:
        index: flat indices of cells.
        value: their outputs, by their posterior means, so that no mean moves.
        noise: the variance that a run states, and that from run to run; 0 where exact.
    """

    index: Int[np.ndarray, " k"]
    value: Float[np.ndarray, "k P"]
    noise: tuple[Float[np.ndarray, "k P"], Float[np.ndarray, "k P"]]


class Evidence:
    """The cells of one problem, and observations of them, for the kernels."""

    def __init__(self, problem: Problem, predicted: Predicted | None) -> None:
        """`predicted` is what a cheap predictor says of the cells."""
        # NumPy, not JAX: an array of JAX that is pickled narrows to float32 outside the scope.
        places = _places(problem)
        self.places = (*places, guess_of(problem, predicted, places), _lowness(problem))

    def cells(self, index: Int[np.ndarray, " n"] | slice = slice(None)) -> Cells:
        """All cells, or those at flat indices."""
        return Cells(*(given(array[index]) for array in self.places))

    def data(self, observed: Observations, assumed: Assumed | None = None) -> Table | Rows:
        """Whole cells if all their outputs were seen alike, else output by output."""
        modelled = observed.modelled
        rows = np.flatnonzero(modelled.any(axis=1))
        if modelled[rows].all() and (observed.varies or not observed.noise[rows].any()):
            return self._table(observed, rows, assumed)
        return self._rows(observed, np.argwhere(modelled), assumed)

    def _table(
        self, observed: Observations, rows: Int[np.ndarray, " n"], assumed: Assumed | None
    ) -> Table:
        index, value = rows, observed.value[rows]
        noise, share = observed.noise[rows], observed.share[rows]
        spare, scatter = observed.runs[rows].min(axis=1) - 1.0, observed.scatter[rows]
        if assumed is not None:
            more = len(assumed.index)
            index, value = np.append(index, assumed.index), np.append(value, assumed.value, axis=0)
            noise = np.append(noise, assumed.noise[0], axis=0)
            share = np.append(share, 1.0 * (assumed.noise[1] > 0), axis=0)
            spare = np.append(spare, np.zeros(more))
            scatter = np.append(scatter, np.zeros((more, *scatter.shape[1:])), axis=0)
        size = bucket(len(index))
        found = Noise(*(_padded(part, size) for part in (noise, share, spare, scatter)))
        return Table(
            self.cells(np.pad(index, (0, size - len(index)))),
            _padded(value, size),
            given(np.arange(size) < len(index)),
            found if observed.varies else None,
        )

    def _rows(
        self, observed: Observations, pairs: Int[np.ndarray, "m 2"], assumed: Assumed | None
    ) -> Rows:
        cell, output = pairs.T
        value, noise = observed.value[cell, output], observed.noise[cell, output]
        share = observed.share[cell, output]
        if assumed is not None:
            outputs = assumed.value.shape[1]
            cell = np.append(cell, np.repeat(assumed.index, outputs))
            output = np.append(output, np.tile(np.arange(outputs), len(assumed.index)))
            value = np.append(value, assumed.value)
            noise = np.append(noise, assumed.noise[0])
            share = np.append(share, 1.0 * (assumed.noise[1] > 0))
        size = bucket(len(cell))
        return Rows(
            self.cells(np.pad(cell, (0, size - len(cell)))),
            given(np.pad(output, (0, size - len(cell)))),
            _padded(value, size),
            _padded(noise, size),
            given(np.arange(size) < len(cell)),
            _padded(share, size) if observed.varies else None,
        )


def given(part: ArrayLike) -> jax.Array:
    """NumPy, called an array of JAX: a compiled program takes it as it is.

    `jnp.asarray` would compile a program for every shape, and `jax.device_put` takes as long as a
    small program.
    """
    return cast("jax.Array", np.asarray(part))


def _padded(part: np.ndarray, size: int) -> jax.Array:
    return given(np.pad(part, [(0, size - len(part)), *[(0, 0)] * (part.ndim - 1)]))


def _places(problem: Problem) -> tuple[np.ndarray, ...]:
    """Ids, workloads, features and categories of all cells: `Cells` without a guess."""
    w, c, _ = (axis.ravel() for axis in np.indices(problem.exists.shape))
    load = np.log2(np.where(problem.exists, problem.load, 1.0)).ravel()
    features = np.concatenate([load[:, None], problem.features[c]], axis=1)
    kinds = np.array([kind == "rate" for kind in problem.kind])[w]
    for kind in (False, True):
        rows = kinds == kind
        present = rows & problem.exists.ravel()
        if present.any():
            features[rows] -= features[present].mean(axis=0)
    return np.arange(len(w)), w, features, problem.categories[c]


def _lowness(problem: Problem) -> Float[np.ndarray, " N"]:
    """Lowest load of the column over the load; levels are left-packed."""
    load = np.where(problem.exists, problem.load, 1.0)
    return np.where(problem.exists, load[..., :1] / load, 0.0).ravel()
