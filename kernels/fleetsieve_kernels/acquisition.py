"""Decision gap, and its expected reduction by every candidate cell at once (METHOD 3, 4)."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fleetsieve_kernels.allocation import (
    block_values,
    fewest_gpus,
    fulfillment_table,
    value,
)
from fleetsieve_kernels.bounds import (
    Doubt,
    Known,
    Levels,
    Shift,
    assumed,
    bound,
    capacity_intervals,
    halfwidth,
)
from fleetsieve_kernels.covariance import Cells
from fleetsieve_kernels.hyper import Hyper, constrain
from fleetsieve_kernels.posterior import Rows, Table, marginals, observe

# So many numbers K·N·P of fantasies are worked on at once.
_NUMBERS = 2**19
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


class Candidates(NamedTuple):
    """Cells that may be measured next, and their covariance with all cells."""

    cell: Int[Array, " B"]
    cross: Float[Array, "B N P P"]


class Gains(NamedTuple):
    """Expected reductions by measuring each candidate."""

    gap: Float[Array, " B"]
    distance: Float[Array, " B"]


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
    width, rest = halfwidth(q, sd, doubt), assumed(hyper, q, cells, mean, known, levels)
    intervals = capacity_intervals(
        bound(mean, width, known), known, levels, rest, fleet.shape, fleet.measured_only
    )
    lower, upper = values_of(intervals, needs, fleet)
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
    bounds, hyper = bound(mean, width, known), constrain(theta)
    rest = assumed(hyper, q, cells, mean, known, levels)
    intervals = capacity_intervals(bounds, known, levels, rest, fleet.shape, fleet.measured_only)
    lower, upper = values_of(intervals, needs, fleet)
    return upper - lower


@partial(jax.jit, static_argnames="fleet")
def expected_gains(
    theta: Hyper,
    inflation: Float[Array, "N P"],
    q: Float[Array, ""],
    posterior: tuple[Float[Array, "N P"], Float[Array, "N P"]],
    candidates: Candidates,
    noise: Float[Array, "N P"],
    nodes: Float[Array, "K P"],
    cells: Cells,
    known: Known,
    levels: Levels,
    needs: Needs,
    fleet: Fleet,
    doubt: tuple[Doubt, Doubt] | None = None,
) -> Gains:
    """Expected reduction of the gap Γ and of the distance by each candidate, over K fantasies.

    `posterior` is mean and variance, `noise` the variance of one more run of each cell, 0 where
    that is exact; `doubt` that of the cells as they are, and after one more run.

    The distance is sum_w [h_w(t; κ^L) - h_w(t; κ^U)] / G with h the fewest GPUs that give workload
    w the fulfillment t, t being 98 % of today's V^U. It moves with every workload, where Γ, a
    minimum over workloads, often moves with none.
    """
    centre, spread = posterior
    mean = jnp.where(known.exact, known.value, centre)
    rest = assumed(constrain(theta), q, cells, mean, known, levels)

    def state(
        mean: Array, width: Array, known: Known, shift: Shift | None = None
    ) -> tuple[Array, Array]:
        facts = known, levels, rest, fleet.shape, fleet.measured_only
        return capacity_intervals(bound(mean, width, known), *facts, shift)

    sd = jnp.where(known.exact, 0, jnp.sqrt(spread) * inflation)
    intervals = state(mean, halfwidth(q, sd, doubt and doubt[0]), known)
    lower, upper = values_of(intervals, needs, fleet)
    gap, target = upper - lower, SHY * upper
    distance = distance_of(intervals, target, needs, fleet)

    def candidate(one: Candidates) -> tuple[Array, Array]:
        index, cross = one
        gain, variance = observe(spread, cross, index, noise[index])
        here = jnp.arange(known.measured.shape[0]) == index
        exact = known.exact | (here[:, None] & (noise[index] == 0))
        sd = jnp.where(exact, 0, jnp.sqrt(variance) * inflation)
        width = halfwidth(q, sd, one_more_run(doubt, here))
        then = Known(mean, exact, known.measured | here, known.broken)
        shift = Shift(jnp.where(known.exact[..., None], 0, gain), nodes)
        intervals = state(mean, width, then, shift)
        lower, upper = values_of(intervals, needs, fleet)
        distances = distance_of(intervals, target, needs, fleet)
        return gap - jnp.mean(upper - lower), distance - jnp.mean(distances)

    return Gains(*in_blocks(candidate, candidates, nodes.shape[0] * centre.size))


def one_more_run(doubt: tuple[Doubt, Doubt] | None, here: Bool[Array, " N"]) -> Doubt | None:
    """The doubt once the cell `here` was measured again."""
    if doubt is None:
        return None
    return jax.tree.map(lambda now, later: jnp.where(here[:, None], later, now), *doubt)


def in_blocks(
    candidate: Callable[[Candidates], tuple[Array, Array]], candidates: Candidates, size: int
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Both gains of every candidate, as many at once as memory allows, `size` numbers for each."""
    together = max(1, min(len(candidates.cell), _NUMBERS // size))
    return jax.lax.map(candidate, candidates, batch_size=together)


def values_of(intervals: tuple[Array, Array], needs: Needs, fleet: Fleet) -> tuple[Array, Array]:
    """V^L and V^U over the same F."""
    active = _active(intervals[1], needs)
    lower, upper = (_value(kappa, active, needs, fleet) for kappa in intervals)
    return lower, upper


def distance_of(intervals: tuple[Array, Array], target: Array, needs: Needs, fleet: Fleet) -> Array:
    """The distance of `expected_gains`."""
    lower, upper = (_fewest(kappa, target, needs, fleet) for kappa in intervals)
    apart = jnp.where(_active(intervals[1], needs), lower - upper, 0)
    return jnp.sum(apart, axis=-1) / fleet.gpus


def _active(kappa_upper: Float[Array, "W C"], needs: Needs) -> Bool[Array, " W"]:
    """F."""
    return (jnp.max(kappa_upper, axis=-1) > 0) & (needs.demand > 0)


def _value(kappa: Array, active: Array, needs: Needs, fleet: Fleet) -> Array:
    needed = needs.demand, needs.weight, fleet.sizes, fleet.gpus
    return value(fleet.objective, kappa, active, *needed, _limits(needs, fleet))


def _fewest(kappa: Array, target: Array, needs: Needs, fleet: Fleet) -> Float[Array, " W"]:
    """Fewest GPUs that give each workload the fulfillment `target`, all of them if none do."""
    if fleet.limited:
        needed = needs.demand, fleet.sizes, fleet.gpus
        table = fulfillment_table(kappa, *needed, _limits(needs, fleet))
        short = jnp.sum(table < target, axis=-1, dtype=jnp.int32)
        return jnp.minimum(short, fleet.gpus).astype(kappa.dtype)
    blocks = block_values(kappa, fleet.sizes)
    fewest = fewest_gpus(blocks, target * needs.demand, fleet.sizes, fleet.gpus)
    return jnp.minimum(fewest, fleet.gpus)


def _limits(needs: Needs, fleet: Fleet) -> tuple[Array, Array] | None:
    return (needs.min_replicas, needs.max_replicas) if fleet.limited else None
