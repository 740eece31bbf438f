"""Decision gap, and its expected reduction by every candidate cell at once (METHOD 3, 4)."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from fleetsieve_kernels.allocation import fulfillment_table, value_of_table
from fleetsieve_kernels.bounds import (
    Doubt,
    Known,
    Levels,
    bound,
    capacity_intervals,
    halfwidth,
    white_slack,
)
from fleetsieve_kernels.covariance import Cells
from fleetsieve_kernels.hyper import Hyper, constrain
from fleetsieve_kernels.posterior import Posterior, Rows, Table, marginals, observe, update

# Candidates evaluated together: bounds the memory at this many times K·N·P numbers.
_BLOCK = 32
# The distance is measured a little below V^U: at V^U itself the least drop of a κ^U costs a GPU.
SHY = 0.98


class Fleet(NamedTuple):
    """Static facts of the decision; hashable, part of the compilation key."""

    objective: str
    sizes: tuple[int, ...]
    gpus: int
    shape: tuple[int, int, int]
    measured_only: bool = True
    limited: bool = False


class Needs(NamedTuple):
    """What the workloads ask for."""

    demand: Float[Array, " W"]
    weight: Float[Array, " W"]
    min_replicas: Int[Array, " W"]
    max_replicas: Int[Array, " W"]


class View(NamedTuple):
    """The state of knowledge: bounds of outputs (mean ± width), of capacity and of the value."""

    mean: Float[Array, "N P"]
    sd: Float[Array, "N P"]
    width: Float[Array, "N P"]
    kappa_lower: Float[Array, "W C"]
    kappa_upper: Float[Array, "W C"]
    value_lower: Float[Array, ""]
    value_upper: Float[Array, ""]

    @property
    def gap(self) -> Float[Array, ""]:
        """Γ = V(n^U; κ^U) - V(n^L; κ^L)."""
        return self.value_upper - self.value_lower


class Gains(NamedTuple):
    """Expected reductions by measuring a cell; 0 where nothing is learned."""

    gap: Float[Array, " N"]
    distance: Float[Array, " N"]


@partial(jax.jit, static_argnames="fleet")
def view(
    theta: Hyper,
    inflation: Float[Array, "N P"],
    q: Float[Array, ""],
    data: Table | Rows,
    cells: Cells,
    known: Known,
    levels: Levels,
    needs: Needs,
    fleet: Fleet,
    doubt: Doubt | None = None,
) -> View:
    """Bounds, capacities and values under the data; without `doubt` all noise is Gaussian."""
    hyper = constrain(theta)
    mean, variance = marginals(hyper, data, cells)
    sd = jnp.where(known.exact, 0, jnp.sqrt(variance) * inflation)
    mean = jnp.where(known.exact, known.value, mean)
    width, slack = halfwidth(q, sd, doubt), white_slack(hyper, q, cells)
    intervals = capacity_intervals(
        bound(mean, width, known), known, levels, slack, fleet.shape, fleet.measured_only
    )
    lower, upper, _ = values_of(intervals, needs, fleet)
    return View(mean, sd, width, *intervals, lower, upper)


@partial(jax.jit, static_argnames="fleet")
def gap_at(
    theta: Hyper,
    q: Float[Array, ""],
    mean: Float[Array, "N P"],
    width: Float[Array, "N P"],
    cells: Cells,
    known: Known,
    levels: Levels,
    needs: Needs,
    fleet: Fleet,
) -> Float[Array, ""]:
    """The gap Γ if the outputs were known to be within mean ± width."""
    bounds, slack = bound(mean, width, known), white_slack(constrain(theta), q, cells)
    intervals = capacity_intervals(bounds, known, levels, slack, fleet.shape, fleet.measured_only)
    lower, upper, _ = values_of(intervals, needs, fleet)
    return upper - lower


@partial(jax.jit, static_argnames="fleet")
def expected_gains(
    theta: Hyper,
    inflation: Float[Array, "N P"],
    q: Float[Array, ""],
    posterior: Posterior,
    noise: Float[Array, "N P"],
    nodes: Float[Array, "K P"],
    cells: Cells,
    known: Known,
    levels: Levels,
    needs: Needs,
    fleet: Fleet,
    doubt: tuple[Doubt, Doubt] | None = None,
) -> Gains:
    """Expected reduction of the gap Γ and of the distance by each cell, over K fantasies each.

    `noise` is the variance of one more run of each cell, 0 where that is exact; `doubt` that of
    the cells as they are, and after one more run.

    The distance is sum_w [h_w(t; κ^L) - h_w(t; κ^U)] / G with h the fewest GPUs that give workload
    w the fulfillment t, t being 98 % of today's V^U. It moves with every workload, where Γ, a
    minimum over workloads, often moves with none.
    """
    slack = white_slack(constrain(theta), q, cells)

    def state(
        mean: Array, sd: Array, known: Known, doubt: Doubt | None
    ) -> tuple[Array, Array, tuple]:
        bounds = bound(mean, halfwidth(q, sd, doubt), known)
        intervals = capacity_intervals(
            bounds, known, levels, slack, fleet.shape, fleet.measured_only
        )
        lower, upper, tables = values_of(intervals, needs, fleet)
        return lower, upper, tables

    mean = jnp.where(known.exact, known.value, posterior.mean)
    sd = jnp.where(known.exact, 0, jnp.sqrt(posterior.variance) * inflation)
    lower, target, tables = state(mean, sd, known, doubt and doubt[0])
    gap, target = target - lower, SHY * target
    distance = distance_of(tables, target, needs, fleet.gpus)

    def candidate(index: Array) -> tuple[Array, Array]:
        gain, variance = observe(posterior, index, noise[index])
        here = jnp.arange(known.measured.shape[0]) == index
        exact = known.exact | (here[:, None] & (noise[index] == 0))
        after = _one_more_run(doubt, here)

        def fantasy(node: Array) -> tuple[Array, Array]:
            drawn = jnp.where(known.exact, known.value, posterior.mean + gain @ node)
            then = Known(drawn, exact, known.measured | here, known.broken)
            width = jnp.where(exact, 0, jnp.sqrt(variance) * inflation)
            lower, upper, tables = state(drawn, width, then, after)
            return upper - lower, distance_of(tables, target, needs, fleet.gpus)

        gaps, distances = jax.vmap(fantasy)(nodes)
        return gap - jnp.mean(gaps), distance - jnp.mean(distances)

    free = levels.exists & ~known.broken & ~jnp.all(known.exact, axis=-1)
    return Gains(*over_free(candidate, free, gap.dtype))


@jax.jit
def assume(posterior: Posterior, index: Int[Array, ""], noise: Float[Array, " P"]) -> Posterior:
    """The posterior once a pending cell returns, its mean unchanged: only where it lies is used."""
    return update(posterior, index, posterior.mean[index], noise)


def _one_more_run(doubt: tuple[Doubt, Doubt] | None, here: Bool[Array, " N"]) -> Doubt | None:
    """The doubt once the cell `here` was measured again."""
    if doubt is None:
        return None
    return jax.tree.map(lambda now, later: jnp.where(here[:, None], later, now), *doubt)


def over_free(
    candidate: Callable[[Array], tuple[Array, Array]], free: Bool[Array, " N"], dtype: DTypeLike
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Both gains of every free cell, 0 of the others: block by block, free ones alone."""
    cells = free.shape[0]
    block = min(_BLOCK, cells)
    order = jnp.pad(jnp.argsort(~free), (0, -cells % block), constant_values=cells)

    def next_block(step: Array, gains: tuple[Array, Array]) -> tuple[Array, Array]:
        index = jax.lax.dynamic_slice_in_dim(order, step * block, block)
        found = jax.vmap(candidate)(jnp.minimum(index, cells - 1))
        filled = [
            gain.at[index].set(new, mode="drop") for gain, new in zip(gains, found, strict=True)
        ]
        return filled[0], filled[1]

    none = jnp.zeros(cells, dtype)
    gains = jax.lax.fori_loop(0, -(-jnp.sum(free) // block), next_block, (none, none))
    return jnp.where(free, gains[0], 0), jnp.where(free, gains[1], 0)


def values_of(
    intervals: tuple[Array, Array], needs: Needs, fleet: Fleet
) -> tuple[Array, Array, tuple[Array, Array, Array]]:
    """V^L and V^U over the same F, with both fulfillment tables and F."""
    active = (jnp.max(intervals[1], axis=-1) > 0) & (needs.demand > 0)
    limits = (needs.min_replicas, needs.max_replicas) if fleet.limited else None
    tables = [
        fulfillment_table(kappa, needs.demand, fleet.sizes, fleet.gpus, limits)
        for kappa in intervals
    ]
    values = [
        value_of_table(fleet.objective, table, active, needs.demand, needs.weight)
        for table in tables
    ]
    return values[0], values[1], (tables[0], tables[1], active)


def distance_of(
    tables: tuple[Array, Array, Bool[Array, " W"]], target: Array, needs: Needs, gpus: int
) -> Array:
    """The distance of `expected_gains`, from the tables of `values_of`."""
    lower, upper, active = tables
    fewest = [jnp.sum(table < target, axis=-1, dtype=jnp.int32) for table in (lower, upper)]
    apart = jnp.where(active, jnp.minimum(fewest[0], gpus) - jnp.minimum(fewest[1], gpus), 0)
    return jnp.sum(apart).astype(target.dtype) / gpus
