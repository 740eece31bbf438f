"""The reported allocation against brute force, against a MILP and against the kernels."""

import functools
import operator
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import LinearConstraint, milp

from fleetsieve.allocation import OBJECTIVES, Allocation, allocate, fulfillment_of, value_of
from fleetsieve_kernels.allocation import value as kernel_value

FLEETS = [
    ((1, 2, 4, 8), 9, 2),
    ((2, 4), 13, 3),
    ((1, 8), 10, 2),
    ((3, 6, 12), 14, 3),
    ((1, 1, 2), 4, 3),
    ((4, 8), 3, 2),
]
SIZES = (1, 2, 4)
GPUS = (1, 6, 13)


@cache
def replica_matrices(sizes: tuple[int, ...], gpus: int, workloads: int) -> np.ndarray:
    matrices = [np.zeros((0, len(sizes)), int)]
    rows = list(product(*(range(gpus // size + 1) for size in sizes)))
    for _ in range(workloads):
        longer = (np.vstack([m, row]) for m in matrices for row in rows)
        matrices = [m for m in longer if np.sum(m @ np.array(sizes)) <= gpus]
    return np.array(matrices)


def fleet(
    rng: np.random.Generator, sizes, workloads: int, limited: bool, scale: float
) -> dict[str, Any]:
    """A random instance: continuous or, so that ties abound, in halves; some capacities are 0."""
    shape = (workloads, len(sizes))
    kappa = rng.uniform(0, 3, shape) if rng.uniform() < 0.5 else rng.integers(0, 5, shape) / 2
    kappa = kappa * (rng.uniform(size=(workloads, 1)) < 0.9)
    demand = (
        np.round(rng.uniform(0.5, scale, workloads) * 2) / 2 * (rng.uniform(size=workloads) < 0.85)
    )
    low = rng.integers(0, 2, workloads) if limited else None
    return {
        "kappa": kappa,
        "demand": demand,
        "weight": rng.integers(1, 4, workloads).astype(float),
        "sizes": sizes,
        "active": rng.uniform(size=workloads) < 0.8,
        "min_replicas": low,
        "max_replicas": None if low is None else low + rng.integers(0, 4, workloads),
    }


def feasible(matrices, min_replicas, max_replicas) -> np.ndarray:
    if min_replicas is None:
        return matrices
    counts = matrices.sum(axis=2)
    return matrices[((counts >= min_replicas) & (counts <= max_replicas)).all(axis=1)]


def best_of(matrices, objective, kappa, demand, weight, active, sizes) -> tuple:
    """(V, ascending fulfillments, served, GPUs) of the best matrix, by filtering key after key."""
    counted = active & (demand > 0)
    served = np.minimum(demand, np.einsum("mwc,wc->mw", matrices, kappa))[:, counted]
    demand = demand[counted]
    fulfillment = np.sort(served / demand, axis=1)
    weight = weight[counted] if objective == "weighted" else np.ones_like(demand)
    if not counted.any():
        value = np.zeros(len(matrices))
    elif objective == "max-min":
        value = fulfillment[:, 0]
    else:
        value = served @ weight / (demand @ weight)
    keys = [value, *fulfillment.T, served.sum(axis=1), -(matrices.sum(axis=1) @ np.array(sizes))]
    left = np.arange(len(matrices))
    for key in keys:
        left = left[key[left] >= key[left].max() - 1e-9]
    best = left[0]
    return value[best], fulfillment[best], served[best].sum(), -keys[-1][best]


def key_of(found: Allocation, kappa, demand, active) -> tuple:
    counted = active & (demand > 0)
    served = np.minimum(demand, (found.replicas * kappa).sum(axis=1))[counted].sum()
    return found.value, np.sort(found.fulfillment[counted]), served, found.gpus_used


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("sizes", "gpus", "workloads"), FLEETS)
def test_value_then_leximin_then_served_then_gpus_are_the_best(
    sizes, gpus, workloads, objective, limited
):
    rng = np.random.default_rng([gpus, workloads, limited])
    for _ in range(12):
        given_fleet = fleet(rng, sizes, workloads, limited, 12.0)
        limits = given_fleet["min_replicas"], given_fleet["max_replicas"]
        matrices = feasible(replica_matrices(sizes, gpus, workloads), *limits)
        if not len(matrices):
            with pytest.raises(ValueError, match="min_replicas ask for"):
                allocate(**given_fleet, gpus=gpus, objective=objective)
            continue
        found = allocate(**given_fleet, gpus=gpus, objective=objective)
        kappa, demand, weight, active = (
            given_fleet[k] for k in ("kappa", "demand", "weight", "active")
        )
        oracle = best_of(matrices, objective, kappa, demand, weight, active, sizes)
        for mine, best in zip(key_of(found, kappa, demand, active), oracle, strict=True):
            np.testing.assert_allclose(mine, best, rtol=0, atol=2e-9)
        assert any((found.replicas == m).all() for m in matrices)


def milp_value(
    objective, kappa, demand, weight, active, sizes, gpus, min_replicas, max_replicas
) -> float:
    """V by HiGHS over integer replicas n [W, C], fulfillments f [W] and their least t."""
    workloads, configs = kappa.shape
    counted = active & (demand > 0)
    if not counted.any():
        return 0.0
    integers = workloads * configs
    count = np.kron(np.eye(workloads), np.ones(configs))
    none, eye = np.zeros((workloads, 1)), np.eye(workloads)
    share = np.where(counted, demand * (weight if objective == "weighted" else 1), 0)
    gain = [*(0 * share), 1] if objective == "max-min" else [*(share / share.sum()), 0]
    limits = (0, gpus) if min_replicas is None else (min_replicas, max_replicas)
    least = np.hstack([np.zeros((workloads, integers)), eye, none - 1])[counted]
    solution = milp(
        -np.concatenate([np.zeros(integers), gain]),
        integrality=np.arange(integers + workloads + 1) < integers,
        constraints=[
            LinearConstraint([*sizes * workloads, *none.ravel(), 0], 0, gpus),
            LinearConstraint(np.hstack([count, 0 * eye, none]), *limits),
            LinearConstraint(np.hstack([count * kappa.ravel(), -np.diag(demand), none]), 0, np.inf),
            LinearConstraint(least, 0, np.inf),
            LinearConstraint(np.eye(integers + workloads + 1)[integers:], 0, 1),
        ],
        options={"mip_rel_gap": 0},
    )
    assert solution.success, solution.message
    return -solution.fun


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_value_is_the_optimum_of_a_mixed_integer_program(objective, limited):
    rng = np.random.default_rng([7, limited])
    for _ in range(30):
        gpus = int(rng.integers(10, 33))
        given_fleet = fleet(rng, (1, 2, 4, 8), int(rng.integers(3, 7)), limited, gpus / 3)
        found = allocate(**given_fleet, gpus=gpus, objective=objective)
        oracle = milp_value(objective, **given_fleet, gpus=gpus)
        assert found.value == pytest.approx(oracle, abs=1e-6)


fleets = st.fixed_dictionaries(
    {
        "kappa": arrays(float, (3, 3), elements=st.floats(0, 4) | st.sampled_from([0.0, 1.0, 2.0])),
        "demand": arrays(float, 3, elements=st.floats(0.1, 15) | st.sampled_from([0.0, 3.0])),
        "weight": arrays(float, 3, elements=st.floats(0.1, 4)),
        "active": arrays(bool, 3),
    }
)
gpu_counts, objectives = st.sampled_from(GPUS), st.sampled_from(OBJECTIVES)
few = settings(max_examples=60, deadline=None)


@few
@given(fleets, gpu_counts, objectives, arrays(int, 3, elements=st.integers(0, 5)))
def test_budget_and_limits_hold(given_fleet, gpus, objective, most):
    found = allocate(**given_fleet, sizes=SIZES, gpus=gpus, objective=objective, max_replicas=most)
    assert found.gpus_used == np.sum(found.replicas @ np.array(SIZES)) <= gpus
    assert (found.replicas >= 0).all()
    assert (found.replicas.sum(axis=1) <= most).all()


@few
@given(fleets, gpu_counts, objectives, arrays(float, (3, 3), elements=st.floats(0, 2)))
def test_value_never_falls_with_capacity(given_fleet, gpus, objective, more):
    common = {"sizes": SIZES, "gpus": gpus, "objective": objective}
    raised = given_fleet | {"kappa": given_fleet["kappa"] + more}
    assert allocate(**raised, **common).value >= allocate(**given_fleet, **common).value - 1e-9


@few
@given(fleets, gpu_counts, objectives, st.integers(1, 5))
def test_value_never_falls_with_gpus(given_fleet, gpus, objective, more):
    common = {"sizes": SIZES, "objective": objective}
    smaller = allocate(**given_fleet, **common, gpus=gpus)
    assert allocate(**given_fleet, **common, gpus=gpus + more).value >= smaller.value - 1e-9


@few
@given(fleets, gpu_counts, objectives)
def test_the_kernel_gives_the_same_value(given_fleet, gpus, objective):
    host = allocate(**given_fleet, sizes=SIZES, gpus=gpus, objective=objective).value
    with jax.enable_x64(True):
        inputs = {name: jnp.asarray(array) for name, array in given_fleet.items()}
        kernel = float(kernel_value(objective, **inputs, sizes=SIZES, gpus=gpus))
    assert host == pytest.approx(kernel, abs=1e-9)


@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
@pytest.mark.parametrize("sizes", [(1, 1, 2), (1, 2, 4), (4, 2, 1)])
def test_of_equal_rows_the_config_listed_first_has_the_most_replicas(sizes, limited):
    gpus, kappa = 7, np.array([sizes], float)
    most = 4 if limited else gpus
    rows = feasible(replica_matrices(sizes, gpus, 1), np.array([0]), np.array([most]))[:, 0]
    served = np.minimum(6.0, rows @ kappa[0])
    spent = rows @ np.array(sizes)
    rows = rows[served == served.max()]
    rows = rows[spent[served == served.max()] == spent[served == served.max()].min()]
    found = allocate(kappa, demand=[6.0], sizes=sizes, gpus=gpus, max_replicas=[most])
    assert found.replicas.tolist() == [list(max(map(tuple, rows)))]


def test_equal_gpus_give_the_more_capacity_even_beyond_the_demand():
    found = allocate(np.array([[2.0, 3.0]]), demand=[2.0], sizes=[1, 1], gpus=4)
    assert found.replicas.tolist() == [[0, 1]]


def test_equal_workloads_share_an_odd_gpu_in_favour_of_the_first():
    found = allocate(np.ones((2, 1)), demand=[9.0, 9.0], sizes=[1], gpus=3)
    assert found.replicas.tolist() == [[2], [1]]


def test_of_equal_fulfillments_the_one_that_serves_more_requests_is_chosen():
    found = allocate(np.array([[1.0], [5.0]]), demand=[2.0, 10.0], sizes=[1], gpus=1)
    assert found.replicas.tolist() == [[0], [1]]


def test_of_equal_fulfillments_and_requests_the_one_that_takes_fewer_gpus_is_chosen():
    kappa = np.array([[0.0, 1.0], [1.0, 0.0]])
    found = allocate(kappa, demand=[2.0, 2.0], sizes=[1, 2], gpus=2, max_replicas=[1, 1])
    assert found.replicas.tolist() == [[0, 0], [1, 0]]


def test_capacities_that_differ_by_rounding_count_as_equal():
    assert functools.reduce(operator.add, [0.1] * 10) < 1.0
    found = allocate(np.array([[0.1, 1.0]]), demand=[1.0], sizes=[1, 10], gpus=10)
    assert found.replicas.tolist() == [[10, 0]]


def test_fulfillments_that_differ_by_rounding_count_as_equal():
    assert (0.1 + 0.1 + 0.1) / 0.6 > 3.0 / 6.0
    found = allocate(np.array([[0.1, 0.0], [0.0, 3.0]]), demand=[0.6, 6.0], sizes=[1, 3], gpus=3)
    assert found.replicas.tolist() == [[0, 0], [0, 1]]


def test_a_workload_that_is_not_served_holds_only_its_minimum_of_the_smallest_config():
    found = allocate(
        np.array([[1.0, 9.0], [0.0, 0.0], [1.0, 3.0], [5.0, 5.0]]),
        demand=[4.0, 4.0, 6.0, 0.0],
        sizes=[1, 2],
        gpus=9,
        active=[False, True, True, True],
        min_replicas=[2, 1, 0, 1],
    )
    assert found.replicas.tolist() == [[2, 0], [1, 0], [0, 2], [1, 0]]
    assert found.value == 0
    assert found.fulfillment.tolist() == [0.5, 0, 1, 1]


def test_an_empty_fleet_of_counted_workloads_is_worth_nothing_and_takes_nothing():
    found = allocate(np.ones((2, 1)), demand=[0.0, 3.0], sizes=[1], gpus=4, active=[True, False])
    assert (found.value, found.gpus_used) == (0.0, 0)


def test_value_and_fulfillment_follow_the_definition():
    replicas, kappa = (
        np.array([[2, 0], [0, 1], [1, 0]]),
        np.array([[1.0, 5.0], [1.0, 3.0], [9.0, 9.0]]),
    )
    demand, weight = [4.0, 4.0, 3.0], [1.0, 3.0, 1.0]
    assert fulfillment_of(replicas, kappa, demand).tolist() == [0.5, 0.75, 1.0]
    common = {"demand": demand, "weight": weight, "active": [True, True, False]}
    values = [value_of(replicas, kappa, **common, objective=objective) for objective in OBJECTIVES]
    assert values == pytest.approx([0.5, 5 / 8, (2 + 3 * 3) / (4 + 3 * 4)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"min_replicas": [2, 1]},
            "ask for 3 replicas of at least 2 GPUs each, 6 GPUs in total, but only 5",
        ),
        (
            {"min_replicas": [0, 2], "max_replicas": [1, 1]},
            "min_replicas 2 of workload 1 exceeds its max_replicas 1",
        ),
        ({"objective": "mean"}, "objective 'mean' is unknown"),
    ],
)
def test_what_cannot_be_met_is_refused_with_its_numbers(changes, message):
    with pytest.raises(ValueError, match=message):
        allocate(np.ones((2, 1)), demand=[1.0, 1.0], sizes=[2], gpus=5, **changes)
