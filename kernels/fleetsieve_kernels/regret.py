"""Regret of one allocation under joint draws of all cells (METHOD 3, second rule)."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fleetsieve_kernels.acquisition import Fleet, Needs
from fleetsieve_kernels.allocation import fulfillment_table, value_of_table
from fleetsieve_kernels.bounds import Known, Levels, drawn_capacities, white_slack
from fleetsieve_kernels.covariance import Cells, jitter
from fleetsieve_kernels.hyper import Hyper, constrain
from fleetsieve_kernels.posterior import Rows, Table, condition, joint


@partial(jax.jit, static_argnames="fleet")
def regrets(
    theta: Hyper,
    data: Table | Rows,
    cells: Cells,
    known: Known,
    levels: Levels,
    needs: Needs,
    replicas: Int[Array, "W C"],
    nodes: Float[Array, "k NP"],
    white: Float[Array, "k N M"],
    fleet: Fleet,
) -> Float[Array, " k"]:
    """max_n V(n; κ) - V(replicas; κ) for k draws of κ, given hyperparameters; infinite where NaN.

    F is that of each draw: the workloads that some config can serve in it. `nodes` and `white` are
    standard normal, the latter for what cells below a measured one deviate from a rising surface.
    """
    hyper = constrain(theta)
    posterior = condition(hyper, data, cells)
    flat = jnp.reshape(joint(posterior), (posterior.mean.size, -1))
    root = jnp.linalg.cholesky(flat + jitter(flat.dtype) * jnp.eye(len(flat), dtype=flat.dtype))
    values = posterior.mean + jnp.reshape(nodes @ root.T, (-1, *posterior.mean.shape))
    values = jnp.where(known.exact, known.value, values)
    slack = white * white_slack(hyper, jnp.ones((), flat.dtype), cells)
    kappa = drawn_capacities(values, known, levels, slack, fleet.shape)
    active = (jnp.max(kappa, axis=-1) > 0) & (needs.demand > 0)
    limits = (needs.min_replicas, needs.max_replicas) if fleet.limited else None
    table = fulfillment_table(kappa, needs.demand, fleet.sizes, fleet.gpus, limits)
    # The given replicas leave no GPU to split: a table of one entry per workload.
    served = jnp.sum(replicas * kappa, axis=-1) / jnp.where(needs.demand > 0, needs.demand, 1)
    fixed = jnp.where(needs.demand > 0, jnp.minimum(served, 1), 1)[..., None]
    best, own = (
        value_of_table(fleet.objective, each, active, needs.demand, needs.weight)
        for each in (table, fixed)
    )
    sound = jnp.all(jnp.isfinite(values), axis=(-2, -1))
    return jnp.where(sound, jnp.maximum(best - own, 0), jnp.inf)
