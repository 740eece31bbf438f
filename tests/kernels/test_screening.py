"""What cells do to their own columns, against refits that change one column alone."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false, reportCallIssue=false

import numpy as np
import pytest
from tests.kernels.test_acquisition import (
    ABSENT,
    CELLS,
    FAILED,
    MEASURED,
    SHAPE,
    SIZES,
    Decision,
    Q,
)

from fleetsieve_kernels.bounds import Known
from fleetsieve_kernels.hyper import constrain
from fleetsieve_kernels.posterior import condition, within
from fleetsieve_kernels.screening import own_gains

pytestmark = pytest.mark.usefixtures("float64")
COLUMNS = np.arange(CELLS).reshape(-1, SHAPE[2])


def found_by(decision):
    posterior = condition(constrain(decision.theta), decision.data, decision.cells)
    return own_gains(
        *(decision.theta, decision.inflation, np.asarray(Q), posterior[:2]),
        *(within(posterior, COLUMNS), decision.noise, decision.nodes, decision.cells),
        *(decision.known, decision.levels, decision.needs, decision.fleet),
    )


def loops(decision, index):
    """Distance and range of capacity per GPU, once `index` is told: its own column alone moves."""
    w, c, _ = np.unravel_index(index, SHAPE)
    before = decision.capacities(decision.refit(), decision.known)
    target = 0.98 * decision.values(before)[1]
    best = (before[1][w] / np.array(SIZES)).max()
    mean, covariance = decision.refit()
    predictive = covariance[index, :, index] + np.diag(decision.noise[index])
    here = np.arange(CELLS) == index
    distance, span = decision.distance(before, target), before[1][w, c] - before[0][w, c]
    for node in decision.nodes:
        values = mean[index] + np.linalg.cholesky(predictive) @ node
        then = Known(
            np.where(here[:, None], values, decision.known.value),
            decision.known.exact | (here[:, None] & (decision.noise[index] == 0)),
            decision.known.measured | here,
            decision.known.broken,
        )
        after = decision.capacities(decision.refit(index, values), then)
        mixed = before.copy()
        mixed[:, w, c] = after[:, w, c]
        distance -= decision.distance(mixed, target) / len(decision.nodes)
        span -= (after[1][w, c] - after[0][w, c]) / len(decision.nodes)
    return distance, span / SIZES[c] / best if best > 0 else 0.0


@pytest.mark.parametrize("objective", ["max-min", "aggregate"])
def test_own_gains_are_those_of_refits_that_move_one_column(reference, objective):
    moved = 0
    for seed in range(4):
        decision = Decision(reference, objective, seed)
        found = found_by(decision)
        for index in sorted(set(range(CELLS)) - {ABSENT, FAILED, *MEASURED}):
            distance, span = loops(decision, index)
            assert found.distance[index] == pytest.approx(distance, abs=1e-6)
            assert found.span[index] == pytest.approx(span, abs=1e-6)
            moved += abs(distance) > 1e-3 or abs(span) > 1e-3
    assert moved
