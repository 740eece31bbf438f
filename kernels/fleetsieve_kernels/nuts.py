"""Draws of the hyperparameters from their posterior by the No-U-Turn sampler."""

from functools import partial
from typing import NamedTuple

import jax
from jaxtyping import Array, Bool, Float
from numpyro.infer.hmc import hmc

from fleetsieve_kernels.dense import over
from fleetsieve_kernels.fit import laplace, objective
from fleetsieve_kernels.hyper import Hyper
from fleetsieve_kernels.posterior import Rows, Table

# Of a trajectory's doublings, at most; and the first step, in whitened coordinates.
_DEPTH, _STEP = 6, 0.5


class Chains(NamedTuple):
    """Unconstrained hyperparameters, chains and draws along the two leading axes."""

    draws: Hyper
    diverged: Bool[Array, "chains draws"]


@partial(jax.jit, static_argnames=("warmup", "draws"))
def sample(
    theta: Hyper,
    data: Table | Rows,
    starts: Float[Array, "chains k"],
    key: Array,
    warmup: int,
    draws: int,
) -> Chains:
    """Chains of `draws` after `warmup` steps that adapt the step size (Hoffman & Gelman, 2014).

    The sampler sees coordinates in which the Laplace approximation at θ, the maximum of the
    posterior, is standard normal; so it needs no metric of its own and few steps. `starts` are in
    these coordinates, k values for each chain. Chains run one after the other: see `dense`.
    """
    unwhitened = laplace(theta, data)
    start, step = hmc(lambda node: objective(unwhitened(node), data), algo="NUTS")

    def chain(node: Array, key: Array) -> tuple[Hyper, Array]:
        state = start(
            node,
            warmup,
            step_size=_STEP,
            adapt_mass_matrix=False,
            max_tree_depth=_DEPTH,
            rng_key=key,
        )

        def advance(state: tuple, _: None) -> tuple[tuple, tuple[Array, Array]]:
            state = step(state)
            return state, (state.z, state.diverging)

        state, _ = jax.lax.scan(advance, state, length=warmup)
        _, (nodes, diverged) = jax.lax.scan(advance, state, length=draws)
        return over(unwhitened, nodes), diverged

    return Chains(*over(chain, starts, jax.random.split(key, len(starts))))
