"""What a low-fidelity grid, the fleet file's `prior`, predicts of a fleet's cells."""

import numpy as np
from jaxtyping import Float

from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid
from fleetsieve.metric import order
from fleetsieve.observations import soften, units
from fleetsieve.problem import Problem
from fleetsieve_measure import Measured

# Two log loads that differ by less are the same level.
_SAME = 1e-9

Predicted = Float[np.ndarray, "N P"]


def prior_of(fleet: Fleet) -> Grid | None:
    """The grid that the fleet file names as its prior, if it names one.

    Raises:
        InputError: the file cannot be read or a row is wrong.
    """
    return None if fleet.prior_path is None else Grid.read(fleet.prior_path)


def predictions(problem: Problem, prior: Grid | None) -> Predicted | None:
    """What `prior` predicts, as `Observations.value` has it; NaN where it says nothing.

    Its rows are taken by workload, config and kind of load, and interpolated between load levels.
    A row that failed says nothing: predictors are wrong about memory. Without an SLO's statistic
    another one of the same latency stands in, since the model learns scale and offset anyway.

    Raises:
        InputError: it says nothing at all of this problem, or a config has other GPUs there.
    """
    if prior is None:
        return None
    _check_gpus(problem, prior)
    values = np.full((*problem.exists.shape, len(problem.outputs)), np.nan)
    columns = [_column_for(name, prior) for name in problem.outputs]
    for w, c in np.ndindex(problem.exists.shape[:2]):
        there = problem.exists[w, c]
        levels = np.log(problem.load[w, c, there])
        values[w, c, there] = _at(levels, _rows(problem, prior, w, c), columns)
    found = _in_model_scale(problem, values)
    if problem.n_cells and np.isnan(found).all():
        raise InputError(
            f"prior {prior.source} predicts no cell of this fleet; name a grid that has its "
            "workloads, configs and kind of load, or remove the key"
        )
    return found


def unpredicted(problem: Problem, predicted: Predicted | None, prior: Grid | None) -> str | None:
    """One sentence on what `prior` leaves open; None when it predicts every cell."""
    if predicted is None or prior is None:
        return None
    known = ~np.isnan(predicted)
    some = known.any(axis=0)
    without = [problem.outputs[p] for p in np.flatnonzero(~some)]
    used = known[:, some].all(axis=1) & problem.exists.ravel()
    open_ = problem.n_cells - int(used.sum())
    parts = [f"{open_} of {problem.n_cells} cells"] if open_ else []
    parts += [f"{' and '.join(without)} of any cell"] if without else []
    return f"{prior.source}: no prediction of {', nor of '.join(parts)}" if parts else None


def _check_gpus(problem: Problem, prior: Grid) -> None:
    for name, size in zip(problem.configs, problem.sizes, strict=True):
        gpus = prior.gpus.get(name, int(size))
        if gpus != size:
            raise InputError(
                f"prior {prior.source}: config {name!r} has gpus {gpus}, and the fleet {size}; "
                "give both the same, or remove its rows"
            )


def _column_for(output: str, prior: Grid) -> str | None:
    """The column of an output, else the highest statistic of the same latency."""
    if output == "throughput" or output in prior.metrics:
        return output
    family = order(output)[0]
    return max((m for m in prior.metrics if order(m)[0] == family), key=order, default=None)


def _rows(problem: Problem, prior: Grid, w: int, c: int) -> list[tuple[float, Measured]]:
    """Load and outcome of the rows of a column that ran to the end, by load."""
    cells = prior.by_pair.get((problem.workloads[w], problem.configs[c]), [])
    outcomes = [(x.load, prior.cells[x].outcome) for x in cells if x.kind == problem.kind[w]]
    return [(load, outcome) for load, outcome in outcomes if isinstance(outcome, Measured)]


def _at(
    levels: Float[np.ndarray, " L"],
    rows: list[tuple[float, Measured]],
    columns: list[str | None],
) -> Float[np.ndarray, "L P"]:
    """Values at log loads, on lines between the rows' in log-log; NaN outside their range."""
    found = np.full((len(levels), len(columns)), np.nan)
    for p, column in enumerate(columns):
        pairs = [(load, outcome.values.get(column or "", 0.0)) for load, outcome in rows]
        known = np.log([pair for pair in pairs if 0 < pair[1] < np.inf]).reshape(-1, 2)
        if len(known):
            load, value = known.T
            within = (load[0] - _SAME <= levels) & (levels <= load[-1] + _SAME)
            found[within, p] = np.exp(np.interp(levels[within], load, value))
    return found


def _in_model_scale(problem: Problem, values: Float[np.ndarray, "W C L P"]) -> Predicted:
    logs = np.log(values.reshape(problem.exists.size, -1)) - np.log(units(problem))
    return np.concatenate([logs[:, :1], soften(logs[:, 1:])[0]], axis=1)
