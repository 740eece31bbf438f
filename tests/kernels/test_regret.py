"""Regret under joint draws against NumPy's conditioning, loops over levels, and brute force."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import numpy as np
import pytest

from fleetsieve_kernels.acquisition import Fleet, Needs
from fleetsieve_kernels.bounds import Known, Levels
from fleetsieve_kernels.regret import regrets

SHAPE, SIZES, GPUS, DRAWS = (2, 2, 2), (1, 2), 4, 12

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def fleet(reference):
    """Two outputs of eight cells, three of them measured; the last one holds above an open one."""
    rng = np.random.default_rng(9)
    theta = reference.draw_theta(rng, 2, 2, 0, 0.3)
    cells = reference.draw_cells(rng, SHAPE, 2, 0)
    index = np.array([0, 2, 7])
    value = np.zeros((8, 2))
    value[index] = [[0.1, -0.3], [0.2, 0.4], [0.5, -0.1]]
    measured = np.isin(np.arange(8), index)
    known = Known(value, np.stack(2 * [measured], axis=1), measured, np.zeros(8, bool))
    levels = Levels(np.ones(8, bool), np.ones((8, 1), bool), np.tile([1.0, 2.0], 4), np.zeros(8))
    return theta, cells, index, known, levels


def by_hand(reference, fleet, objective, needs, replicas, nodes, white):
    theta, cells, index, known, _ = fleet
    hyper = reference.constrained(theta)
    at = (np.repeat(index, 2), np.tile([0, 1], 3))
    joint = reference.prior(hyper, cells)
    mean, covariance = reference.conditioned(joint, *at, known.value[at], np.zeros(6))
    root = np.linalg.cholesky(covariance.reshape(16, 16) + 1e-8 * np.eye(16))
    spread = reference.slack(hyper, cells)[6, 0]
    lost = []
    for node, own in zip(nodes, white, strict=True):
        y = np.where(known.exact, known.value, mean + (root @ node).reshape(8, 2))
        if y[7, 1] <= 0:  # cell 6 is below a measured cell that holds
            y[6, 1] = min(y[6, 1], y[7, 1] + spread * own[6, 0])
        kappa = np.zeros(SHAPE[:2])
        for w, c in np.ndindex(kappa.shape):
            for level, cell in enumerate(np.arange(8).reshape(SHAPE)[w, c]):
                if y[cell, 1] > 0:
                    break
                kappa[w, c] = max(kappa[w, c], np.exp(y[cell, 0]) * (1 + level))
        active = kappa.max(axis=1) > 0
        rest = (needs.demand, needs.weight, SIZES, GPUS)
        best = reference.best_value(objective, kappa, active, *rest)
        met = np.minimum(1, (replicas * kappa).sum(axis=1) / needs.demand)
        pull = np.where(active, needs.demand * (needs.weight if objective == "weighted" else 1), 0)
        own_value = met[active].min() if objective == "max-min" else pull @ met / pull.sum()
        lost.append(best - own_value if active.any() else 0.0)
    return lost


@pytest.mark.parametrize("objective", ["max-min", "aggregate", "weighted"])
def test_regret_is_what_the_best_allocation_of_each_draw_gives_more(reference, fleet, objective):
    theta, cells, index, known, levels = fleet
    rng = np.random.default_rng(9)
    nodes, white = rng.standard_normal((DRAWS, 16)), rng.standard_normal((DRAWS, 8, 1))
    needs = Needs(np.array([4.0, 3.0]), np.array([1.0, 2.0]), np.zeros(2, int), np.full(2, GPUS))
    replicas = np.array([[2, 0], [0, 1]])
    facts = Fleet(objective, SIZES, GPUS, SHAPE)
    data = reference.as_table(cells, index, known.value[index], 8)
    found = regrets(theta, data, cells, known, levels, needs, replicas, nodes, white, facts)
    oracle = by_hand(reference, fleet, objective, needs, replicas, nodes, white)
    np.testing.assert_allclose(found, oracle, atol=1e-6)
    assert np.ptp(oracle) > 0.1


def test_a_factorisation_that_breaks_down_certifies_nothing(reference, fleet):
    theta, cells, index, known, levels = fleet
    broken = {**theta, "amplitude": np.full(2, np.nan)}
    needs = Needs(np.ones(2), np.ones(2), np.zeros(2, int), np.full(2, GPUS))
    data = reference.as_table(cells, index, known.value[index], 8)
    facts = Fleet("max-min", SIZES, GPUS, SHAPE)
    draws = (np.zeros((DRAWS, 16)), np.zeros((DRAWS, 8, 1)))
    none = np.zeros((2, 2), int)
    found = regrets(broken, data, cells, known, levels, needs, none, *draws, facts)
    assert np.isinf(found).all()
