"""An independent reference for the kernels: textbook formulas in NumPy and loops, and small cases.

Nothing here calls the code under test; `Cells` and the like are only its containers.
"""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from fleetsieve_kernels.covariance import Cells
from fleetsieve_kernels.posterior import Rows, Table

# Location and standard deviation of every hyperparameter's normal prior, unconstrained.
PRIORS = {
    "amplitude": (np.log(0.4), 0.5),
    "lengthscale": (np.log(2.0), 0.5),
    "mismatch": (np.log(0.5), 0.7),
    "coupling": (0.0, 1.2),
    "white": (np.log(0.02), 1.0),
    "early": (np.log(0.05), 1.0),
    "offset": (0.0, 0.7),
    "slope": (np.log(0.15), 0.7),
    "mixing": (0.0, 1.0),
    "rescale": (np.log(0.3), 0.7),
}
TRANSFORMS = {"coupling": lambda t: 1 / (1 + np.exp(-t)), "mixing": lambda t: t}
JITTER = 1e-8


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def reference() -> SimpleNamespace:
    """The functions below that start with no underscore."""
    functions = (
        constrained,
        draw_theta,
        draw_cells,
        mixing,
        white_variances,
        own_variances,
        slack,
        ceiling,
        latent,
        prior,
        conditioned,
        as_table,
        as_rows,
        negative_log_posterior,
        interval,
        intervals,
        replica_matrices,
        best_value,
        fewest_gpus,
        traces,
    )
    return SimpleNamespace(priors=PRIORS, **{f.__name__: f for f in functions})


def constrained(theta):
    return {name: TRANSFORMS.get(name, np.exp)(value) for name, value in theta.items()}


def draw_theta(rng, latents, features, categories, spread=0.5, guesses=0):
    """Around the medians of the priors; the diagonal and upper part of `mixing` are no zeros."""
    columns = {"lengthscale": features, "mismatch": categories, "mixing": latents}
    shapes = {n: (latents, columns[n]) if n in columns else (latents,) for n in PRIORS}
    shapes["rescale"] = (guesses,)
    return {
        name: PRIORS[name][0] + spread * PRIORS[name][1] * rng.standard_normal(shape)
        for name, shape in shapes.items()
        if 0 not in shape
    }


def draw_cells(rng, shape, features, categories, guesses=0):
    """All cells of W workloads, C configs, L levels; the first feature is the load, in octaves."""
    w, c, level = (axis.ravel() for axis in np.indices(shape))
    of_config = rng.normal(size=(shape[1], features - 1))
    kinds = rng.integers(0, 2, (shape[1], categories))
    load = level[:, None] + 0.25 * rng.normal(size=(len(w), 1))
    guess = rng.normal(size=(len(w), guesses))
    features = np.hstack([load, of_config[c]])
    return Cells(np.arange(len(w)), w, features, kinds[c], guess, 0.5**level)


def mixing(hyper):
    """A with y = A u, where y_p = sum over q < p of B_pq y_q, plus u_p."""
    latents = len(hyper["mixing"])
    return np.linalg.inv(np.eye(latents) - np.tril(hyper["mixing"], -1))


def white_variances(hyper):
    return hyper["white"] * hyper["amplitude"] ** 2 + JITTER


def own_variances(hyper, cells):
    return white_variances(hyper)[:, None] + np.outer(hyper["early"], cells.lowness) ** 2


def slack(hyper, cells):
    """sd of a cell's own part less that of a cell at a higher load: [N, M]."""
    both = own_variances(hyper, cells) + white_variances(hyper)[:, None]
    return np.sqrt(mixing(hyper) ** 2 @ both)[1:].T


def ceiling(hyper, cells, q, mean, known, levels):
    """The highest log throughput seen, or that of a server that keeps up, and q sd of own parts."""
    highest = max([-np.inf, *mean[known.measured, 0]])
    own = np.sqrt(mixing(hyper)[0] ** 2 @ own_variances(hyper, cells))
    return np.maximum(levels.ceiling, highest) + q * own


