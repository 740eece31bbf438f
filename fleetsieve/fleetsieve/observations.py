"""Outcomes as the model sees them: log outputs, their noise, and what is known for certain."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from fleetsieve.problem import FAILED, MEASURED, Problem
from fleetsieve.runs import ERRED, Runs, repeated

# An infinite percentile or a throughput of 0, in log units: decisive, yet finite.
_FAR = 50.0
# Within this distance of the SLO, a factor of 1.6, a log ratio counts almost as it is.
_NEAR = 0.5


@dataclass(frozen=True)
class Observations:
    """Arrays over the N = W·C·L cells of a problem and its P outputs.

    Attributes:
        measured: ran to the end.
        broken: failed, saturated, or completed nothing.
        value: log(throughput / scale) and log(metric / reference), the latter softened; the median
            over runs, and 0 where not measured.
        seen: which outputs were measured, with a standard error that says something.
        noise: variance of `value` by the stated standard errors; 0 where exact or not seen.
        runs: how many runs `value` is the median of.
        scatter: sum of outer squares of the runs' deviations from their mean; 0 of a single one.
        varies: whether runs of one cell differ by more than their standard errors say.
    """

    measured: Bool[np.ndarray, " N"]
    broken: Bool[np.ndarray, " N"]
    value: Float[np.ndarray, "N P"]
    seen: Bool[np.ndarray, "N P"]
    noise: Float[np.ndarray, "N P"]
    runs: Int[np.ndarray, "N P"]
    scatter: Float[np.ndarray, "N P P"]
    varies: bool

    @classmethod
    def of(cls, problem: Problem, told: Runs, *, varies: bool = False) -> "Observations":
        """What runs of cells of `problem` say."""
        value, noise, seen = _as_logs(problem, told)
        size, shape = problem.exists.size, (problem.exists.size, value.shape[1])
        ok = told.status == MEASURED
        cells, value, noise, seen = told.cell[ok], value[ok], noise[ok], seen[ok]
        found = cls(
            measured=np.zeros(size, bool),
            broken=np.zeros(size, bool),
            value=np.zeros(shape),
            seen=np.zeros(shape, bool),
            noise=np.zeros(shape),
            runs=np.zeros(shape, int),
            scatter=np.zeros((*shape, shape[1])),
            varies=varies,
        )
        found.measured[cells] = True
        found.value[cells], found.noise[cells], found.seen[cells] = value, noise, seen
        found.runs[cells] = seen
        for cell in repeated(cells):
            found._combine(cell, *(part[cells == cell] for part in (value, noise, seen)))
        idle = seen[:, 0] & (told.values[ok, 0] == 0)
        found.broken[cells[told.saturated[ok] | idle]] = True
        found.broken[told.cell[told.status == FAILED]] = True
        erred = told.cell[told.status == ERRED]
        found.broken[erred[~found.measured[erred]]] = True
        return found

    def _combine(
        self,
        cell: int,
        value: Float[np.ndarray, "k P"],
        noise: Float[np.ndarray, "k P"],
        seen: Bool[np.ndarray, "k P"],
    ) -> None:
        """Enter the runs of one cell: their median, and how they scatter."""
        for p in np.flatnonzero(seen.any(axis=0)):
            each = value[seen[:, p], p]
            self.value[cell, p], self.seen[cell, p] = np.median(each), True
            self.runs[cell, p] = len(each)
            self.noise[cell, p] = share(len(each)) * noise[seen[:, p], p].mean()
        whole = value[seen.all(axis=1)]
        self.scatter[cell] = np.cov(whole.T, ddof=0) * len(whole) if len(whole) > 1 else 0.0

    @property
    def share(self) -> Float[np.ndarray, "N P"]:
        """Variance of `value` over that of a single run; 0 where runs do not vary."""
        most = share(np.arange(self.runs.max(initial=0) + 1))
        return np.where(self.varies & (self.noise > 0), most[self.runs], 0.0)

    @property
    def noisy(self) -> bool:
        """Whether something was measured that another run may find different."""
        return self.varies and bool((self.noise > 0).any())

    def told(self, truth: "Observations", index: int) -> "Observations":
        """With the cell at `index` as it is in `truth`."""
        parts = {name: part.copy() for name, part in vars(self).items() if name != "varies"}
        for name, part in parts.items():
            part[index] = getattr(truth, name)[index]
        return replace(self, **parts)

    @property
    def exact(self) -> Bool[np.ndarray, "N P"]:
        """Which outputs are known exactly."""
        return self.seen & (self.noise == 0)

    @property
    def modelled(self) -> Bool[np.ndarray, "N P"]:
        """Which outputs enter the model: seen, and neither infinite nor zero."""
        return self.seen & (np.abs(self.value) < _FAR)

    @property
    def n_measured(self) -> int:
        """Cells of which the outcome is known, failures included."""
        return int((self.measured | self.broken).sum())


def share(runs: Int[np.ndarray, " *k"] | int) -> Float[np.ndarray, " *k"]:
    """Variance of the median of `runs` runs over that of one, for Gaussian noise.

    Of one and two runs the median is the mean; of more its variance is at most π / 2 of the
    mean's.
    """
    k = np.maximum(runs, 1)
    return np.where(k < 3, 1.0, np.pi / 2) / k


def soften(
    log_ratio: Float[np.ndarray, "N M"],
) -> tuple[Float[np.ndarray, "N M"], Float[np.ndarray, "N M"]]:
    """k asinh(x / k) and its slope: x near the SLO, logarithmic far from it, the same sign.

    How far a saturated cell lies beyond its SLO decides nothing, and would make the model draw a
    line from a cliff's foot to its top.
    """
    far = log_ratio / _NEAR
    return _NEAR * np.arcsinh(far), 1 / np.sqrt(1 + far**2)


def sharpen(softened: Float[np.ndarray, "*k"]) -> Float[np.ndarray, "*k"]:
    """The log ratio that `soften` makes this of."""
    return _NEAR * np.sinh(softened / _NEAR)


def units(problem: Problem) -> Float[np.ndarray, "N P"]:
    """What outputs are relative to: `throughput_scale`, then each metric's reference."""
    scale = throughput_scale(problem)[:, None]
    per_workload = np.broadcast_to(
        problem.reference[:, None, None, :], (*problem.exists.shape, len(problem.outputs) - 1)
    )
    references = per_workload.reshape(problem.exists.size, len(problem.outputs) - 1)
    return np.concatenate([scale, references], axis=1)


