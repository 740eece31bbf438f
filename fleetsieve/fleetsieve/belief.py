"""What the model believes of a fleet's cells: the bridge from problems to kernels.

Everything runs in float64, in one synchronous scope per call; NumPy goes in and comes out. It goes
in by `jax.device_put`: `jnp.asarray` compiles a program for every shape.
"""

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtri

from fleetsieve.guess import guess_of
from fleetsieve.hyperposterior import centre, chains, thinned, warning_of
from fleetsieve.observations import Observations, share, throughput_scale
from fleetsieve.predicted import Predicted
from fleetsieve.problem import Problem
from fleetsieve.tails import excess
from fleetsieve_kernels.acquisition import Fleet as FleetFacts
from fleetsieve_kernels.acquisition import Needs, assume, expected_gains, gap_at, view
from fleetsieve_kernels.bounds import Doubt, Known, Levels, own_variances, quantile
from fleetsieve_kernels.clairvoyance import Outcomes, true_gains
from fleetsieve_kernels.covariance import Cells
from fleetsieve_kernels.fit import fit, inflation, laplace_draws
from fleetsieve_kernels.hyper import Hyper, constrain, prior_median
from fleetsieve_kernels.padding import bucket
from fleetsieve_kernels.posterior import (
    Noise,
    Posterior,
    Rows,
    Table,
    condition,
    run_variance,
)
from fleetsieve_kernels.regret import regrets

_FANTASIES, _DRAWS = 8, 32
# Few cells leave room for several modes of the hyperparameters; many do not, and cost more.
_STARTS, _FEW = 3, 32
# A log ratio that certainly holds or breaks an SLO.
_SURE = 20.0


@dataclass(frozen=True)
class Hypothesis:
    """Hyperparameters, and how sure they are.

    Attributes:
        theta: the fit, unconstrained.
        draws: of their posterior, along a leading axis.
        inflation: how much their uncertainty widens each sd.
        warning: a sentence if the draws are not to be trusted.
    """

    theta: Mapping[str, np.ndarray]
    draws: Mapping[str, np.ndarray]
    inflation: Float[np.ndarray, "N P"]
    warning: str | None = None

    @property
    def hyper(self) -> Hyper:
        """`theta` for the kernels, in the precision of the caller's scope."""
        return {name: jax.device_put(value) for name, value in self.theta.items()}

    @cached_property
    def run_variance(self) -> Float[np.ndarray, " P"] | float:
        """Variance of each output from run to run; 0 where nothing noisy was seen."""
        if "run" not in self.theta:
            return 0.0
        with jax.enable_x64(True):
            return np.asarray(run_variance(constrain(self.hyper)))


@dataclass(frozen=True)
class Assessment:
    """Bounds under some observations; see `fleetsieve_kernels.acquisition.View`."""

    mean: Float[np.ndarray, "N P"]
    sd: Float[np.ndarray, "N P"]
    width: Float[np.ndarray, "N P"]
    kappa_lower: Float[np.ndarray, "W C"]
    kappa_upper: Float[np.ndarray, "W C"]
    value_lower: float
    value_upper: float

    @property
    def gap(self) -> float:
        """Γ, never below 0."""
        return max(self.value_upper - self.value_lower, 0.0)


