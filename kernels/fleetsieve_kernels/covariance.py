"""Prior covariance of the latent processes over cells.

A latent is a linear trend, a smooth part and a white part per cell:

k(i, j) = a0² + offset² [w=w'] + (b0² + slope² [w=w']) x·x'
          + amplitude² (coupling + (1 - coupling) [w=w']) Matern52(x, x') exp(-mismatch·[c≠c'])
          + (white amplitude² + early² lowness²) [i=j]

with w the workload, x the numeric features, c the categorical ones and lowness the lowest load of
the column over the load: what is fixed per step shows most where there is little to do. Outputs are
y = A u over independent latents u, so cov(y_p(i), y_q(j)) = sum_r A_pr A_qr k_r(i, j): a linear
model of coregionalisation of full rank.

Where a cheap predictor gave a guess m of the outputs, y = m + A u, and latent r has a further term
rescale_r² m_r(i) m_r(j): how much of the guess is to be believed is learned for every output.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fleetsieve_kernels.hyper import Hyper

# Broad standard deviations of what all workloads share: level and slope per octave.
_LEVEL, _SLOPE = 3.0, 1.0


class Cells(NamedTuple):
    """Where cells lie; rows of several `Cells` may be compared when their ids are."""

    ids: Int[Array, " N"]
    workload: Int[Array, " N"]
    features: Float[Array, "N D"]
    categories: Int[Array, "N E"]
    guess: Float[Array, "N Q"]  # Q = P, or 0 without a guess; centred
    lowness: Float[Array, " N"]  # lowest load of the column / load


def jitter(dtype: jnp.dtype) -> float:
    """Variance added to every cell's own part so that factorisations hold in `dtype`."""
    return 1e-8 if dtype == jnp.float64 else 1e-5


def latent_covariance(hyper: Hyper, a: Cells, b: Cells) -> Float[Array, "Na Nb"]:
    """Prior covariance of one latent (`hyper` without the axis R) between two sets of cells."""
    same = (a.workload[:, None] == b.workload[None, :]).astype(a.features.dtype)
    product = a.features @ b.features.T
    level = _LEVEL**2 + hyper["offset"] ** 2 * same
    trend = level + (_SLOPE**2 + hyper["slope"] ** 2 * same) * product
    coupled = hyper["coupling"] + (1 - hyper["coupling"]) * same
    alike = _matern52(a.features / hyper["lengthscale"], b.features / hyper["lengthscale"])
    if "mismatch" in hyper:
        differ = (a.categories[:, None, :] != b.categories[None, :, :]).astype(alike.dtype)
        alike = alike * jnp.exp(-(differ @ hyper["mismatch"]))
    own = (a.ids[:, None] == b.ids[None, :]) * own_variance(hyper, a)[:, None]
    return trend + hyper["amplitude"] ** 2 * coupled * alike + own


def latent_variance(hyper: Hyper, a: Cells) -> Float[Array, " N"]:
    """Diagonal of `latent_covariance`."""
    squares = jnp.sum(a.features**2, axis=-1)
    trend = _LEVEL**2 + hyper["offset"] ** 2 + (_SLOPE**2 + hyper["slope"] ** 2) * squares
    return trend + hyper["amplitude"] ** 2 + own_variance(hyper, a)


def white_variance(hyper: Hyper) -> Array:
    """Variance of a cell's own deviation from the smooth surface, jitter included."""
    variance = hyper["white"] * hyper["amplitude"] ** 2
    return variance + jitter(variance.dtype)


def own_variance(hyper: Hyper, a: Cells) -> Float[Array, " N"]:
    """Variance of each cell's own deviation, that at low loads included."""
    return white_variance(hyper) + (hyper["early"] * a.lowness) ** 2


def covariances(hyper: Hyper, a: Cells, b: Cells) -> Float[Array, "R Na Nb"]:
    """`latent_covariance` of every latent.

    Raises TypeError when precisions are mixed: rounded features lose positive definiteness.
    """
    kinds = {hyper["amplitude"].dtype, a.features.dtype, b.features.dtype}
    if len(kinds) > 1:
        raise TypeError(f"hyperparameters and features have dtypes {sorted(map(str, kinds))}")
    known = jax.vmap(latent_covariance, (0, None, None))(_per_latent(hyper), a, b)
    if "rescale" not in hyper:
        return known
    scaled = a.guess * hyper["rescale"] ** 2
    return known + jnp.einsum("ar,br->rab", scaled, b.guess)


def variances(hyper: Hyper, a: Cells) -> Float[Array, "R N"]:
    """`latent_variance` of every latent."""
    known = jax.vmap(latent_variance, (0, None))(_per_latent(hyper), a)
    return known + (a.guess * hyper["rescale"]).T ** 2 if "rescale" in hyper else known


def _per_latent(hyper: Hyper) -> dict[str, Array]:
    return {name: value for name, value in hyper.items() if name not in ("mixing", "rescale")}


def expected(a: Cells, outputs: int) -> Float[Array, "N {outputs}"]:
    """Prior mean of the outputs: the guess, or 0."""
    guessed = a.guess.shape[1] > 0
    return a.guess if guessed else jnp.zeros((a.guess.shape[0], outputs), a.features.dtype)


def _matern52(a: Float[Array, "Na D"], b: Float[Array, "Nb D"]) -> Float[Array, "Na Nb"]:
    squared = sum((a[:, None, d] - b[None, :, d]) ** 2 for d in range(a.shape[1]))
    # The floor keeps the gradient of the root finite at equal points.
    distance = jnp.sqrt(5 * squared + 1e-12)
    return (1 + distance + distance**2 / 3) * jnp.exp(-distance)
