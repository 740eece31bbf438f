"""Outcomes as the model sees them: log outputs, their noise, and what is known for certain."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from fleetsieve.problem import FAILED, MEASURED, Problem, Truth

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
        value: log(throughput / scale) and log(metric / reference), the latter softened; 0 where
            not measured.
        seen: which outputs were measured, with a standard error that says something.
        noise: variance of `value`; 0 where exact or not seen.
    """

    measured: Bool[np.ndarray, " N"]
    broken: Bool[np.ndarray, " N"]
    value: Float[np.ndarray, "N P"]
    seen: Bool[np.ndarray, "N P"]
    noise: Float[np.ndarray, "N P"]

    @classmethod
    def of(cls, problem: Problem, truth: Truth) -> "Observations":
        """The observations in `truth`, outcomes of some cells of `problem`."""
        outputs = len(problem.outputs)
        raw = truth.values.reshape(problem.exists.size, outputs)
        se = np.nan_to_num(truth.se.reshape(raw.shape), posinf=np.inf)
        seen = ~np.isnan(raw) & np.isfinite(se)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.log(raw) - np.log(units(problem))
            relative = se / raw
            finite = np.clip(value[:, 1:], -_FAR, _FAR)
        softened, slope = soften(finite)
        value[:, 1:] = np.where(np.isfinite(value[:, 1:]), softened, value[:, 1:])
        relative[:, 1:] *= slope
        noise = np.where(seen & np.isfinite(relative), relative**2, 0.0)
        idle = seen[:, 0] & (raw[:, 0] == 0)
        return cls(
            measured=(truth.status == MEASURED).ravel(),
            broken=((truth.status == FAILED) | truth.saturated).ravel() | idle,
            value=np.where(seen, np.clip(np.nan_to_num(value, nan=0.0), -_FAR, _FAR), 0.0),
            seen=seen,
            noise=noise,
        )

    def told(self, truth: "Observations", index: int) -> "Observations":
        """With the cell at `index` as it is in `truth`."""
        here = np.arange(len(self.measured)) == index
        parts = {
            name: np.where(here if old.ndim == 1 else here[:, None], getattr(truth, name), old)
            for name, old in vars(self).items()
        }
        return Observations(**parts)

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


def soften(
    log_ratio: Float[np.ndarray, "N M"],
) -> tuple[Float[np.ndarray, "N M"], Float[np.ndarray, "N M"]]:
    """k asinh(x / k) and its slope: x near the SLO, logarithmic far from it, the same sign.

    How far a saturated cell lies beyond its SLO decides nothing, and would make the model draw a
    line from a cliff's foot to its top.
    """
    far = log_ratio / _NEAR
    return _NEAR * np.arcsinh(far), 1 / np.sqrt(1 + far**2)


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
    rates = np.array([kind == "rate" for kind in problem.kind])[:, None, None]
    return np.where(rates & problem.exists, problem.load, 1.0).ravel()
