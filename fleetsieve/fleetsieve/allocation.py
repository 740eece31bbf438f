"""The exact allocation of GPUs to workloads, replica by replica (METHOD 1, 3), in NumPy.

Best V first, then leximin of the fulfillments over F, then served requests/s over F, then fewer
GPUs, then more GPUs for the workload listed first. The GPUs of a workload give all the capacity
they can, beyond its demand too; where rows tie, with the most replicas of the config listed first.
F: the active workloads with demand > 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

OBJECTIVES = ("max-min", "aggregate", "weighted")

EQUAL = 1e-9
"""Values of V that differ by no more than this are equal (METHOD section 1)."""
LEVELS = 2.0**31
"""Fulfillments are compared as multiples of 1 / LEVELS, which is below EQUAL / 2.

A power of two, since then no fraction that occurs in practice lies halfway between two levels.
"""
ROUNDING = 1e-13
"""Relative difference of two capacities that only the order of summation explains."""


@dataclass(frozen=True)
class Allocation:
    """Replicas per workload and config, their GPUs, fulfillment per workload and the value V."""

    replicas: Int[np.ndarray, "W C"]
    gpus_used: int
    fulfillment: Float[np.ndarray, " W"]
    value: float


def fulfillment_of(
    replicas: Int[np.ndarray, "W C"], kappa: Float[np.ndarray, "W C"], demand: ArrayLike
) -> Float[np.ndarray, " W"]:
    """f_w = min(1, sum_c n_wc kappa_wc / demand_w), 1 without demand (requests/s)."""
    need = np.asarray(demand, float)
    capacity = np.sum(np.asarray(replicas) * np.asarray(kappa), axis=1)
    return np.where(need > 0, np.minimum(1.0, capacity / np.where(need > 0, need, 1.0)), 1.0)


def value_of(
    replicas: Int[np.ndarray, "W C"],
    kappa: Float[np.ndarray, "W C"],
    *,
    demand: ArrayLike,
    weight: ArrayLike | None = None,
    objective: str = "max-min",
    active: ArrayLike | None = None,
) -> float:
    """V(n; kappa) in [0, 1] over F; 0 when F is empty or, weighted, when its weights are all 0."""
    need, counted = _counted(demand, active)
    if not counted.any():
        return 0.0
    fulfillment = fulfillment_of(replicas, kappa, need)
    share = _shares(need, weight, objective, counted)
    if objective == "max-min":
        return float(fulfillment[counted].min())
    return min(1.0, float(share @ fulfillment))


def allocate(
    kappa: Float[np.ndarray, "W C"],
    *,
    demand: ArrayLike,
    weight: ArrayLike | None = None,
    sizes: Sequence[int],
    gpus: int,
    objective: str = "max-min",
    active: ArrayLike | None = None,
    min_replicas: ArrayLike | None = None,
    max_replicas: ArrayLike | None = None,
) -> Allocation:
    """The best allocation of at most `gpus` GPUs in the order that this module gives.

    `kappa`: requests/s of one replica, >= 0; `demand`: requests/s per workload; `sizes`: GPUs of
    one replica per config; limits: int[W], None for no limit (one workload without: `gpus`).
    A workload outside F, or one that no config serves, gets its min_replicas of the smallest
    config and nothing else. Raises ValueError when the limits cannot be met.

    Exact because leximin and sums keep their order when the same element is added to both sides:
    a dynamic program over workloads whose state is the GPUs spent needs only the best predecessor,
    and of a workload only the numbers of GPUs at which its fulfillment increases.
    """
    kappa = np.asarray(kappa, float)
    need, counted = _counted(demand, active)
    low, high = _limits(len(kappa), sizes, gpus, min_replicas, max_replicas)
    replicas = np.zeros(kappa.shape, int)
    smallest = int(np.argmin(sizes))
    replicas[~counted, smallest] = low[~counted]
    members = np.flatnonzero(counted)
    if members.size:
        spend = gpus - int(replicas.sum()) * sizes[smallest]
        table = _tabulate(kappa[members], sizes, spend, low[members], high[members])
        share = _shares(need, weight, objective, counted)[members]
        for row, held in enumerate(_split(table.capacity, need[members], share)):
            replicas[members[row]] = table.replicas(row, held)
    return Allocation(
        replicas=replicas,
        gpus_used=int(replicas.sum(axis=0) @ np.asarray(sizes)),
        fulfillment=fulfillment_of(replicas, kappa, need),
        value=value_of(
            replicas, kappa, demand=need, weight=weight, objective=objective, active=counted
        ),
    )


def _counted(
    demand: ArrayLike, active: ArrayLike | None
) -> tuple[np.ndarray, Bool[np.ndarray, " W"]]:
    need = np.asarray(demand, float)
    counted = need > 0
    return need, counted if active is None else counted & np.asarray(active, bool)


def _shares(
    need: np.ndarray, weight: ArrayLike | None, objective: str, counted: np.ndarray
) -> Float[np.ndarray, " W"]:
    """What a fulfillment of 1 adds to V, per workload; 0 for max-min, which leximin implies."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective {objective!r} is unknown; use one of {OBJECTIVES}")
    if objective == "max-min":
        return np.zeros(need.shape)
    weights = 1.0 if weight is None or objective == "aggregate" else np.asarray(weight, float)
    share = np.where(counted, need * weights, 0.0)
    return share / (share.sum() or 1.0)


