"""Hyperparameters by maximum a posteriori, and their uncertainty by a Laplace term."""

from functools import partial

import jax
import jax.numpy as jnp
import numpyro
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from numpyro.infer.util import potential_energy

from fleetsieve_kernels.covariance import Cells, jitter
from fleetsieve_kernels.dense import over
from fleetsieve_kernels.gaussian import gaussian_nll
from fleetsieve_kernels.hyper import Hyper, constrain, prior_scale, sample_prior
from fleetsieve_kernels.posterior import (
    Rows,
    Table,
    gram_of_rows,
    gram_of_table,
    latents_of,
    marginals,
)

# Adam with these moments settles in some 40 steps from the prior's median; checked against 120.
_RATE, _MOMENTS = 0.15, (0.8, 0.95)


def marginal_nll(hyper: Hyper, data: Table | Rows) -> Float[Array, ""]:
    """-log density of the observations, latents integrated out, without constants."""
    if isinstance(data, Table):
        grams = gram_of_table(hyper, data)
        return jnp.sum(over(gaussian_nll, grams, latents_of(hyper, data)))
    return gaussian_nll(gram_of_rows(hyper, data), jnp.where(data.mask, data.value, 0))


def model(data: Table | Rows, outputs: int) -> None:
    """The NumPyro model: hyperparameters from their priors, observations as one factor."""
    hyper = sample_prior(outputs, data.cells.features.shape[1], data.cells.categories.shape[1])
    numpyro.factor("observations", -marginal_nll(hyper, data))


def objective(theta: Hyper, data: Table | Rows) -> Float[Array, ""]:
    """Negative log posterior of unconstrained hyperparameters."""
    energy = potential_energy(model, (data, theta["amplitude"].shape[0]), {}, theta)
    return jnp.asarray(energy)


@partial(jax.jit, static_argnames="steps")
def fit(starts: Hyper, data: Table | Rows, steps: int = 60) -> tuple[Hyper, Float[Array, " s"]]:
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
def inflation(
    theta: Hyper, data: Table | Rows, cells: Cells, nodes: Float[Array, "S k"]
) -> Float[Array, "N P"]:
    """How much hyperparameter uncertainty widens each cell's sd: a factor >= 1.

    Draws of the hyperparameters from N(θ, H⁻¹), H the Hessian of the objective at its minimum; the
    factor compares the second moment about the mean at θ, over draws, with the variance at θ.
    `nodes` are standard normal, k values per draw, one for each hyperparameter.
    """
    flat, unravel = ravel_pytree(theta)
    gradient = jax.grad(lambda vector: objective(unravel(vector), data))
    unit = jnp.eye(flat.shape[0], dtype=flat.dtype)
    hessian = over(lambda direction: jax.jvp(gradient, (flat,), (direction,))[1], unit)
    # No direction is less certain than its prior leaves it.
    width = ravel_pytree(prior_scale(theta))[0]
    values, vectors = jnp.linalg.eigh(hessian * width[:, None] * width[None, :])
    root = width[:, None] * vectors / jnp.sqrt(jnp.maximum(values, 1))

    def moments(node: Array) -> tuple[Array, Array]:
        return marginals(constrain(unravel(flat + root @ node)), data, cells)

    centre, variance = marginals(constrain(theta), data, cells)
    means, variances = over(moments, nodes)
    total = jnp.mean(variances + (means - centre) ** 2, axis=0)
    floor = jitter(total.dtype)  # of a cell that is known, nothing is left to widen
    return jnp.sqrt(jnp.maximum((total + floor) / (variance + floor), 1))
