"""A cheap score of every candidate cell: what measuring it does to its own column alone.

The full score (`acquisition.expected_gains`) looks at all N cells for each candidate, this one at
the L levels of the candidate's column, so that it costs N·L and not N². It picks the candidates
that are worth the full score; what they do to other columns is left to that.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fleetsieve_kernels.acquisition import SHY, Fleet, Needs, one_more_run, values_of
from fleetsieve_kernels.allocation import chain_of, fewest_gpus, grown
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
from fleetsieve_kernels.posterior import observe

# Columns looked at together.
_BLOCK = 64


class OwnGains(NamedTuple):
    """Expected reductions through a cell's own column."""

    distance: Float[Array, " N"]
    span: Float[Array, " N"]  # of κ^U - κ^L per GPU, as a share of the workload's best κ^U per GPU


@partial(jax.jit, static_argnames="fleet")
def own_gains(
    theta: Hyper,
    inflation: Float[Array, "N P"],
    q: Float[Array, ""],
    posterior: tuple[Float[Array, "N P"], Float[Array, "N P"]],
    columns: Float[Array, "WC L P L P"],
    noise: Float[Array, "N P"],
    nodes: Float[Array, "K P"],
    cells: Cells,
    known: Known,
    levels: Levels,
    needs: Needs,
    fleet: Fleet,
    doubt: tuple[Doubt, Doubt] | None = None,
) -> OwnGains:
    """What each cell does through its own column, expected over K fantasies.

    The arguments are those of `expected_gains`, with the covariances within each column for those
    of candidates; limits on replicas are passed over.
    """
    workloads, configs, depth = fleet.shape
    mean = jnp.where(known.exact, known.value, posterior[0])
    rest = assumed(constrain(theta), q, cells, mean, known, levels)
    sd = jnp.where(known.exact, 0, jnp.sqrt(posterior[1]) * inflation)
    bounds = bound(mean, halfwidth(q, sd, doubt and doubt[0]), known)
    kappas = capacity_intervals(bounds, known, levels, rest, fleet.shape, fleet.measured_only)
    target = SHY * values_of(kappas, needs, fleet)[1] * needs.demand
    lower, upper = (_Others.of(kappa, fleet) for kappa in kappas)

    def one(told: tuple[Array, Array]) -> tuple[Float[Array, " L"], Float[Array, " L"]]:
        column, covariance = told
        w, c = column // configs, column % configs
        at = column * depth + jnp.arange(depth)
        here = jax.tree.map(lambda part: part[at], (known, levels, rest, inflation, noise, doubt))
        known_, levels_, rest_, inflation_, noise_, doubt_ = here
        centre, variance = mean[at], posterior[1][at]

        def apart(low: Array, high: Array) -> Array:
            blocks = [
                others.blocks(w, c, kappa, chain_of(fleet.sizes))
                for others, kappa in ((lower, low), (upper, high))
            ]
            fewest = [
                jnp.minimum(fewest_gpus(each, target[w], fleet.sizes, fleet.gpus), fleet.gpus)
                for each in blocks
            ]
            served = (blocks[1][-1] > 0) & (needs.demand[w] > 0)
            return jnp.where(served, fewest[0] - fewest[1], 0)

        def candidate(level: Array) -> tuple[Array, Array]:
            gain, left = observe(variance, covariance[:, :, level, :], level, noise_[level])
            told = jnp.arange(depth) == level
            exact = known_.exact | (told[:, None] & (noise_[level] == 0))
            sd = jnp.where(exact, 0, jnp.sqrt(left) * inflation_)
            width = halfwidth(q, sd, one_more_run(doubt_, told))
            then = Known(centre, exact, known_.measured | told, known_.broken)
            shift = Shift(jnp.where(known_.exact[..., None], 0, gain), nodes)
            facts = then, levels_, rest_, (1, 1, depth), fleet.measured_only
            low, high = capacity_intervals(bound(centre, width, then), *facts, shift)
            low, high = low[:, 0, 0], high[:, 0, 0]
            return jnp.mean(jax.vmap(apart)(low, high)), jnp.mean(high - low)

        low, high = kappas[0][w, c], kappas[1][w, c]
        distance, span = jax.vmap(candidate)(jnp.arange(depth))
        return apart(low, high) - distance, high - low - span

    every = jnp.arange(workloads * configs)
    together = min(_BLOCK, workloads * configs)
    distance, span = jax.lax.map(one, (every, columns), batch_size=together)
    per_gpu = 1 / jnp.asarray(fleet.sizes, span.dtype)
    best = jnp.max(kappas[1] * per_gpu, axis=1, keepdims=True)
    share = jnp.where(best > 0, per_gpu / jnp.where(best > 0, best, 1), 0)
    return OwnGains(
        jnp.ravel(distance) / fleet.gpus,
        jnp.ravel(jnp.reshape(span, fleet.shape) * share[..., None]),
    )


class _Others(NamedTuple):
    """What each workload can have from all columns but one."""

    best: Float[Array, "W S"]  # capacity of the best column of each size
    without: Float[Array, "W C"]  # the same of a column's own size, without that column
    size: Int[Array, " C"]  # which of the sizes a column has

    @classmethod
    def of(cls, kappa: Float[Array, "W C"], fleet: Fleet) -> "_Others":
        chain = chain_of(fleet.sizes)
        size = np.searchsorted(chain, fleet.sizes)
        best, without = [], jnp.zeros_like(kappa)
        for k in range(len(chain)):
            members = np.flatnonzero(size == k)
            own = kappa[:, members]
            first = jnp.arange(len(members)) == jnp.argmax(own, axis=1)[:, None]
            best.append(jnp.max(own, axis=1))
            second = jnp.max(jnp.where(first, 0, own), axis=1)
            rest = jnp.where(first, second[:, None], best[-1][:, None])
            without = without.at[:, members].set(rest)
        return cls(jnp.stack(best, axis=1), without, jnp.asarray(size))

    def blocks(self, w: Array, c: Array, kappa: Array, chain: list[int]) -> list[Array]:
        """The blocks of workload `w` with the capacity `kappa` of its column `c`."""
        changed = jnp.arange(len(chain)) == self.size[c]
        best = jnp.where(changed, jnp.maximum(self.without[w, c], kappa), self.best[w])
        return grown(list(best), chain)