def _limits(
    workloads: int,
    sizes: Sequence[int],
    gpus: int,
    min_replicas: ArrayLike | None,
    max_replicas: ArrayLike | None,
) -> tuple[np.ndarray, np.ndarray]:
    low = np.zeros(workloads, int) if min_replicas is None else np.asarray(min_replicas, int)
    high = np.full(workloads, gpus) if max_replicas is None else np.asarray(max_replicas, int)
    if max_replicas is not None and (low > high).any():
        w = int(np.argmax(low > high))
        raise ValueError(
            f"min_replicas {low[w]} of workload {w} exceeds its max_replicas {high[w]}"
        )
    needed = int(low.sum()) * min(sizes)
    if needed > gpus:
        raise ValueError(
            f"min_replicas ask for {low.sum()} replicas of at least {min(sizes)} GPUs each, "
            f"{needed} GPUs in total, but only {gpus} are there"
        )
    return low, high


@dataclass(frozen=True)
class _Table:
    """The most capacity of each workload within b GPUs, and the choices that attain it.

    With limits the last axis tells apart the number of replicas r, without it has length 1.
    """

    sizes: Sequence[int]
    best: Float[np.ndarray, "B W R"]
    take: Bool[np.ndarray, "C B W R"]
    allowed: Bool[np.ndarray, "W R"]

    @property
    def capacity(self) -> Float[np.ndarray, "W B"]:
        return np.where(self.allowed, self.best, -np.inf).max(axis=2).T

    def replicas(self, w: int, b: int) -> list[int]:
        """Replicas per config that attain capacity[w, b], the most of the config listed first."""
        best = np.where(self.allowed[w], self.best[b, w], -np.inf)
        tied = np.flatnonzero(best >= best.max() * (1 - ROUNDING))
        return max(self._trace(w, b, int(r)) for r in tied)

    def _trace(self, w: int, b: int, r: int) -> list[int]:
        row = [0] * len(self.sizes)
        counted = int(self.allowed.shape[1] > 1)
        for c, size in enumerate(self.sizes):
            while self.take[c, b, w, r]:
                row[c], b, r = row[c] + 1, b - size, r - counted
        return row