def throughput_scale(problem: Problem) -> Float[np.ndarray, " N"]:
    """The offered rate where loads are rates, else 1 request/s."""
    return np.where(_open_loop(problem) & problem.exists, problem.load, 1.0).ravel()


def throughput_ceiling(problem: Problem) -> Float[np.ndarray, " N"]:
    """log(throughput / scale) of a server that keeps up: 0 where loads are rates, else no limit."""
    limit = np.where(_open_loop(problem), 0.0, np.inf)
    return np.broadcast_to(limit, problem.exists.shape).ravel()


def _open_loop(problem: Problem) -> Bool[np.ndarray, "W 1 1"]:
    return np.array([kind == "rate" for kind in problem.kind])[:, None, None]


def _as_logs(
    problem: Problem, told: Runs
) -> tuple[Float[np.ndarray, "n P"], Float[np.ndarray, "n P"], Bool[np.ndarray, "n P"]]:
    """Value and noise of each run, and which of its outputs say something."""
    se = np.nan_to_num(told.se, posinf=np.inf)
    seen = ~np.isnan(told.values) & np.isfinite(se)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log(told.values) - np.log(units(problem)[told.cell])
        relative = se / told.values
    softened, slope = soften(np.clip(value[:, 1:], -_FAR, _FAR))
    value[:, 1:] = np.where(np.isfinite(value[:, 1:]), softened, value[:, 1:])
    relative[:, 1:] *= slope
    noise = np.where(seen & np.isfinite(relative), relative**2, 0.0)
    return np.where(seen, np.clip(np.nan_to_num(value, nan=0.0), -_FAR, _FAR), 0.0), noise, seen
