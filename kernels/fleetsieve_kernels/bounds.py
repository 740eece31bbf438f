"""Simultaneous bounds of all cells, and the capacity intervals that follow (METHOD 3)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from scipy.special import ndtri

from fleetsieve_kernels.covariance import Cells, own_variance, white_variance
from fleetsieve_kernels.hyper import Hyper, mixing_matrix

# In log units; its exponential is finite in float32.
_ANYTHING = 50.0


class Levels(NamedTuple):
    """What the load levels of every column (workload, config) mean; N is W·C·L."""

    exists: Bool[Array, "N"]
    limited: Bool[Array, "N M"]  # whether the workload has an SLO on the metric
    scale: Float[Array, "N"]  # requests/s of output 0 at exp(0): the rate, or 1


class Known(NamedTuple):
    """What was observed of every cell."""

    value: Float[Array, "N P"]  # 0 where not exact
    exact: Bool[Array, "N P"]
    measured: Bool[Array, "N"]  # ran to the end
    broken: Bool[Array, "N"]  # failed, or saturated


class Doubt(NamedTuple):
    """How much further the noise of measurements reaches than a Gaussian of its variance.

    The posterior of a value that rests on its own measurement alone has the tails of that noise,
    one that rests on other cells has not.
    """

    noise: Float[Array, "N P"]  # variance of what was measured, inf where nothing was
    excess: Float[Array, "N P"]  # squared ratio of the tails' quantiles, less 1
    reach: Float[Array, "N P"]  # share of q that bounds extend to, 1 unless less is asked


class Bounds(NamedTuple):
    """Lower and upper bounds of all outputs, simultaneous at the stated confidence."""

    lower: Float[Array, "*batch N P"]
    upper: Float[Array, "*batch N P"]


def quantile(confidence: float, count: int) -> float:
    """q such that `count` jointly Gaussian values stay within q sd with at least `confidence`.

    By Šidák's inequality (1967), which holds under any correlation: the product of the marginal
    probabilities. It is exact for independent values and else conservative; draws of the joint
    posterior would give a little less at the price of their noise.
    """
    each = confidence ** (1 / max(count, 1))
    return float(ndtri((1 + each) / 2))


def white_slack(hyper: Hyper, q: Float[Array, ""], cells: Cells) -> Float[Array, "N M"]:
    """By how much a cell may be worse than a higher load of its column: q sd of both's own parts.

    Of the higher one the white part alone, since it lies where the load is no longer low.
    """
    white = mixing_matrix(hyper) ** 2 @ jax.vmap(white_variance)(_own(hyper))
    return q * jnp.sqrt((own_variances(hyper, cells) + white)[:, 1:])


def own_variances(hyper: Hyper, cells: Cells) -> Float[Array, "N P"]:
    """Variance of each output of a cell that no other cell tells of."""
    latent = jax.vmap(own_variance, (0, None))(_own(hyper), cells)
    return (mixing_matrix(hyper) ** 2 @ latent).T


def _own(hyper: Hyper) -> dict[str, Array]:
    return {name: hyper[name] for name in ("white", "amplitude", "early")}


def halfwidth(
    q: Float[Array, ""], sd: Float[Array, "*batch N P"], doubt: Doubt | None
) -> Float[Array, "*batch N P"]:
    """q sd, wider by the tails of the noise as far as a value rests on its own measurement."""
    if doubt is None:
        return q * sd
    own = jnp.minimum(sd**2 / doubt.noise, 1)
    return q * sd * doubt.reach * jnp.sqrt(1 + doubt.excess * own)


def bound(
    mean: Float[Array, "*batch N P"], halfwidth: Float[Array, "*batch N P"], known: Known
) -> Bounds:
    """mean ± halfwidth; width 0 where a value is known exactly, anything where nothing is.

    A factorisation that broke down leaves NaN, of which every comparison is false: without the
    wide interval it would look like a level that surely breaks, and could certify.
    """
    sound = jnp.isfinite(mean) & jnp.isfinite(halfwidth)
    centre = jnp.where(known.exact, known.value, jnp.where(sound, mean, 0))
    width = jnp.where(known.exact, 0, jnp.where(sound, halfwidth, _ANYTHING))
    return Bounds(centre - width, centre + width)


def capacity_intervals(
    bounds: Bounds,
    known: Known,
    levels: Levels,
    slack: Float[Array, "N M"],
    shape: tuple[int, int, int],
    measured_only: bool = True,
) -> tuple[Float[Array, "*batch W C"], Float[Array, "*batch W C"]]:
    """κ^L and κ^U of every column, requests/s per replica.

    Upper: the best upper throughput before the first level that surely breaks an SLO or broke.
    Lower: the best lower throughput of a level that was measured and holds (`measured_only`), with
    every level below it holding: as measured, else by its own bound, or by that of a measured level
    above it plus `slack`, a lower load being no harder but for the cells' own parts. A level that
    surely breaks by its own bound is not eased, so κ^L ≤ κ^U; nor is one that was measured and
    rather breaks.
    """
    lower, upper = bounds
    possible = _all_metrics(lower[..., 1:] <= 0, levels) & levels.exists & ~known.broken
    optimistic = _best(_prefix(possible, shape), upper[..., 0], levels, shape)
    holds = _all_metrics(upper[..., 1:] <= 0, levels) & levels.exists & ~known.broken
    counted = (known.measured & holds) if measured_only else holds
    anchor = jnp.where((known.measured & holds)[..., None], upper[..., 1:], jnp.inf)
    eased = jnp.minimum(upper[..., 1:], _lowest_above(anchor, shape) + slack)
    likely = _all_metrics(lower[..., 1:] + upper[..., 1:] <= 0, levels)
    eased_holds = _all_metrics(eased <= 0, levels) & possible & (likely | ~known.measured)
    steps = holds | eased_holds
    reached = _prefix(steps, shape) & _columns(counted, shape)
    return _best(reached, lower[..., 0], levels, shape), optimistic


def drawn_capacities(
    values: Float[Array, "*batch N P"],
    known: Known,
    levels: Levels,
    slack: Float[Array, "*batch N M"],
    shape: tuple[int, int, int],
) -> Float[Array, "*batch W C"]:
    """κ of every column under drawn outputs: the best throughput before the first break.

    What was not measured is no worse than a measured level above it that holds, plus `slack`, a
    draw of how far two cells' own parts are apart: as in `capacity_intervals`.
    """
    holds = _all_metrics(values[..., 1:] <= 0, levels) & levels.exists & ~known.broken
    anchor = jnp.where((known.measured & holds)[..., None], values[..., 1:], jnp.inf)
    eased = jnp.minimum(values[..., 1:], _lowest_above(anchor, shape) + slack)
    eased_holds = _all_metrics(eased <= 0, levels) & levels.exists & ~known.broken
    reached = _prefix(jnp.where(known.measured, holds, eased_holds), shape)
    return _best(reached, values[..., 0], levels, shape)


def _all_metrics(satisfied: Bool[Array, "*batch N M"], levels: Levels) -> Bool[Array, "*batch N"]:
    return jnp.all(satisfied | ~levels.limited, axis=-1)


def _columns(values: Array, shape: tuple[int, int, int]) -> Array:
    return jnp.reshape(values, (*values.shape[:-1], *shape))


def _prefix(holds: Bool[Array, "*batch N"], shape: tuple[int, int, int]) -> Array:
    return jnp.cumprod(_columns(holds, shape), axis=-1, dtype=jnp.int32).astype(bool)


def _best(reached: Array, log_throughput: Array, levels: Levels, shape: tuple) -> Array:
    throughput = _columns(jnp.exp(log_throughput) * levels.scale, shape)
    return jnp.max(jnp.where(reached, throughput, 0), axis=-1)


def _lowest_above(anchor: Float[Array, "*batch N M"], shape: tuple[int, int, int]) -> Array:
    """For every cell the least anchor among the higher levels of its column; inf if none."""
    *batch, _, metrics = anchor.shape
    columns = jnp.reshape(anchor, (*batch, *shape, metrics))
    least = jax.lax.cummin(columns, axis=columns.ndim - 2, reverse=True)
    beyond = jnp.full_like(least[..., :1, :], jnp.inf)
    return jnp.reshape(jnp.concatenate([least[..., 1:, :], beyond], axis=-2), anchor.shape)