def _tabulate(
    kappa: np.ndarray, sizes: Sequence[int], gpus: int, low: np.ndarray, high: np.ndarray
) -> _Table:
    """Unbounded knapsack per workload, from the last config to the first, which so wins ties."""
    most = gpus // min(sizes)
    counted = int(bool((low > 0).any() or (high < most).any()))
    counts = np.arange(most * counted + 1)
    best = np.full((gpus + 1, len(kappa), counts.size), -np.inf)
    best[:, :, 0] = 0.0
    take = np.zeros((len(sizes), *best.shape), bool)
    for c in reversed(range(len(sizes))):
        for b in range(sizes[c], gpus + 1):
            without = best[b, :, counted:]
            one_more = best[b - sizes[c], :, : counts.size - counted] + kappa[:, c, None]
            take[c, b, :, counted:] = one_more >= without * (1 - ROUNDING)
            best[b, :, counted:] = np.where(take[c, b, :, counted:], one_more, without)
    return _Table(sizes, best, take, (low[:, None] <= counts) & (counts <= high[:, None]))


@dataclass(frozen=True)
class _Steps:
    """The numbers of GPUs at which a workload's fulfillment increases, and what they give: [S]."""

    gpus: np.ndarray
    level: np.ndarray
    value: np.ndarray
    served: np.ndarray


def _steps(capacity: np.ndarray, need: float, share: float) -> _Steps:
    level = np.where(capacity >= 0, np.rint(np.clip(capacity / need, 0.0, 1.0) * LEVELS), -1.0)
    before = np.concatenate([[-1.0], np.maximum.accumulate(level)[:-1]])
    gpus = np.flatnonzero(level > before)
    fulfillment = np.minimum(1.0, capacity[gpus] / need)
    return _Steps(gpus, level[gpus], share * fulfillment, need * fulfillment)


@dataclass(frozen=True)
class _Front:
    """The best choice for the k workloads so far within b GPUs: [B], ascending levels [k, B]."""

    value: np.ndarray
    levels: np.ndarray
    served: np.ndarray
    gpus: np.ndarray


def _split(capacity: np.ndarray, need: np.ndarray, share: np.ndarray) -> list[int]:
    """GPUs of each workload in the best split of B - 1 GPUs, from the rows of `capacity` [W, B]."""
    tie = EQUAL / (2 * len(need))
    zero = np.zeros(capacity.shape[1])
    front = _Front(zero, np.empty((0, zero.size)), zero, zero)
    held: list[np.ndarray] = []
    for row, demand, part in zip(capacity, need, share, strict=True):
        front, spent = _extend(front, _steps(row, demand, part), tie, tie * need.sum())
        held.append(spent)
    split, b = [], zero.size - 1
    for spent in reversed(held):
        split.append(int(spent[b]))
        b -= split[-1]
    return split[::-1]


def _extend(
    front: _Front, steps: _Steps, value_tie: float, served_tie: float
) -> tuple[_Front, np.ndarray]:
    """The front with one more workload, and the GPUs that workload gets in it: [B]."""
    source = np.arange(front.value.size) - steps.gpus[:, None]
    fits, source = source >= 0, np.maximum(source, 0)
    value = np.where(fits, front.value[source] + steps.value[:, None], -np.inf)
    levels = _insert(front.levels[:, source], steps.level[:, None])
    served = front.served[source] + steps.served[:, None]
    gpus = front.gpus[source] + steps.gpus[:, None]
    leximin = ((level, 0.0) for level in levels)
    first = _first_best([(value, value_tie), *leximin, (served, served_tie), (-gpus, 0.0)])
    at = (first, np.arange(first.size))
    return _Front(value[at], levels[:, *at], served[at], gpus[at]), steps.gpus[first]


def _insert(levels: np.ndarray, new: np.ndarray) -> np.ndarray:
    """`new` inserted into `levels`, which ascend along the first axis."""
    ends = np.full((1, *levels.shape[1:]), np.inf)
    return np.maximum(
        np.concatenate([-ends, levels]), np.minimum(np.concatenate([levels, ends]), new)
    )


def _first_best(keys: list[tuple[np.ndarray, float]]) -> np.ndarray:
    """Per column, the first row that is lexicographically greatest, each key up to its tie."""
    alive = np.ones(keys[0][0].shape, bool)
    for key, tie in keys:
        alive &= key >= np.where(alive, key, -np.inf).max(axis=0) - tie
    return alive.argmax(axis=0)
