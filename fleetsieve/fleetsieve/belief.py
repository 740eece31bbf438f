"""What the model believes of a fleet's cells: the bridge from problems to kernels.

Everything runs in float64, in one synchronous scope per call; NumPy goes in and comes out.
"""

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtri

from fleetsieve.evidence import Assumed, Evidence, given
from fleetsieve.hyperposterior import centre, chains, thinned, warning_of
from fleetsieve.noise import doubt, doubts, next_noise, next_noises
from fleetsieve.observations import Observations, share, throughput_ceiling, throughput_scale
from fleetsieve.predicted import Predicted
from fleetsieve.problem import Problem
from fleetsieve_kernels.acquisition import Fleet as FleetFacts
from fleetsieve_kernels.acquisition import Gains, Needs, expected_gains, gap_at, view
from fleetsieve_kernels.allocation import value
from fleetsieve_kernels.bounds import Known, Levels, own_variances, quantile
from fleetsieve_kernels.clairvoyance import Outcomes, true_gains
from fleetsieve_kernels.covariance import Cells
from fleetsieve_kernels.devices import scored
from fleetsieve_kernels.fit import fit, inflation, laplace_draws
from fleetsieve_kernels.hyper import Hyper, constrain, prior_median
from fleetsieve_kernels.posterior import (
    Posterior,
    condition,
    joint,
    run_variance,
    within,
)
from fleetsieve_kernels.regret import regrets
from fleetsieve_kernels.screening import own_gains