class Belief:
    """The joint model of one problem. Holds no observations: every method takes them."""

    def __init__(
        self,
        problem: Problem,
        *,
        confidence: float,
        measured_only: bool = True,
        predicted: Predicted | None = None,
        inference: str = "map",
    ) -> None:
        """Prepare the arrays of `problem`; `confidence` is that of all bounds together.

        `predicted` is what a cheap predictor says of the cells, see `fleetsieve.predicted`.
        `inference` of the hyperparameters: "map", with a Laplace approximation, or "nuts".
        """
        self.problem, self.confidence, self._inference = problem, confidence, inference
        self.exists = problem.exists.ravel()
        self.limited = np.isfinite(_per_cell(problem, problem.limit))
        limited = bool(problem.min_replicas.any() or (problem.max_replicas < _most(problem)).any())
        self._facts = FleetFacts(
            problem.objective,
            tuple(int(size) for size in problem.sizes),
            problem.gpus,
            problem.exists.shape,
            measured_only,
            limited,
        )
        # NumPy, not JAX: an array of JAX that is pickled narrows to float32 outside the scope.
        places = _places(problem)
        self._places = (*places, guess_of(problem, predicted, places), _lowness(problem))

    @property
    def _cells(self) -> Cells:
        return self._at(np.arange(len(self.exists)))

    def _at(self, index: Int[np.ndarray, " n"]) -> Cells:
        return Cells(*(jax.device_put(array[index]) for array in self._places))

    @property
    def outputs(self) -> int:
        """P."""
        return len(self.problem.outputs)

    def learn(self, observed: Observations) -> Hypothesis:
        """Hyperparameters from the observations alone: the same data, the same answer."""
        if not self.problem.n_cells:
            return Hypothesis({}, {}, np.ones_like(observed.value))
        with jax.enable_x64(True):
            data = self._data(observed)
            count = _STARTS if observed.n_measured <= _FEW else 1
            theta, _ = fit(self._starts(count, observed.noisy), data)
            warning = None
            if self._inference == "nuts":
                found = chains(theta, data)
                theta, draws, warning = centre(found), thinned(found), warning_of(found)
            else:
                size = sum(leaf.size for leaf in theta.values())
                draws = laplace_draws(theta, data, _normal_draws(_DRAWS, size))
            wide = inflation(theta, draws, data, self._cells)
            return Hypothesis(_plain(theta), _plain(draws), np.asarray(wide), warning)

    def assess(self, observed: Observations, hypothesis: Hypothesis) -> Assessment:
        """Bounds of capacity and value."""
        q = quantile(self.confidence, self.uncertain(observed))
        if not self.problem.n_cells:
            nothing, none = np.zeros_like(observed.value), np.zeros(self.problem.exists.shape[:2])
            return Assessment(nothing, nothing, nothing, none, none, 0.0, 0.0)
        with jax.enable_x64(True):
            seen = view(
                hypothesis.hyper,
                jax.device_put(hypothesis.inflation),
                jax.device_put(q),
                self._data(observed),
                self._cells,
                _known(observed),
                self._levels(),
                self._needs(),
                self._facts,
                self._doubt(observed, hypothesis, q),
            )
            mean, sd, width, lower, upper = (np.asarray(part) for part in seen[:5])
        values = float(seen.value_lower), float(seen.value_upper)
        return Assessment(mean, sd, width, lower, upper, *values)

    def least_gap(
        self,
        observed: Observations,
        hypothesis: Hypothesis,
        found: Assessment,
        free: Bool[np.ndarray, " N"],
        runs: int,
    ) -> float:
        """The gap that measuring all cells in `free` may leave, at best.

        Those not measured yet are taken to break their SLOs, to be as expected, or to hold with all
        the throughput that they may have; for certain, and whichever leaves the least. The others
        get as narrow as `runs` runs of them and the best that other cells can tell make them, and
        lie a standard deviation further from their SLOs.
        """
        q = quantile(self.confidence, self.uncertain(observed))
        own = self._next_noise(observed, hypothesis) * share(runs)
        again, new = (part[:, None] for part in (observed.measured, free & ~observed.measured))
        with jax.enable_x64(True):
            others = np.asarray(own_variances(constrain(hypothesis.hyper), self._cells))
        last = q * np.sqrt(own * others / (own + others))
        width = np.where(again, np.minimum(found.width, last), found.width)
        centre = np.where(again, found.mean + found.sd * np.sign(found.mean), found.mean)
        most = np.concatenate([(found.mean + found.width)[:, :1], -_SURE * self.limited], axis=1)
        known = _known(observed)
        known = known._replace(measured=known.measured | free)
        gaps = []
        with jax.enable_x64(True):
            for outcome in (found.mean + _SURE, found.mean, most):
                gap = gap_at(
                    hypothesis.hyper,
                    jax.device_put(q),
                    jax.device_put(np.where(new, outcome, centre)),
                    jax.device_put(np.where(new, 0.0, width)),
                    self._cells,
                    known,
                    self._levels(),
                    self._needs(),
                    self._facts,
                )
                gaps.append(float(gap))
        return min(gaps)

    def gains(
        self, observed: Observations, hypothesis: Hypothesis, pending: Iterable[int] = ()
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Expected reduction of the gap and of the distance by each cell; see the kernels.

        Pending cells count as measured at their posterior mean: the covariance is conditioned on
        where they lie, the mean stays.
        """
        q = quantile(self.confidence, self.uncertain(observed))
        noise = self._next_noise(observed, hypothesis)
        with jax.enable_x64(True):
            posterior = condition(constrain(hypothesis.hyper), self._data(observed), self._cells)
            known = _known(observed)
            for index in pending:
                posterior, known = _assumed(posterior, known, index, noise[index])
            found = expected_gains(
                hypothesis.hyper,
                jax.device_put(hypothesis.inflation),
                jax.device_put(q),
                posterior,
                noise,
                _fantasy_nodes(self.outputs),
                self._cells,
                known,
                self._levels(),
                self._needs(),
                self._facts,
                self._doubts(observed, hypothesis, q, noise),
            )
            return np.nan_to_num(found.gap), np.nan_to_num(found.distance)

    def true_gains(
        self, observed: Observations, truth: Observations, hypothesis: Hypothesis
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Reduction of the gap and of the distance by each cell's outcome in `truth`."""
        free = np.flatnonzero(self.exists & ~observed.broken & ~observed.exact.all(axis=1))
        now = quantile(self.confidence, self.uncertain(observed))
        q = np.full(len(self.exists), now)
        for index in free.tolist():
            q[index] = quantile(self.confidence, self.uncertain(observed.told(truth, index)))
        with jax.enable_x64(True):
            posterior = condition(constrain(hypothesis.hyper), self._data(observed), self._cells)
            found = true_gains(
                hypothesis.hyper,
                jax.device_put(hypothesis.inflation),
                jax.device_put(now),
                posterior,
                Outcomes(
                    jax.device_put(truth.value),
                    jax.device_put(truth.noise),
                    jax.device_put(truth.modelled),
                    _known(truth),
                    jax.device_put(q),
                ),
                self._cells,
                _known(observed),
                self._levels(),
                self._needs(),
                self._facts,
                self._doubt(observed, hypothesis, now),
            )
            return np.nan_to_num(found.gap), np.nan_to_num(found.distance)

    def draws(
        self, observed: Observations, hypothesis: Hypothesis, count: int, seed: int
    ) -> Float[np.ndarray, "S N P"]:
        """Joint posterior draws of all outputs, inflated as the bounds are."""
        if not self.problem.n_cells:
            return np.zeros((count, *observed.value.shape))
        with jax.enable_x64(True):
            posterior = condition(constrain(hypothesis.hyper), self._data(observed), self._cells)
            mean, covariance = np.asarray(posterior.mean), np.asarray(posterior.covariance)
        flat = covariance.reshape(mean.size, mean.size)
        values, vectors = np.linalg.eigh((flat + flat.T) / 2)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = np.random.default_rng(seed).standard_normal((count, mean.size))
        deviation = (normal @ root.T).reshape(count, *mean.shape) * hypothesis.inflation
        drawn = mean + np.where(observed.exact, 0.0, deviation)
        return np.where(observed.exact, observed.value, drawn)

    def regrets(
        self,
        observed: Observations,
        hypothesis: Hypothesis,
        replicas: Int[np.ndarray, "W C"],
        part: int,
        count: int,
        rng: np.random.Generator,
    ) -> Float[np.ndarray, " k"]:
        """What `replicas` lose in `count` joint draws under draw `part` of the hyperparameters."""
        shape = observed.value.shape
        nodes = rng.standard_normal((count, observed.value.size))
        white = rng.standard_normal((count, shape[0], shape[1] - 1))
        with jax.enable_x64(True):
            found = regrets(
                {name: jax.device_put(leaf[part]) for name, leaf in hypothesis.draws.items()},
                self._data(observed),
                self._cells,
                _known(observed),
                self._levels(),
                self._needs(),
                jax.device_put(replicas),
                jax.device_put(nodes),
                jax.device_put(white),
                self._facts,
            )
            return np.asarray(found)

    def breaks(self, observed: Observations) -> Bool[np.ndarray, " N"]:
        """Cells known to break: failed, saturated, or exactly over an SLO."""
        over = observed.exact[:, 1:] & self.limited & (observed.value[:, 1:] > 0)
        return observed.broken | over.any(axis=1)

    def uncertain(self, observed: Observations) -> int:
        """How many outputs of cells the bounds must hold for at the same time."""
        return int((self.stated(observed) & ~observed.exact).sum())

    def stated(self, observed: Observations) -> Bool[np.ndarray, "N P"]:
        """Outputs that bounds are stated for: throughput and what has an SLO, below a break."""
        columns = self.breaks(observed).reshape(self.problem.exists.shape)
        below = ~np.maximum.accumulate(columns, axis=2).ravel()
        matters = np.concatenate([np.ones_like(self.limited[:, :1]), self.limited], axis=1)
        return (self.exists & below)[:, None] & matters

    def _data(self, observed: Observations) -> Table | Rows:
        modelled = observed.modelled
        rows = np.flatnonzero(modelled.any(axis=1))
        if modelled[rows].all() and (observed.varies or not observed.noise[rows].any()):
            return self._table(observed, rows)
        return self._rows(observed, np.argwhere(modelled))

    def _table(self, observed: Observations, rows: Int[np.ndarray, " n"]) -> Table:
        index, mask = _padded(rows)
        values = np.where(mask[:, None], observed.value[index], 0.0)
        noise = self._noise_of(observed, index, mask) if observed.noisy else None
        return Table(self._at(index), jax.device_put(values), jax.device_put(mask), noise)

    def _noise_of(
        self, observed: Observations, index: Int[np.ndarray, " n"], mask: Bool[np.ndarray, " n"]
    ) -> Noise:
        spare = np.where(mask, observed.runs.min(axis=1)[index] - 1, 0).astype(float)
        parts = (observed.noise[index], observed.share[index], spare, observed.scatter[index])
        return Noise(*(jax.device_put(part) for part in parts))

    def _rows(self, observed: Observations, pairs: Int[np.ndarray, "m 2"]) -> Rows:
        order, mask = _padded(np.arange(len(pairs)))
        cell, output = pairs[order].T if len(pairs) else np.zeros((2, len(order)), int)
        return Rows(
            self._at(cell),
            jax.device_put(output),
            jax.device_put(np.where(mask, observed.value[cell, output], 0.0)),
            jax.device_put(observed.noise[cell, output]),
            jax.device_put(mask),
            jax.device_put(observed.share[cell, output]) if observed.noisy else None,
        )

    def _noise(self, observed: Observations, hypothesis: Hypothesis) -> Float[np.ndarray, "N P"]:
        """Variance of what was measured, that from run to run included; 0 where exact or not."""
        return observed.noise + observed.share * hypothesis.run_variance

    def _next_noise(
        self, observed: Observations, hypothesis: Hypothesis
    ) -> Float[np.ndarray, "N P"]:
        """Variance of one more run of each cell: as stated there, else as is typical."""
        if not observed.noisy:
            return np.zeros_like(observed.value)
        share = observed.share
        single = np.where(share > 0, observed.noise / np.where(share > 0, share, 1.0), np.nan)
        typical = [
            np.median(row[~np.isnan(row)]) if (row == row).any() else 0.0 for row in single.T
        ]
        stated = np.where(np.isnan(single), typical, single)
        return np.where(np.array(typical) > 0, stated + hypothesis.run_variance, 0.0)

    def _doubts(
        self, observed: Observations, hypothesis: Hypothesis, q: float, run: np.ndarray
    ) -> tuple[Doubt, Doubt] | None:
        """The doubt of cells as they are, and after one more run of the variance `run` each."""
        now = self._doubt(observed, hypothesis, q)
        if now is None:
            return None
        with np.errstate(divide="ignore"):
            together = 1 / (1 / np.asarray(now.noise) + 1 / run)
        noise = np.where(run > 0, together, np.inf)
        wider = excess(q, observed.runs.max(initial=0) + 1)[observed.runs + 1]
        return now, Doubt(jax.device_put(noise), jax.device_put(wider))

    def _doubt(self, observed: Observations, hypothesis: Hypothesis, q: float) -> Doubt | None:
        if not observed.noisy:
            return None
        noise = self._noise(observed, hypothesis)
        wider = excess(q, observed.runs.max(initial=0))[observed.runs]
        return Doubt(jax.device_put(np.where(noise > 0, noise, np.inf)), jax.device_put(wider))

    def _starts(self, count: int, noisy: bool = False) -> Hyper:
        """The prior's median, and points half a unit of log scale around it."""
        features, categories, guesses = (array.shape[1] for array in self._places[2:5])
        median = prior_median(self.outputs, features, categories, noisy, guesses)
        draws = np.random.default_rng(0)
        around = {k: 0.5 * draws.standard_normal((count, *v.shape)) for k, v in median.items()}
        return {
            name: jax.device_put(
                leaf + np.concatenate([np.zeros((1, *leaf.shape)), around[name][1:]])
            )
            for name, leaf in median.items()
        }

    def _levels(self) -> Levels:
        scale = throughput_scale(self.problem)
        return Levels(
            jax.device_put(self.exists), jax.device_put(self.limited), jax.device_put(scale)
        )

    def _needs(self) -> Needs:
        problem = self.problem
        given = (problem.demand, problem.weight, problem.min_replicas, problem.max_replicas)
        return Needs(*(jax.device_put(part) for part in given))


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache directory, unless JAX was told where."""
    where = "jax_compilation_cache_dir"
    if getattr(jax.config, where, None) is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update(where, str(home / "fleetsieve" / "jax"))
        # Small programs, too: a second start compiles nothing, and they take hardly any room.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _plain(hyper: Hyper) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in hyper.items()}


def _most(problem: Problem) -> int:
    """More replicas than this never fit."""
    return problem.gpus // int(problem.sizes.min()) if problem.sizes.size else 0


def _per_cell(problem: Problem, values: Float[np.ndarray, "W M"]) -> Float[np.ndarray, "N M"]:
    spread = np.broadcast_to(values[:, None, None, :], (*problem.exists.shape, values.shape[1]))
    return spread.reshape(problem.exists.size, values.shape[1])


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


def _known(observed: Observations) -> Known:
    value = np.where(observed.exact, observed.value, 0.0)
    arrays = (value, observed.exact, observed.measured, observed.broken)
    return Known(*(jax.device_put(array) for array in arrays))


def _assumed(
    posterior: Posterior, known: Known, index: int, noise: Float[np.ndarray, " P"]
) -> tuple[Posterior, Known]:
    here = (jnp.arange(len(known.measured)) == index)[:, None]
    exact = here & (noise == 0)
    value = jnp.where(exact, posterior.mean, known.value)
    then = Known(value, known.exact | exact, known.measured | here[:, 0], known.broken)
    return assume(posterior, jax.device_put(index), jax.device_put(noise)), then


def _padded(rows: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " b"], Bool[np.ndarray, " b"]]:
    size = bucket(len(rows))
    return np.pad(rows, (0, size - len(rows))), np.arange(size) < len(rows)


@functools.cache
def _fantasy_nodes(outputs: int) -> Float[np.ndarray, "K P"]:
    """Quasi-random normal nodes with mean 0."""
    from scipy.stats import qmc

    uniform = qmc.Sobol(outputs, rng=0).random(_FANTASIES)
    nodes = ndtri(np.clip(uniform, 1e-4, 1 - 1e-4))
    return nodes - nodes.mean(axis=0)


@functools.cache
def _normal_draws(count: int, size: int) -> Float[np.ndarray, "S k"]:
    """Antithetic standard normal draws, the same at every call."""
    half = np.random.default_rng(0).standard_normal((count // 2, size))
    return np.concatenate([half, np.negative(half)])
