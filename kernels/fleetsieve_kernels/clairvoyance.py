"""Reduction of the gap by every cell, were its true outcome told now (METHOD 5, `clairvoyant`)."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fleetsieve_kernels.acquisition import (
    SHY,
    Candidates,
    Fleet,
    Gains,
    Needs,
    distance_of,
    in_blocks,
    values_of,
)
from fleetsieve_kernels.bounds import (
    Doubt,
    Known,
    Levels,
    assumed,
    bound,
    capacity_intervals,
    halfwidth,
)
from fleetsieve_kernels.covariance import Cells
from fleetsieve_kernels.hyper import Hyper, constrain
from fleetsieve_kernels.posterior import reveal

# Variance of an output that tells the model nothing: its weight is 1e-12 of that of an exact one.
_UNSEEN = 1e12


class Outcomes(NamedTuple):
    """What every cell would tell, were it the next."""

    value: Float[Array, "N P"]
    noise: Float[Array, "N P"]  # variance
    modelled: Bool[Array, "N P"]  # which outputs enter the model
    known: Known
    q: Float[Array, " N"]  # sd of the bounds once the cell is told


@partial(jax.jit, static_argnames="fleet")
def true_gains(
    theta: Hyper,
    inflation: Float[Array, "N P"],
    q: Float[Array, ""],
    posterior: tuple[Float[Array, "N P"], Float[Array, "N P"]],
    candidates: Candidates,
    outcomes: Outcomes,
    cells: Cells,
    known: Known,
    levels: Levels,
    needs: Needs,
    fleet: Fleet,
    doubt: Doubt | None = None,
) -> Gains:
    """Reduction of the gap Γ and of the distance by each candidate's true outcome, theta as it is.

    As `expected_gains` with the truth for its only fantasy. A cell that fails, or cannot keep up,
    tells the model nothing and cuts its column off; gains may be negative.
    """
    hyper = constrain(theta)

    def state(mean: Array, variance: Array, known: Known, q: Array) -> tuple[Array, Array]:
        centre = jnp.where(known.exact, known.value, mean)
        sd = jnp.where(known.exact, 0, jnp.sqrt(variance) * inflation)
        width = halfwidth(q, sd, doubt)
        rest, shape = assumed(hyper, q, cells, centre, known, levels), fleet.shape
        bounds = bound(centre, width, known)
        return capacity_intervals(bounds, known, levels, rest, shape, fleet.measured_only)

    intervals = state(*posterior, known, q)
    lower, upper = values_of(intervals, needs, fleet)
    gap, target = upper - lower, SHY * upper
    distance = distance_of(intervals, target, needs, fleet)
    noise = jnp.where(outcomes.modelled, outcomes.noise, _UNSEEN)

    def candidate(one: Candidates) -> tuple[Array, Array]:
        index, cross = one
        value = outcomes.value[index]
        mean, variance = reveal(*posterior, cross, index, value, noise[index])
        here = jnp.arange(known.measured.shape[0]) == index
        told = [
            jnp.where(here if new.ndim == 1 else here[:, None], new, old)
            for new, old in zip(outcomes.known, known, strict=True)
        ]
        intervals = state(mean, variance, Known(*told), outcomes.q[index])
        lower, upper = values_of(intervals, needs, fleet)
        left = distance_of(intervals, target, needs, fleet)
        return gap - (upper - lower), distance - left

    return Gains(*in_blocks(candidate, candidates, inflation.size))