def latent(hyper, r, a, b):
    """k_r between two sets of cells, as written in `covariance`."""
    same = np.equal.outer(a.workload, b.workload)
    apart = (a.features[:, None] - b.features) / hyper["lengthscale"][r]
    distance = np.sqrt(5) * np.linalg.norm(apart, axis=2)
    smooth = (1 + distance + distance**2 / 3) * np.exp(-distance)
    if "mismatch" in hyper:
        smooth = smooth * np.exp(
            -np.dot(a.categories[:, None] != b.categories, hyper["mismatch"][r])
        )
    level = 3.0**2 + hyper["offset"][r] ** 2 * same
    trend = (1.0**2 + hyper["slope"][r] ** 2 * same) * np.inner(a.features, b.features)
    coupled = np.where(same, 1.0, hyper["coupling"][r]) * smooth
    white = own_variances(hyper, a)[r][:, None] * np.equal.outer(a.ids, b.ids)
    if "rescale" in hyper:
        trend = trend + hyper["rescale"][r] ** 2 * np.outer(a.guess[:, r], b.guess[:, r])
    return level + trend + hyper["amplitude"][r] ** 2 * coupled + white


def prior(hyper, cells):
    """Covariance of every (cell, output) with every other: [N, P, N, P]."""
    loading, size = mixing(hyper), len(cells.ids)
    total = np.zeros((size, len(loading), size, len(loading)))
    for r in range(len(loading)):
        column = np.outer(loading[:, r], loading[:, r])
        total = total + np.einsum("ij,pq->ipjq", latent(hyper, r, cells, cells), column)
    return total


def conditioned(joint, index, output, value, noise):
    """Mean and covariance of a zero-mean Gaussian over (cell, output), given noisy entries."""
    shape = joint.shape[:2]
    size = shape[0] * shape[1]
    flat, at = joint.reshape(size, size), np.ravel_multi_index((index, output), shape)
    weight = np.linalg.solve(flat[np.ix_(at, at)] + np.diag(noise), flat[at]).T
    return (weight @ value).reshape(shape), (flat - weight @ flat[at]).reshape(joint.shape)


def as_table(cells, index, values, size):
    """Complete exact observations, padded to `size`."""
    padded = np.concatenate([index, np.zeros(size - len(index), int)])
    filled = np.zeros((size, values.shape[1]))
    filled[: len(index)] = values
    return Table(Cells(*(f[padded] for f in cells)), filled, np.arange(size) < len(index))


def as_rows(cells, index, output, value, noise, size):
    """Single outputs, padded to `size`; the noise of padding is no zero."""
    extra = size - len(index)
    padded = np.concatenate([index, np.zeros(extra, int)])
    return Rows(
        Cells(*(f[padded] for f in cells)),
        np.concatenate([output, np.zeros(extra, int)]),
        np.concatenate([value, np.zeros(extra)]),
        np.concatenate([noise, np.full(extra, 0.7)]),
        np.arange(size) < len(index),
    )


def negative_log_posterior(theta, cells, index, output, value, noise):
    """-log N(observations) - log prior, without constants."""
    joint = prior(constrained(theta), cells)
    size = joint.shape[0] * joint.shape[1]
    value = value - cells.guess[index, output] if "rescale" in theta else value
    at = np.ravel_multi_index((index, output), joint.shape[:2])
    gram = joint.reshape(size, size)[np.ix_(at, at)] + np.diag(noise)
    likelihood = 0.5 * value @ np.linalg.solve(gram, value) + 0.5 * np.linalg.slogdet(gram)[1]
    return likelihood + sum(
        np.sum((leaf - PRIORS[name][0]) ** 2) / (2 * PRIORS[name][1] ** 2)
        for name, leaf in theta.items()
    )


