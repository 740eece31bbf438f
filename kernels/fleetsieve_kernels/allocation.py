"""Exact allocation of GPUs to workloads: capacity tables and the best value V (METHOD 1, 3).

Letters: `W` workloads, `C` configs, `G` GPUs, `g_c` GPUs of one replica (`sizes`), `kappa` capacity
of one replica in requests/s. A table over GPUs has B = G + 1 entries, b = 0..G, is nondecreasing
in b, and -inf where b GPUs cannot hold a workload's minimum of replicas. Every function is exact,
has static shapes and keeps the dtype of its capacities or tables.
"""

from functools import partial, reduce
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

OBJECTIVES = ("max-min", "aggregate", "weighted")
# Of [0, 1]: values of V come out to 1e-12, far below what counts as equal.
_HALVINGS = 40


@partial(jax.jit, static_argnames=("sizes", "gpus"))
def capacity_table(
    kappa: Float[Array, "*batch C"], sizes: tuple[int, ...], gpus: int
) -> Float[Array, "*batch {gpus}+1"]:
    """Largest sum_c n_c kappa_c (requests/s) with sum_c g_c n_c <= b, for b = 0..G.

    With the distinct sizes s_1 | s_2 | ... and v_k the most that a block of exactly s_k GPUs gives,
    v_k = max(best kappa of size s_k, (s_k / s_{k-1}) v_{k-1}); capacity(b) = sum_k digit_k(b) v_k,
    b decomposed greedily from the largest size. Proof: a multiset of chain sizes below s with total
    >= s has a subset of total exactly s (added in descending order, every partial sum and s are
    multiples of the next size, so none skips s); hence replicas regroup into blocks of s_k with
    less than s_k left over, no block worth more than v_k: at best the digits of b.

    Raises ValueError when the sizes do not form a divisibility chain.
    """
    digits = jnp.asarray(_digits(chain_of(sizes), gpus), kappa.dtype)
    exact = jax.lax.Precision.HIGHEST
    blocks = jnp.stack(block_values(kappa, sizes), axis=-1)
    return jnp.einsum("...k,kb->...b", blocks, digits, precision=exact)


def block_values(kappa: Float[Array, "*batch C"], sizes: tuple[int, ...]) -> list[Array]:
    """The most that a block of each distinct size gives, smallest first; see `capacity_table`."""
    chain = chain_of(sizes)
    members = (np.flatnonzero(np.equal(sizes, size)) for size in chain)
    return grown([jnp.max(kappa[..., own], axis=-1) for own in members], chain)