# Fantasies of the rough score, and draws of the hyperparameters.
_ROUGH, _DRAWS = 4, 32
# Candidates whose covariances with all cells are held at once.
_TOGETHER = 32
# Few cells leave room for several modes of the hyperparameters; many do not, and cost more.
_STARTS, _FEW = 3, 32


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
        return {name: given(value) for name, value in self.theta.items()}

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
        fantasies: int = 8,
    ) -> None:
        """Prepare the arrays of `problem`; `confidence` is that of all bounds together.

        `predicted` is what a cheap predictor says of the cells, see `fleetsieve.predicted`.
        `inference` of the hyperparameters: "map", with a Laplace approximation, or "nuts".
        `fantasies` is how many outcomes of a cell the score looks at.
        """
        self._fantasies = fantasies
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
        self._evidence = Evidence(problem, predicted)

    @property
    def _cells(self) -> Cells:
        return self._evidence.cells()

    @property
    def outputs(self) -> int:
        """P."""
        return len(self.problem.outputs)

    @property
    def best_first(self) -> bool:
        """Whether `learn` keeps the hyperparameters of `fit` and only widens the bounds."""
        return self._inference == "map"

    def fit(self, observed: Observations) -> Hypothesis:
        """The best hyperparameters, as if they were certain, so that bounds are too narrow."""
        if not self.problem.n_cells:
            return Hypothesis({}, {}, np.ones_like(observed.value))
        with jax.enable_x64(True):
            count = _STARTS if observed.n_measured <= _FEW else 1
            data = self._evidence.data(observed)
            theta, _ = fit(self._starts(count, observed.varies), data)
            return Hypothesis(_plain(theta), {}, np.ones_like(observed.value))

    def learn(self, observed: Observations, best: Hypothesis | None = None) -> Hypothesis:
        """Hyperparameters from the observations alone: the same data, the same answer.

        `best` is what `fit` found, if that was asked before.
        """
        best = best or self.fit(observed)
        if not best.theta:
            return best
        with jax.enable_x64(True):
            data, theta = self._evidence.data(observed), best.hyper
            warning = None
            if self._inference == "nuts":
                found = chains(theta, data)
                theta, draws, warning = centre(found), thinned(found), warning_of(found)
            else:
                size = sum(leaf.size for leaf in theta.values())
                draws = laplace_draws(theta, data, _normal_draws(_DRAWS, size))
            wide = inflation(theta, draws, data, self._cells)
            return Hypothesis(_plain(theta), _plain(draws), np.asarray(wide), warning)

    def assess(
        self,
        observed: Observations,
        hypothesis: Hypothesis,
        left: Int[np.ndarray, " N"] | None = None,
    ) -> Assessment:
        """Bounds of capacity and value.

        With the runs that cells have `left`, bounds at face value: a measured cell is within
        1 sd of what it showed, and as it showed once it has no runs left.
        """
        q = quantile(self.confidence, self.uncertain(observed))
        if not self.problem.n_cells:
            nothing, none = np.zeros_like(observed.value), np.zeros(self.problem.exists.shape[:2])
            return Assessment(nothing, nothing, nothing, none, none, 0.0, 0.0)
        with jax.enable_x64(True):
            seen = view(
                hypothesis.hyper,
                given(hypothesis.inflation),
                given(q),
                self._evidence.data(observed),
                self._cells,
                _known(observed),
                self._levels(),
                self._needs(),
                self._facts,
                doubt(observed, hypothesis.run_variance, q, left),
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
        """The gap that measuring all cells in `free` would leave, by and large.

        Those not measured yet are taken to be as expected, for certain. The others get as narrow as
        `runs` runs of them and the best that other cells can tell make them, and lie a standard
        deviation further from their SLOs.
        """
        q = quantile(self.confidence, self.uncertain(observed))
        own = next_noise(observed, hypothesis.run_variance) * share(runs)
        again, new = (part[:, None] for part in (observed.measured, free & ~observed.measured))
        with jax.enable_x64(True):
            others = np.asarray(own_variances(constrain(hypothesis.hyper), self._cells))
        last = q * np.sqrt(own * others / (own + others))
        width = np.where(again, np.minimum(found.width, last), found.width)
        centre = np.where(again, found.mean + found.sd * np.sign(found.mean), found.mean)
        known = _known(observed)
        known = known._replace(measured=known.measured | free)
        with jax.enable_x64(True):
            gap = gap_at(
                hypothesis.hyper,
                given(q),
                given(centre),
                given(np.where(new, 0.0, width)),
                self._cells,
                known,
                self._levels(),
                self._needs(),
                self._facts,
            )
        return float(gap)

    def gains(
        self,
        observed: Observations,
        hypothesis: Hypothesis,
        pending: Iterable[int] = (),
        left: Int[np.ndarray, " N"] | None = None,
        among: Bool[np.ndarray, " N"] | None = None,
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Expected reduction of the gap and of the distance by each cell; see the kernels.

        Pending cells count as measured at their posterior mean: the covariance is conditioned on
        where they lie, the mean stays. `left` as in `assess`; cells that are not in `among` get 0.
        """
        if among is None:
            among = self._open(observed)
        with jax.enable_x64(True):
            posterior, state = self._outlook(observed, hypothesis, tuple(pending), left)
            return self._each(expected_gains, among, posterior, state)

    def own_gains(
        self,
        observed: Observations,
        hypothesis: Hypothesis,
        pending: Iterable[int] = (),
        left: Int[np.ndarray, " N"] | None = None,
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """What cells do to the distance, and to the capacity range, of their own columns alone."""
        columns = np.arange(len(self.exists)).reshape(-1, self.problem.exists.shape[2])
        with jax.enable_x64(True):
            posterior, state = self._outlook(observed, hypothesis, tuple(pending), left)
            state["nodes"] = given(_fantasy_nodes(self.outputs, _ROUGH))
            found = own_gains(columns=within(posterior, columns), fleet=self._facts, **state)
            return np.nan_to_num(found.distance), np.nan_to_num(found.span)

    def true_gains(
        self, observed: Observations, truth: Observations, hypothesis: Hypothesis
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Reduction of the gap and of the distance by each cell's outcome in `truth`."""
        free = self._open(observed)
        now = quantile(self.confidence, self.uncertain(observed))
        q = np.full(len(self.exists), now)
        for index in np.flatnonzero(free).tolist():
            q[index] = quantile(self.confidence, self.uncertain(observed.told(truth, index)))
        with jax.enable_x64(True):
            posterior, known = self._conditioned(observed, hypothesis, ())
            outcomes = Outcomes(
                given(truth.value),
                given(truth.noise),
                given(truth.modelled),
                _known(truth),
                given(q),
            )
            state = self._state(hypothesis, now, posterior, known)
            state |= {
                "outcomes": outcomes,
                "doubt": doubt(observed, hypothesis.run_variance, now),
            }
            return self._each(true_gains, free, posterior, state)

    def _open(self, observed: Observations) -> Bool[np.ndarray, " N"]:
        """Cells of which a measurement may tell something."""
        return self.exists & ~observed.broken & ~observed.exact.all(axis=1)

    def _each(
        self,
        gains: Callable[..., Gains],
        among: Bool[np.ndarray, " N"],
        posterior: Posterior,
        state: Mapping[str, Any],
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """`gains` of the cells in `among`, some at a time on every device; 0 of the others."""
        found, chosen = np.zeros((2, among.size)), np.flatnonzero(among)
        together = _TOGETHER * jax.device_count()
        for start in range(0, chosen.size, together):
            index = chosen[start : start + together]
            padded = given(np.pad(index, (0, together - index.size), mode="edge"))
            some = scored(gains, padded, posterior, state, self._facts)
            found[:, index] = np.stack(some)[:, : index.size]
        return np.nan_to_num(found[0]), np.nan_to_num(found[1])

    def _outlook(
        self,
        observed: Observations,
        hypothesis: Hypothesis,
        pending: tuple[int, ...],
        left: Int[np.ndarray, " N"] | None,
    ) -> tuple[Posterior, dict[str, Any]]:
        """The posterior, and what all kinds of gains need besides candidates, by name."""
        q = quantile(self.confidence, self.uncertain(observed))
        noise = next_noise(observed, hypothesis.run_variance)
        posterior, known = self._conditioned(observed, hypothesis, pending)
        return posterior, self._state(hypothesis, q, posterior, known) | {
            "noise": given(noise),
            "nodes": given(_fantasy_nodes(self.outputs, self._fantasies)),
            "doubt": doubts(observed, hypothesis.run_variance, q, left),
        }

    def _state(
        self, hypothesis: Hypothesis, q: float, posterior: Posterior, known: Known
    ) -> dict[str, Any]:
        return {
            "theta": hypothesis.hyper,
            "inflation": given(hypothesis.inflation),
            "q": given(q),
            "posterior": posterior[:2],
            "cells": self._cells,
            "known": known,
            "levels": self._levels(),
            "needs": self._needs(),
        }

    def draws(
        self,
        observed: Observations,
        hypothesis: Hypothesis,
        at: Int[np.ndarray, " k"],
        count: int,
        seed: int,
    ) -> Float[np.ndarray, "S k P"]:
        """Joint posterior draws of all outputs of a few cells, inflated as the bounds are."""
        exact, value = observed.exact[at], observed.value[at]
        if not at.size:
            return np.zeros((count, *value.shape))
        with jax.enable_x64(True):
            hyper, data = constrain(hypothesis.hyper), self._evidence.data(observed)
            posterior = condition(hyper, data, self._evidence.cells(at))
            mean, covariance = np.asarray(posterior.mean), np.asarray(joint(posterior))
        flat = covariance.reshape(mean.size, mean.size)
        values, vectors = np.linalg.eigh((flat + flat.T) / 2)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = np.random.default_rng(seed).standard_normal((count, mean.size))
        deviation = (normal @ root.T).reshape(count, *mean.shape) * hypothesis.inflation[at]
        drawn = mean + np.where(exact, 0.0, deviation)
        return np.where(exact, value, drawn)

    def values(
        self, kappas: Float[np.ndarray, "k W C"], active: Bool[np.ndarray, " W"]
    ) -> Float[np.ndarray, " k"]:
        """V of the best allocation under each of some capacities."""
        found, facts = np.zeros(len(kappas)), self._facts
        with jax.enable_x64(True):
            needs = self._needs()
            limits = (needs.min_replicas, needs.max_replicas) if facts.limited else None
            for start in range(0, len(kappas), _TOGETHER):
                some = kappas[start : start + _TOGETHER]
                padded = np.pad(some, [(0, _TOGETHER - len(some)), (0, 0), (0, 0)])
                asked = needs.demand, needs.weight, facts.sizes, facts.gpus, limits
                best = value(facts.objective, given(padded), active, *asked)
                found[start : start + len(some)] = np.asarray(best)[: len(some)]
        return found

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
                {name: given(leaf[part]) for name, leaf in hypothesis.draws.items()},
                self._evidence.data(observed),
                self._cells,
                _known(observed),
                self._levels(),
                self._needs(),
                given(replicas),
                given(nodes),
                given(white),
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
        throughput = np.ones((len(below), 1), bool)
        matters = np.concatenate([throughput, self.limited], axis=1)
        return (self.exists & below)[:, None] & matters

    def _conditioned(
        self, observed: Observations, hypothesis: Hypothesis, pending: tuple[int, ...]
    ) -> tuple[Posterior, Known]:
        """The posterior and what is known, with pending cells told at their posterior means."""
        hyper, known = constrain(hypothesis.hyper), _known(observed)
        posterior = condition(hyper, self._evidence.data(observed), self._cells)
        if not pending:
            return posterior, known
        index, mean = np.array(pending), np.asarray(posterior.mean)
        parts = next_noises(observed, hypothesis.run_variance)
        assumed = Assumed(index, mean[index], (parts[0][index], parts[1][index]))
        posterior = condition(hyper, self._evidence.data(observed, assumed), self._cells)
        here = np.zeros_like(observed.measured)
        here[index] = True
        exact = here[:, None] & (sum(parts) == 0)
        then = Known(
            given(np.where(exact, mean, known.value)),
            known.exact | exact,
            known.measured | here,
            known.broken,
        )
        return posterior, then

    def _starts(self, count: int, noisy: bool = False) -> Hyper:
        """The prior's median, and points half a unit of log scale around it."""
        features, categories, guesses = (array.shape[1] for array in self._evidence.places[2:5])
        median = prior_median(self.outputs, features, categories, noisy, guesses)
        draws = np.random.default_rng(0)
        around = {k: 0.5 * draws.standard_normal((count, *v.shape)) for k, v in median.items()}
        return {
            name: given(leaf + np.concatenate([np.zeros((1, *leaf.shape)), around[name][1:]]))
            for name, leaf in median.items()
        }

    def _levels(self) -> Levels:
        scale = throughput_scale(self.problem)
        ceiling = throughput_ceiling(self.problem)
        return Levels(*(given(part) for part in (self.exists, self.limited, scale, ceiling)))

    def _needs(self) -> Needs:
        problem = self.problem
        parts = (problem.demand, problem.weight, problem.min_replicas, problem.max_replicas)
        return Needs(*(given(part) for part in parts))


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


def _known(observed: Observations) -> Known:
    value = np.where(observed.exact, observed.value, 0.0)
    arrays = (value, observed.exact, observed.measured, observed.broken)
    return Known(*(given(array) for array in arrays))


@functools.cache
def _fantasy_nodes(outputs: int, count: int) -> Float[np.ndarray, "K P"]:
    """Quasi-random normal nodes with mean 0."""
    from scipy.stats import qmc

    uniform = qmc.Sobol(outputs, rng=0).random(count)
    nodes = ndtri(np.clip(uniform, 1e-4, 1 - 1e-4))
    return nodes - nodes.mean(axis=0)


@functools.cache
def _normal_draws(count: int, size: int) -> Float[np.ndarray, "S k"]:
    """Antithetic standard normal draws, the same at every call."""
    half = np.random.default_rng(0).standard_normal((count // 2, size))
    return np.concatenate([half, np.negative(half)])