def interval(lower, upper, known, levels, slack, ceiling, measured_only):
    """κ^L and κ^U of one column, level by level (METHOD 3)."""
    there = [bool(e and not b) for e, b in zip(levels.exists, known.broken, strict=True)]
    metrics = [np.flatnonzero(limited) for limited in levels.limited]

    def holds(k):
        return there[k] and all(upper[k, 1 + m] <= 0 for m in metrics[k])

    def surely_breaks(k):
        return not there[k] or any(lower[k, 1 + m] > 0 for m in metrics[k])

    def rather_breaks(k):
        return any(lower[k, 1 + m] + upper[k, 1 + m] > 0 for m in metrics[k])

    def eased(k, m):
        above = (j for j in range(k + 1, len(there)) if known.measured[j] and holds(j))
        return upper[k, 1 + m] <= 0 or any(upper[j, 1 + m] + slack[k, m] <= 0 for j in above)

    def throughput(k, log):
        return np.exp(min(log, ceiling[k])) * levels.scale[k]

    best_lower = best_upper = 0.0
    for k in range(len(there)):
        if surely_breaks(k):
            break
        best_upper = max(best_upper, throughput(k, upper[k, 0]))
    for k in range(len(there)):
        if surely_breaks(k) or (known.measured[k] and rather_breaks(k)):
            break
        if not all(eased(k, m) for m in metrics[k]):
            break
        if holds(k) and (known.measured[k] or not measured_only):
            best_lower = max(best_lower, throughput(k, lower[k, 0]))
    return best_lower, best_upper


def intervals(lower, upper, known, levels, assumed, shape, measured_only=True):
    """κ^L and κ^U of all columns: two arrays [W, C]."""
    columns = np.arange(np.prod(shape)).reshape(shape)
    found = np.zeros((2, *shape[:2]))
    for w, c in np.ndindex(shape[:2]):
        at = columns[w, c]
        own = type(known)(*(np.asarray(field)[at] for field in known))
        meant = type(levels)(*(np.asarray(field)[at] for field in levels))
        slack, ceiling = (np.asarray(field)[at] for field in assumed)
        found[:, w, c] = interval(lower[at], upper[at], own, meant, slack, ceiling, measured_only)
    return found


def replica_matrices(sizes, gpus, workloads):
    """Every n[w, c] that fits."""
    counts = (range(gpus // size + 1) for size in sizes)
    rows = [np.array(row) for row in product(*counts) if np.dot(row, sizes) <= gpus]
    for chosen in product(rows, repeat=workloads):
        matrix = np.array(chosen)
        if np.sum(matrix @ np.array(sizes)) <= gpus:
            yield matrix


def best_value(objective, kappa, active, demand, weight, sizes, gpus, low=0, high=10**6):
    """V of the best of all replica matrices (METHOD 1)."""
    counted = [w for w in range(len(demand)) if active[w] and demand[w] > 0]
    if not counted:
        return 0.0
    best = -np.inf
    for matrix in replica_matrices(sizes, gpus, len(demand)):
        replicas = matrix.sum(axis=1)
        if (replicas < low).any() or (replicas > high).any():
            continue
        met = {w: min(1.0, sum(matrix[w] * kappa[w]) / demand[w]) for w in counted}
        pull = {w: demand[w] * (weight[w] if objective == "weighted" else 1.0) for w in counted}
        mean = sum(pull[w] * met[w] for w in counted) / sum(pull.values())
        best = max(best, min(met.values()) if objective == "max-min" else mean)
    return best


def fewest_gpus(kappa, demand, target, sizes, gpus):
    """Fewest GPUs that give one workload the fulfillment `target`; all of them if none do."""
    served = [
        (int(row[0] @ np.array(sizes)), min(1.0, sum(row[0] * kappa) / demand))
        for row in replica_matrices(sizes, gpus, 1)
    ]
    return min((spent for spent, met in served if met >= target), default=gpus)


def traces(*functions):
    """How often each jitted function was traced so far."""
    return tuple(function._cache_size() for function in functions)
