"""The allocation kernels against brute force over replica matrices and over splits of the GPUs."""

from collections.abc import Iterator
from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fleetsieve_kernels import allocation
from fleetsieve_kernels.allocation import (
    additive_value,
    block_values,
    capacity_table,
    fewest_gpus,
    fulfillment_table,
    limited_capacity_table,
    max_min_value,
    value,
)

CHAINS = [(1, 2, 4, 8), (2, 4), (1, 8), (3, 6, 12), (1, 1, 2), (4, 1, 2)]
FLEETS = [
    ((1, 2, 4, 8), 9, 2),
    ((3, 6, 12), 14, 3),
    ((1, 1, 2), 4, 3),
    ((4, 8), 3, 2),
]
BATCH = 16


@pytest.fixture(autouse=True)
def strict_float64() -> Iterator[None]:
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        yield


@cache
def replica_rows(sizes: tuple[int, ...], gpus: int) -> np.ndarray:
    rows = product(*(range(gpus // size + 1) for size in sizes))
    return np.array([row for row in rows if np.dot(row, sizes) <= gpus])


@cache
def replica_matrices(sizes: tuple[int, ...], gpus: int, workloads: int) -> np.ndarray:
    matrices = [np.zeros((0, len(sizes)), int)]
    for _ in range(workloads):
        longer = (np.vstack([m, row]) for m in matrices for row in replica_rows(sizes, gpus))
        matrices = [m for m in longer if np.sum(m @ np.array(sizes)) <= gpus]
    return np.array(matrices)


def capacities(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Continuous for one half of the batch, small integers that tie often for the other."""
    ties = rng.integers(0, 4, shape).astype(float)
    return np.where(
        np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)) % 2, ties, rng.uniform(0, 3, shape)
    )


def best_capacity(kappa, sizes, gpus, low=0, high=10**6) -> list[float]:
    rows = replica_rows(sizes, gpus)
    rows = rows[(rows.sum(axis=1) >= low) & (rows.sum(axis=1) <= high)]
    spent = rows @ np.array(sizes)
    return [np.max((rows @ kappa)[spent <= b], initial=-np.inf) for b in range(gpus + 1)]


def best_value(objective, sizes, gpus, kappa, active, demand, weight, low, high) -> float:
    matrices = replica_matrices(sizes, gpus, len(kappa))
    counts = matrices.sum(axis=2)
    matrices = matrices[((counts >= low) & (counts <= high)).all(axis=1)]
    counted = active & (demand > 0)
    if not counted.any():
        return 0.0
    served = np.minimum(demand, np.einsum("mwc,wc->mw", matrices, kappa))[:, counted]
    demand, weight = demand[counted], weight[counted]
    if objective == "max-min":
        return np.max((served / demand).min(axis=1), initial=-np.inf)
    weight = weight if objective == "weighted" else np.ones_like(weight)
    return np.max(served @ weight / (demand @ weight), initial=-np.inf)


def tables(rng: np.random.Generator, workloads: int, entries: int) -> np.ndarray:
    """Nondecreasing tables with plateaus, some of which start with -inf."""
    table = np.sort(np.round(rng.uniform(0, 1, (BATCH, workloads, entries)), 1), axis=-1)
    needed = rng.integers(0, 3, (BATCH, workloads, 1)) * rng.integers(0, 2, (BATCH, workloads, 1))
    return np.where(np.arange(entries) < needed, -np.inf, table)


def splits(workloads: int, gpus: int) -> np.ndarray:
    return np.array([s for s in product(range(gpus + 1), repeat=workloads) if sum(s) <= gpus])


@pytest.mark.parametrize("sizes", CHAINS)
def test_capacity_table_is_the_best_of_all_replica_counts(sizes):
    kappa = capacities(np.random.default_rng(1), (BATCH, len(sizes)))
    table = capacity_table(jnp.asarray(kappa), sizes, 15)
    np.testing.assert_allclose(table, [best_capacity(k, sizes, 15) for k in kappa], rtol=1e-12)


@pytest.mark.parametrize("sizes", [*CHAINS, (2, 3)])
def test_limited_capacity_table_is_the_best_within_the_limits(sizes):
    rng = np.random.default_rng(2)
    kappa = capacities(rng, (2 * BATCH, len(sizes)))
    low = rng.integers(0, 4, len(kappa))
    high = low + rng.integers(0, 6, len(kappa))
    table = limited_capacity_table(
        jnp.asarray(kappa), sizes, 11, jnp.asarray(low), jnp.asarray(high)
    )
    limits = zip(kappa, low, high, strict=True)
    oracle = [best_capacity(k, sizes, 11, least, most) for k, least, most in limits]
    np.testing.assert_allclose(table, oracle, rtol=1e-12)


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
@pytest.mark.parametrize("objective", ["max-min", "aggregate", "weighted"])
@pytest.mark.parametrize(("sizes", "gpus", "workloads"), FLEETS)
def test_value_is_the_best_of_all_replica_matrices(sizes, gpus, workloads, objective, limited):
    rng = np.random.default_rng([gpus, workloads, limited])
    shape = (BATCH, workloads)
    kappa = capacities(rng, (*shape, len(sizes)))
    active = rng.uniform(size=shape) < 0.75
    demand = np.where(rng.uniform(size=shape) < 0.15, 0.0, rng.uniform(1, 12, shape))
    weight = rng.uniform(0.5, 3, shape)
    low = rng.integers(0, 3, shape) if limited else np.zeros(shape, int)
    high = low + rng.integers(0, 4, shape) if limited else np.full(shape, gpus)
    limits = (jnp.asarray(low), jnp.asarray(high)) if limited else None
    found = value(
        objective,
        jnp.asarray(kappa),
        jnp.asarray(active),
        jnp.asarray(demand),
        jnp.asarray(weight),
        sizes,
        gpus,
        limits,
    )
    instances = zip(kappa, active, demand, weight, low, high, strict=True)
    oracle = [best_value(objective, sizes, gpus, *instance) for instance in instances]
    np.testing.assert_allclose(found, oracle, rtol=0, atol=1e-12)


def test_max_min_value_is_the_entry_of_the_best_split():
    rng = np.random.default_rng(3)
    table, active = tables(rng, 4, 7), rng.uniform(size=(BATCH, 4)) < 0.8
    attained = table[:, np.arange(4), splits(4, 6)]
    feasible = np.isfinite(attained).all(axis=-1)
    least = np.where(active[:, None], attained, np.inf).min(axis=-1)
    oracle = np.where(feasible, least, -np.inf).max(axis=-1)
    found = max_min_value(jnp.asarray(table), jnp.asarray(active))
    np.testing.assert_array_equal(found, np.where(active.any(axis=-1), oracle, 0))


def test_additive_value_is_the_sum_of_the_best_split():
    rng = np.random.default_rng(4)
    table, active = tables(rng, 4, 7), rng.uniform(size=(BATCH, 4)) < 0.8
    attained = table[:, np.arange(4), splits(4, 6)]
    feasible = np.isfinite(attained).all(axis=-1)
    total = np.where(active[:, None], attained, 0).sum(axis=-1)
    oracle = np.where(feasible, total, -np.inf).max(axis=-1)
    found = additive_value(jnp.asarray(table), jnp.asarray(active))
    np.testing.assert_allclose(found, np.where(active.any(axis=-1), oracle, 0), atol=1e-12)


@pytest.mark.parametrize("objective", ["max-min", "aggregate", "weighted"])
def test_no_active_workload_is_worth_nothing(objective):
    found = value(
        objective, jnp.ones((2, 1)), jnp.zeros(2, bool), jnp.ones(2), jnp.ones(2), (1,), 4
    )
    assert found == 0


@pytest.mark.parametrize("objective", ["max-min", "aggregate", "weighted"])
def test_vmap_gives_what_broadcasting_gives(objective):
    kappa = jnp.asarray(capacities(np.random.default_rng(5), (BATCH, 2, 3)))
    rest = (jnp.array([True, True]), jnp.array([4.0, 7.0]), jnp.array([1.0, 2.0]))
    limits = (jnp.array([1, 0]), jnp.array([3, 6]))

    def one(k: jax.Array) -> jax.Array:
        return value(objective, k, *rest, (1, 2, 4), 6, limits)

    np.testing.assert_array_equal(jax.vmap(one)(kappa), one(kappa))


@pytest.mark.parametrize("objective", ["max-min", "aggregate", "weighted"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_value_keeps_the_dtype_of_the_capacities(objective, dtype):
    rest = (jnp.array([True, True]), jnp.array([4.0, 7.0]), jnp.array([1.0, 2.0]))
    found = value(objective, jnp.ones((2, 2), dtype), *rest, (1, 2), 5)
    assert found.dtype == dtype


@pytest.mark.parametrize("sizes", CHAINS, ids=str)
def test_the_fewest_gpus_are_the_first_entry_of_the_table_that_reaches_the_need(sizes):
    rng, gpus = np.random.default_rng(0), 19
    kappa = capacities(rng, (BATCH, len(sizes)))
    kappa[::5] *= rng.random(kappa[::5].shape) < 0.5  # some configs, or all, can do nothing
    need = rng.uniform(-1, 40, BATCH)
    found = fewest_gpus(block_values(jnp.asarray(kappa), sizes), jnp.asarray(need), sizes, gpus)
    tables = [best_capacity(row, sizes, gpus) for row in kappa]
    first = [
        next((b for b, entry in enumerate(table) if entry >= least), gpus + 1)
        for table, least in zip(tables, need, strict=True)
    ]
    np.testing.assert_array_equal(found, first)


def test_max_min_agrees_with_its_tables_on_many_gpus():
    rng, sizes, gpus = np.random.default_rng(1), (1, 2, 4, 8), 500
    kappa, demand = jnp.asarray(capacities(rng, (64, 6, 4))), jnp.asarray(rng.uniform(0, 900, 6))
    active = jnp.max(kappa, axis=-1) > 0
    split = max_min_value(fulfillment_table(kappa, demand, sizes, gpus), active)
    found = value("max-min", kappa, active, demand, demand, sizes, gpus)
    np.testing.assert_allclose(found, split, rtol=1e-12)


def test_new_numbers_do_not_trace_again(monkeypatch):
    traces = []
    chain = allocation.chain_of
    monkeypatch.setattr(allocation, "chain_of", lambda sizes: traces.append(sizes) or chain(sizes))
    capacity_table(jnp.full((7, 3), 1.0), (1, 2, 4), 17)
    first = len(traces)
    for scale in (2.0, 3.0):
        capacity_table(jnp.full((7, 3), scale), (1, 2, 4), 17)
    assert len(traces) == first > 0


def test_sizes_without_a_chain_are_refused():
    with pytest.raises(ValueError, match=r"\[2, 3\] form no chain"):
        capacity_table(jnp.ones(2), (2, 3), 6)


def test_an_unknown_objective_is_refused():
    with pytest.raises(ValueError, match="'mean' is unknown"):
        value("mean", jnp.ones((1, 1)), jnp.ones(1, bool), jnp.ones(1), jnp.ones(1), (1,), 1)
