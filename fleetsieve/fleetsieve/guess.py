"""A prior mean of all cells, from what a predictor says of some of them."""

import jax
import numpy as np
from jaxtyping import Bool, Float

from fleetsieve.predicted import Predicted
from fleetsieve.problem import Problem
from fleetsieve_kernels.covariance import Cells, latent_covariance
from fleetsieve_kernels.hyper import constrain, prior_median

Guess = Float[np.ndarray, "N Q"]


def guess_of(
    problem: Problem, predicted: Predicted | None, places: tuple[np.ndarray, ...]
) -> Guess:
    """The centred prior mean, Q = P; without predictions Q = 0. `places`: `Cells` but its guess.

    An output without any prediction keeps the prior mean 0. Latencies are made to rise with the
    load: that a lower load is no harder, but for the cells' own parts, is what easing rests on
    (METHOD 3), and the white part is learned from deviations from this mean.
    """
    exists = problem.exists.ravel()
    if predicted is None or not exists.any():
        return np.zeros((exists.size, 0))
    from scipy.optimize import isotonic_regression

    whole = _filled(predicted, exists, places)
    columns = whole.reshape(*problem.exists.shape, -1)
    for w, c in np.ndindex(problem.exists.shape[:2]):
        there = problem.exists[w, c]
        for p in range(1, columns.shape[-1]) if there.any() else ():
            columns[w, c, there, p] = isotonic_regression(columns[w, c, there, p]).x
    return np.where(exists[:, None], whole - whole[exists].mean(axis=0), 0.0)


def _filled(
    predicted: Predicted, exists: Bool[np.ndarray, " N"], places: tuple[np.ndarray, ...]
) -> Predicted:
    """Gaps filled by the model's own kernel at the median of its prior, output by output."""
    known = ~np.isnan(predicted) & exists[:, None]
    whole = np.where(known, predicted, 0.0)
    gaps = known.any(axis=0) & ~known[exists].all(axis=0)
    if not gaps.any():
        return whole
    joint = _covariance(places)
    for p in np.flatnonzero(gaps):
        seen = known[:, p]
        weights = np.linalg.solve(joint[np.ix_(seen, seen)], predicted[seen, p])
        whole[:, p] = np.where(seen, whole[:, p], joint[:, seen] @ weights)
    return whole


def _covariance(places: tuple[np.ndarray, ...]) -> Float[np.ndarray, "N N"]:
    ids, workload, features, categories = places
    with jax.enable_x64(True):
        nothing = np.zeros((len(ids), 0)), np.zeros(len(ids))
        fields = (ids, workload, features, categories, *nothing)
        cells = Cells(*(jax.device_put(field) for field in fields))
        median = prior_median(1, features.shape[1], categories.shape[1])
        theta = {name: jax.device_put(value) for name, value in median.items()}
        hyper = {name: value[0] for name, value in constrain(theta).items() if name != "mixing"}
        return np.asarray(latent_covariance(hyper, cells, cells))
