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
    ceiling: Float[
        Array, "N"
    ]  # of output 0 if a server keeps up: 0 where loads are rates, else inf


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


class Assumed(NamedTuple):
    """What capacities take for granted besides the bounds."""

    slack: Float[Array, "#N M"]  # by how much a cell may be worse than a higher load
    ceiling: Float[Array, "N"]  # of output 0


def assumed(
    hyper: Hyper,
    q: Float[Array, ""],
    cells: Cells,
    mean: Float[Array, "N P"],
    known: Known,
    levels: Levels,
) -> Assumed:
    """`white_slack`, and that a server completes no more than it is sent, but for cells' own parts.

    Where a measured cell did complete more by the posterior `mean`, the others may as well.
    """
    seen = jnp.max(jnp.where(known.measured, mean[:, 0], -jnp.inf), initial=-jnp.inf)
    own = q * jnp.sqrt(own_variances(hyper, cells)[:, 0])
    return Assumed(white_slack(hyper, q, cells), jnp.maximum(levels.ceiling, seen) + own)


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


class Shift(NamedTuple):
    """By how much K fantasies move all outputs: gain @ node, bounds and all."""

    gain: Float[Array, "N P P"]  # 0 where a value is known exactly
    nodes: Float[Array, "K P"]


def capacity_intervals(
    bounds: Bounds,
    known: Known,
    levels: Levels,
    rest: Assumed,
    shape: tuple[int, int, int],
    measured_only: bool = True,
    shift: Shift | None = None,
) -> tuple[Float[Array, "*batch W C"], Float[Array, "*batch W C"]]:
    """κ^L and κ^U of every column, requests/s per replica; with a `shift` of each fantasy.

    Upper: the best upper throughput before the first level that surely breaks an SLO or broke.
    Throughput is cut at its `ceiling`.
    Lower: the best lower throughput of a level that was measured and holds (`measured_only`), with
    every level below it holding: as measured, else by its own bound, or by that of a measured level
    above it plus `slack`, a lower load being no harder but for the cells' own parts. A level that
    surely breaks by its own bound is not eased, so κ^L ≤ κ^U; nor is one that was measured and
    rather breaks.

    Levels are walked one after the other, from above for what eases lower ones, then from below.
    """
    told = (
        *bounds,
        jnp.log(levels.scale)[:, None],
        jnp.stack([levels.exists & ~known.broken, known.measured], axis=-1),
        levels.limited,
        jnp.broadcast_to(rest.slack, levels.limited.shape),
        rest.ceiling[:, None],
        None if shift is None else jnp.reshape(shift.gain, (shift.gain.shape[0], -1)),
    )
    told = jax.tree.map(lambda each: _by_level(each, shape), told)

    def at(told: tuple) -> _Level:
        lower, upper, scale, (sound, measured), limited, slack, ceiling, gain = told
        if shift is not None:
            outputs = lower.shape[0]
            gain = jnp.reshape(gain, (outputs, outputs, 1, *gain.shape[1:]))
            nodes = shift.nodes[..., None, None]
            moved = sum(gain[:, q] * nodes[:, q] for q in range(outputs))
            lower, upper = lower[:, None] + moved, upper[:, None] + moved
        batch = range(1, lower.ndim - 2)
        limited, slack = jnp.expand_dims(limited, batch), jnp.expand_dims(slack, batch)
        return _Level(lower, upper, scale[0], sound, measured, limited, slack, ceiling[0])

    def down(above: Array, told: tuple) -> tuple[Array, Array]:
        here = at(told)
        anchor = jnp.where(here.measured & here.holds, here.upper[1:], jnp.inf)
        return jnp.minimum(above, anchor), above

    def up(carry: tuple, told: tuple) -> tuple[tuple, None]:
        open_, sure, low, high = carry
        here, above = at(told[0]), told[1]
        open_ &= here.possible
        eased = here.all(jnp.minimum(here.upper[1:], above + here.slack) <= 0)
        likely = here.all(here.lower[1:] + here.upper[1:] <= 0) | ~here.measured
        sure &= here.holds | (eased & here.possible & likely)
        counted = sure & here.holds & (here.measured if measured_only else True)
        low = jnp.maximum(low, jnp.where(counted, here.throughput(here.lower), -jnp.inf))
        high = jnp.maximum(high, jnp.where(open_, here.throughput(here.upper), -jnp.inf))
        return (open_, sure, low, high), None

    first = at(jax.tree.map(lambda each: each[0], told))
    nothing = jnp.full_like(first.lower[0], -jnp.inf)
    yes = jnp.ones(nothing.shape, bool)
    _, above = jax.lax.scan(down, jnp.full_like(first.upper[1:], jnp.inf), told, reverse=True)
    (_, _, low, high), _ = jax.lax.scan(up, (yes, yes, nothing, nothing), (told, above))
    return jnp.exp(low), jnp.exp(high)


class _Level(NamedTuple):
    """One level of all columns; outputs and metrics in front, so that they are whole arrays."""

    lower: Float[Array, "P *batch W C"]
    upper: Float[Array, "P *batch W C"]
    scale: Float[Array, "*#batch W C"]
    sound: Bool[Array, "*#batch W C"]  # exists, and did not break
    measured: Bool[Array, "*#batch W C"]
    limited: Bool[Array, "M *#batch W C"]
    slack: Float[Array, "M *#batch W C"]
    ceiling: Float[Array, "*#batch W C"]

    def throughput(self, outputs: Float[Array, "P *batch W C"]) -> Float[Array, "*batch W C"]:
        """Log of the requests/s that output 0 stands for."""
        return jnp.minimum(outputs[0], self.ceiling) + self.scale

    def all(self, met: Bool[Array, "M *batch W C"]) -> Bool[Array, "*batch W C"]:
        """Whether something is met for every SLO."""
        return jnp.all(met | ~self.limited, axis=0)

    @property
    def possible(self) -> Bool[Array, "*batch W C"]:
        """Whether it may hold."""
        return self.all(self.lower[1:] <= 0) & self.sound

    @property
    def holds(self) -> Bool[Array, "*batch W C"]:
        """Whether it holds by its own bound."""
        return self.all(self.upper[1:] <= 0) & self.sound


def _by_level(values: Array, shape: tuple[int, int, int]) -> Array:
    """[..., N, P] as [L, P, ..., W, C]."""
    columns = jnp.reshape(values, (*values.shape[:-2], *shape, values.shape[-1]))
    return jnp.moveaxis(columns, (-2, -1), (0, 1))


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
    """Levels below the first of their column that does not hold."""
    columns = _columns(holds, shape)
    first = jnp.min(jnp.where(columns, shape[2], jnp.arange(shape[2])), axis=-1, keepdims=True)
    return jnp.arange(shape[2]) < first


def _best(reached: Array, log_throughput: Array, levels: Levels, shape: tuple) -> Array:
    throughput = _columns(log_throughput + jnp.log(levels.scale), shape)
    return jnp.exp(jnp.max(jnp.where(reached, throughput, -jnp.inf), axis=-1))


def _lowest_above(anchor: Float[Array, "*batch N M"], shape: tuple[int, int, int]) -> Array:
    """For every cell the least anchor among the higher levels of its column; inf if none."""
    *batch, _, metrics = anchor.shape
    columns = jnp.reshape(anchor, (*batch, *shape, metrics))
    above = [jnp.full_like(columns[..., 0, :], jnp.inf)]
    for level in range(shape[2] - 1, 0, -1):
        above.append(jnp.minimum(above[-1], columns[..., level, :]))
    return jnp.reshape(jnp.stack(above[::-1], axis=-2), anchor.shape)
