"""Hyperparameters by maximum a posteriori, and their uncertainty by a Laplace term."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jaxtyping import Array, Float
from numpyro.infer.util import potential_energy

from fleetsieve_kernels.covariance import Cells, jitter
from fleetsieve_kernels.dense import over
from fleetsieve_kernels.gaussian import gaussian_nll
from fleetsieve_kernels.hyper import Hyper, constrain, prior_scale, sample_prior
from fleetsieve_kernels.posterior import (
    Noise,
    Rows,
    Table,
    gram_of_rows,
    gram_of_table,
    latent_noise,
    latents_of,
    marginals,
    surprise_of_rows,
    unmixing,
)

# Adam with these moments settles in some 40 steps from the prior's median; checked against 120.
_RATE, _MOMENTS = 0.15, (0.8, 0.95)


def marginal_nll(hyper: Hyper, data: Table | Rows) -> Float[Array, ""]:
    """-log density of the observations, latents integrated out, without constants."""
    if isinstance(data, Rows):
        return gaussian_nll(gram_of_rows(hyper, data), surprise_of_rows(hyper, data))
    grams = gram_of_table(hyper, data)
    fitted = jnp.sum(over(gaussian_nll, grams, latents_of(hyper, data)))
    return fitted if data.noise is None else fitted + scatter_nll(hyper, data.noise)


def scatter_nll(hyper: Hyper, noise: Noise) -> Float[Array, ""]:
    """-log density of how the runs of cells scatter about their means, without constants."""
    counts = (noise.spare > 0) & (noise.share > 0).all(axis=1)
    share = jnp.where(counts[:, None], noise.share, 1)
    single = latent_noise(hyper, Noise(noise.stated / share, jnp.ones_like(share), *noise[2:]))
    back = unmixing(hyper)
    scatter = jnp.einsum("rp,npq,rq->rn", back, noise.scatter, back)
    each = 0.5 * (noise.spare * jnp.log(single) + scatter / single)
    return jnp.sum(jnp.where(counts, each, 0))


def model(data: Table | Rows, outputs: int) -> None:
    """The NumPyro model: hyperparameters from their priors, observations as one factor."""
    noisy = (data.share if isinstance(data, Rows) else data.noise) is not None
    _, _, features, categories, guess, _ = data.cells
    counts = features.shape[1], categories.shape[1], noisy, guess.shape[1]
    hyper = sample_prior(outputs, *counts)
    numpyro.factor("observations", -marginal_nll(hyper, data))


@jax.jit
def objective(theta: Hyper, data: Table | Rows) -> Float[Array, ""]:
    """Negative log posterior of unconstrained hyperparameters; jitted, so traced only once."""
    energy = potential_energy(model, (data, theta["amplitude"].shape[0]), {}, theta)
    return jnp.asarray(energy)


@partial(jax.jit, static_argnames="steps")
def fit(starts: Hyper, data: Table | Rows, steps: int = 40) -> tuple[Hyper, Float[Array, " s"]]:
    """Best unconstrained hyperparameters of several starts, and every start's objective.

    `starts` has a leading axis over starts. A start that diverges counts as infinitely bad.
    """
    descent = optax.adam(optax.cosine_decay_schedule(_RATE, steps), b1=_MOMENTS[0], b2=_MOMENTS[1])

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        theta, state = carry
        updates, state = descent.update(jax.grad(objective)(theta, data), state)
        return (optax.apply_updates(theta, updates), state), None

    def run(theta: Hyper) -> tuple[Hyper, Array]:
        (theta, _), _ = jax.lax.scan(step, (theta, descent.init(theta)), length=steps)
        return theta, objective(theta, data)

    found, losses = over(run, starts)
    losses = jnp.where(jnp.isfinite(losses), losses, jnp.inf)
    return jax.tree.map(lambda leaf: leaf[jnp.argmin(losses)], found), losses


@jax.jit
def laplace_draws(theta: Hyper, data: Table | Rows, nodes: Float[Array, "S k"]) -> Hyper:
    """Hyperparameters from the Laplace approximation N(θ, H⁻¹), along a leading axis.

    `nodes` are standard normal, k values per draw, one for each hyperparameter.
    """
    return over(laplace(theta, data), nodes)


def laplace(theta: Hyper, data: Table | Rows) -> Callable[[Float[Array, " k"]], Hyper]:
    """From k standard normal values to a draw from N(θ, H⁻¹), H the objective's Hessian at θ."""
    # Complete observations separate into latents, so one product has a column of every block.
    blocks = theta["amplitude"].shape[0] if isinstance(data, Table) else 1
    centre, unpack = _packed(theta, blocks)
    width, _ = _packed(prior_scale(theta), blocks)
    gradient = jax.grad(lambda packed: objective(unpack(packed), data))
    unit = jnp.eye(centre.shape[1], dtype=centre.dtype)
    _, along = jax.linearize(gradient, centre)
    columns = over(lambda e: along(jnp.broadcast_to(e, centre.shape)), unit)
    roots = over(_root, jnp.moveaxis(columns, 0, 2), width)

    def drawn(node: Array) -> Hyper:
        return unpack(centre + jnp.einsum("bij,bj->bi", roots, jnp.reshape(node, centre.shape)))

    return drawn


@jax.jit
def inflation(theta: Hyper, draws: Hyper, data: Table | Rows, cells: Cells) -> Float[Array, "N P"]:
    """How much hyperparameter uncertainty widens each cell's sd: a factor >= 1.

    The factor compares the second moment about the mean at θ, over `draws` of the hyperparameters
    along a leading axis, with the variance at θ. Hence it covers what their means are off, too.
    """
    mean, variance = marginals(constrain(theta), data, cells)
    means, variances = over(lambda drawn: marginals(constrain(drawn), data, cells), draws)
    total = jnp.mean(variances + (means - mean) ** 2, axis=0)
    floor = jitter(total.dtype)  # of a cell that is known, nothing is left to widen
    return jnp.sqrt(jnp.maximum((total + floor) / (variance + floor), 1))


def _root(hessian: Float[Array, "d d"], width: Float[Array, " d"]) -> Float[Array, "d d"]:
    """A root of H⁻¹ in which no direction is less certain than its prior leaves it."""
    values, vectors = jnp.linalg.eigh(hessian * width[:, None] * width[None, :])
    return width[:, None] * vectors / jnp.sqrt(jnp.maximum(values, 1))


def _packed(theta: Hyper, blocks: int) -> tuple[Array, Callable[[Array], Hyper]]:
    """Hyperparameters as one row per latent, or all in one row, and the way back."""
    latents = theta["amplitude"].shape[0]
    rows = {name: jnp.reshape(value, (latents, -1)) for name, value in theta.items()}
    ends = np.cumsum([row.shape[1] for row in rows.values()])[:-1]

    def unpack(packed: Array) -> Hyper:
        parts = jnp.split(jnp.reshape(packed, (latents, -1)), ends, axis=1)
        named = zip(theta.items(), parts, strict=True)
        return {name: jnp.reshape(part, value.shape) for (name, value), part in named}

    return jnp.reshape(jnp.concatenate(list(rows.values()), axis=1), (blocks, -1)), unpack