def grown(best: list[Array], chain: list[int]) -> list[Array]:
    """Block values from the best capacity of each size: no less than those of smaller blocks."""
    blocks = best[:1]
    for k in range(1, len(chain)):
        blocks.append(jnp.maximum(best[k], (chain[k] // chain[k - 1]) * blocks[-1]))
    return blocks


def fewest_gpus(
    blocks: list[Array], need: Float[Array, "*batch"], sizes: tuple[int, ...], gpus: int
) -> Float[Array, "*batch"]:
    """Fewest GPUs whose capacity reaches `need` (requests/s), G + 1 where more than G are needed.

    The inverse of `capacity_table`, with the same blocks: as many of the largest as fit below the
    need, then for the rest one more of them or what smaller ones take, whichever is less.
    """
    chain, rest, counts = chain_of(sizes), need, []
    for block in reversed(blocks):
        count = jnp.floor(rest / jnp.where(block > 0, block, jnp.inf))
        counts.append(jnp.minimum(count, gpus + 1))
        rest = rest - counts[-1] * block
    spent = jnp.where(rest > 0, jnp.where(blocks[0] > 0, chain[0], jnp.inf), 0)
    spent = spent + counts.pop() * chain[0]
    for block, size in zip(blocks[1:], chain[1:], strict=True):
        spent = counts.pop() * size + jnp.where(block > 0, jnp.minimum(spent, size), spent)
    return jnp.minimum(spent, gpus + 1)


@partial(jax.jit, static_argnames=("sizes", "gpus"))
def max_min(
    kappa: Float[Array, "*batch W C"],
    active: Bool[Array, "*#batch W"],
    demand: Float[Array, "*#batch W"],
    sizes: tuple[int, ...],
    gpus: int,
) -> Float[Array, "*batch"]:
    """`value` of max-min without limits, in a time that does not depend on G.

    Bisection on the fulfillment t, since t can be had if the fewest GPUs that give it to every
    workload sum to at most G. It ends within 1e-12 below the optimum, an entry of the tables, and
    the GPUs that it then takes give that entry.
    """
    blocks = block_values(kappa, sizes)
    demand = jnp.broadcast_to(jnp.asarray(demand, kappa.dtype), blocks[0].shape)
    active = jnp.broadcast_to(active, demand.shape) & (demand > 0)
    need = jnp.where(active, demand, 0)

    def taken(t: Array) -> Array:
        return fewest_gpus(blocks, t[..., None] * need, sizes, gpus)

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        fits = jnp.sum(taken(middle), axis=-1) <= gpus
        return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

    none = jnp.zeros(active.shape[:-1], kappa.dtype)
    low, _ = jax.lax.fori_loop(0, _HALVINGS, halve, (none, none + 1))
    held = taken(low)
    given = sum(
        jnp.floor(rest / size) * block
        for rest, size, block in zip(_rests(held, sizes), chain_of(sizes), blocks, strict=True)
    )
    met = jnp.where(active, jnp.minimum(given / jnp.where(active, demand, 1), 1), jnp.inf)
    return jnp.where(jnp.any(active, axis=-1), jnp.min(met, axis=-1), 0)


@partial(jax.jit, static_argnames=("sizes", "gpus"))
def limited_capacity_table(
    kappa: Float[Array, "*batch C"],
    sizes: tuple[int, ...],
    gpus: int,
    min_replicas: Int[Array, "*#batch"],
    max_replicas: Int[Array, "*#batch"],
) -> Float[Array, "*batch {gpus}+1"]:
    """As `capacity_table`, with min_replicas <= sum_c n_c <= max_replicas, else -inf.

    Dynamic program over the number of replicas r: the best of exactly r replicas within b GPUs is
    the best over c of kappa_c plus the best of r - 1 replicas within b - g_c. The limits broadcast
    to the batch; the sizes need not form a chain.
    """
    batch = kappa.shape[:-1]
    low = jnp.broadcast_to(jnp.asarray(min_replicas, jnp.int32), batch)[..., None]
    high = jnp.broadcast_to(jnp.asarray(max_replicas, jnp.int32), batch)[..., None]
    usable = [(c, size) for c, size in enumerate(sizes) if size <= gpus]
    nothing = jnp.full((*batch, gpus + 1), -jnp.inf, kappa.dtype)

    def add_replica(carry: tuple[Array, Array], r: Array) -> tuple[tuple[Array, Array], None]:
        exactly, best = carry
        grown = [_shift(exactly, size) + kappa[..., c : c + 1] for c, size in usable]
        exactly = reduce(jnp.maximum, grown, nothing)
        allowed = (low <= r) & (r <= high)
        return (exactly, jnp.where(allowed, jnp.maximum(best, exactly), best)), None

    none = jnp.zeros_like(nothing)
    start = (none, jnp.where((low <= 0) & (high >= 0), none, nothing))
    counts = jnp.arange(1, gpus // min(sizes) + 1, dtype=jnp.int32)
    return jax.lax.scan(add_replica, start, counts)[0][1]


@jax.jit
def max_min_value(
    fulfillment: Float[Array, "*batch W B"], active: Bool[Array, "*#batch W"]
) -> Float[Array, "*batch"]:
    """Best min over active workloads of f_w(b_w) with sum_w b_w <= G: an entry of the tables.

    Inactive workloads take their minimum of GPUs. 0 when none is active (F empty), else -inf when
    the minima exceed G. Every spare GPU goes to a workload with the least fulfillment. This is
    optimal: while that least is below the optimum t, no workload holds more than the fewest GPUs
    that give it t, and these sum to at most G.
    """
    *batch, workloads, entries = fulfillment.shape
    active = jnp.broadcast_to(active, (*batch, workloads))
    held = jnp.sum(jnp.isneginf(fulfillment), axis=-1, dtype=jnp.int32)
    spare = entries - 1 - jnp.sum(held, axis=-1, dtype=jnp.int32)
    start = jnp.take_along_axis(fulfillment, held[..., None], axis=-1, mode="clip")[..., 0]
    flat = jnp.reshape(fulfillment, (*batch, workloads * entries))
    index = jax.lax.broadcasted_iota(jnp.int32, held.shape, held.ndim - 1)

    def lift(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        held, current = carry
        least = jax.lax.argmin(current, current.ndim - 1, jnp.int32)[..., None]
        gains = (index == least) & (step < spare)[..., None]
        held = held + gains.astype(jnp.int32)
        entry = least * entries + jnp.take_along_axis(held, least, axis=-1)
        lifted = jnp.take_along_axis(flat, entry, axis=-1, mode="clip")
        return held, jnp.where(gains, lifted, current)

    carry = (held, jnp.where(active, start, jnp.inf))
    least = jnp.min(jax.lax.fori_loop(0, entries - 1, lift, carry)[1], axis=-1)
    return jnp.where(jnp.any(active, axis=-1), jnp.where(spare < 0, -jnp.inf, least), 0)


@jax.jit
def additive_value(
    served: Float[Array, "*batch W B"], active: Bool[Array, "*#batch W"]
) -> Float[Array, "*batch"]:
    """Best sum over active workloads of served_w(b_w) with sum_w b_w <= G, in the unit of `served`.

    Inactive workloads take their minimum of GPUs and add 0. 0 when none is active (F empty), else
    -inf when the minima exceed G. One (max, +) convolution of the tables per workload.
    """
    active = jnp.broadcast_to(active, served.shape[:-1])
    idle = jnp.where(jnp.isneginf(served), served, 0)
    tables = jnp.moveaxis(jnp.where(active[..., None], served, idle), -2, 0)
    best = jax.lax.scan(lambda best, table: (_max_plus(best, table), None), tables[0], tables[1:])[
        0
    ]
    return jnp.where(jnp.any(active, axis=-1), best[..., -1], 0)


@partial(jax.jit, static_argnames=("objective", "sizes", "gpus"))
def value(
    objective: str,
    kappa: Float[Array, "*batch W C"],
    active: Bool[Array, "*#batch W"],
    demand: Float[Array, "*#batch W"],
    weight: Float[Array, "*#batch W"],
    sizes: tuple[int, ...],
    gpus: int,
    limits: tuple[Int[Array, "*#batch W"], Int[Array, "*#batch W"]] | None = None,
) -> Float[Array, "*batch"]:
    """V of the best allocation, in [0, 1], over F = active workloads with demand > 0 (METHOD 1).

    `demand` in requests/s, `weight` counts for the weighted objective only, `limits` are the fewest
    and the most replicas per workload (None: any number, sizes must form a chain); all of them
    broadcast to the batch of `kappa`. 0 when F is empty, else -inf when the fewest replicas need
    more than `gpus`. Raises ValueError for an unknown objective.
    """
    if objective == "max-min" and limits is None:
        return max_min(kappa, active, demand, sizes, gpus)
    table = fulfillment_table(kappa, demand, sizes, gpus, limits)
    return value_of_table(objective, table, active, demand, weight)


def fulfillment_table(
    kappa: Float[Array, "*batch W C"],
    demand: Float[Array, "*#batch W"],
    sizes: tuple[int, ...],
    gpus: int,
    limits: tuple[Int[Array, "*#batch W"], Int[Array, "*#batch W"]] | None = None,
) -> Float[Array, "*batch W {gpus}+1"]:
    """f_w(b) = min(1, capacity / demand): 1 without demand, -inf below the fewest replicas."""
    if limits is None:
        capacity = capacity_table(kappa, sizes, gpus)
    else:
        capacity = limited_capacity_table(kappa, sizes, gpus, *limits)
    demand = jnp.broadcast_to(jnp.asarray(demand, kappa.dtype), kappa.shape[:-1])
    return _fulfillment(capacity, demand)


def value_of_table(
    objective: str,
    fulfillment: Float[Array, "*batch W B"],
    active: Bool[Array, "*#batch W"],
    demand: Float[Array, "*#batch W"],
    weight: Float[Array, "*#batch W"],
) -> Float[Array, "*batch"]:
    """As `value`, from the tables f_w(b); raises ValueError for an unknown objective."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective {objective!r} is unknown; use one of {OBJECTIVES}")
    shape, dtype = fulfillment.shape[:-1], fulfillment.dtype
    demand = jnp.broadcast_to(jnp.asarray(demand, dtype), shape)
    counted = jnp.broadcast_to(active, shape) & (demand > 0)
    if objective == "max-min":
        return max_min_value(fulfillment, counted)
    if objective == "aggregate":
        weight = jnp.ones(shape, dtype)
    share = demand * jnp.broadcast_to(jnp.asarray(weight, dtype), shape)
    total = jnp.sum(jnp.where(counted, share, 0), axis=-1)
    share = share / jnp.where(total > 0, total, 1)[..., None]
    served = jnp.where(
        jnp.isneginf(fulfillment), -jnp.inf, share[..., None] * jnp.maximum(fulfillment, 0)
    )
    return jnp.minimum(additive_value(served, counted), 1)


def chain_of(sizes: tuple[int, ...]) -> list[int]:
    """The distinct sizes, ascending; raises ValueError unless each divides the next."""
    chain = sorted(set(sizes))
    if any(large % small for small, large in pairwise(chain)):
        raise ValueError(f"replica sizes {chain} form no chain: each must divide the next")
    return chain


def _rests(gpus: Array, sizes: tuple[int, ...]) -> list[Array]:
    """What the greedy decomposition leaves for blocks of each size and smaller."""
    chain = chain_of(sizes)
    return [gpus % large for large in chain[1:]] + [gpus]


def _digits(chain: list[int], gpus: int) -> np.ndarray:
    """Number of blocks of each size in the greedy decomposition of b = 0..G: int[K, G+1]."""
    budget = np.arange(gpus + 1)
    below = [budget % large for large in chain[1:]] + [budget]
    return np.stack([rest // size for rest, size in zip(below, chain, strict=True)])


def _shift(table: Array, size: int) -> Array:
    """table(b - size), -inf for b < size."""
    missing = jnp.full((*table.shape[:-1], size), -jnp.inf, table.dtype)
    return jnp.concatenate([missing, table[..., : table.shape[-1] - size]], axis=-1)


def _fulfillment(capacity: Array, demand: Array) -> Array:
    """min(1, capacity / demand), 1 without demand, -inf where the capacity is."""
    needs = (demand > 0)[..., None]
    ratio = capacity / jnp.where(needs, demand[..., None], 1)
    return jnp.where(needs | jnp.isneginf(capacity), jnp.minimum(ratio, 1), 1)


def _max_plus(left: Array, right: Array) -> Array:
    """max over j of left(b - j) + right(j), for every b."""
    entries = left.shape[-1]
    padded = jnp.concatenate([jnp.full_like(left[..., 1:], -jnp.inf), left], axis=-1)

    def widen(j: Array, best: Array) -> Array:
        shifted = jax.lax.dynamic_slice_in_dim(padded, entries - 1 - j, entries, axis=-1)
        return jnp.maximum(best, shifted + jax.lax.dynamic_slice_in_dim(right, j, 1, axis=-1))

    return jax.lax.fori_loop(
        0, entries, widen, jnp.full_like(left, -jnp.inf), unroll=min(8, entries)
    )
