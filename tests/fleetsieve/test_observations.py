"""Outcomes as the model sees them, against their definition in plain NumPy."""

import math

import numpy as np
import pytest

from fleetsieve.belief import Belief
from fleetsieve.cell import Cell
from fleetsieve.fleet import Fleet
from fleetsieve.observations import Observations, throughput_scale, units
from fleetsieve.problem import Problem
from fleetsieve.recommendation import feasible_prefix
from fleetsieve.runs import Runs
from fleetsieve_measure import Failed, Measured

FLEET = """\
fleet: {gpus: 4}
configs: [{name: x, gpus: 1}, {name: y, gpus: 2}]
workloads:
  - {name: a, demand: 2, slo: {e2e_p99: 30, ttft_p99: 1}, loads: [1, 2, 4]}
  - {name: b, demand: 1, slo: {e2e_p99: 10}, loads: [8, 16], arrivals: {concurrency: true}}
"""
NOTHING = Failed(kind="oom", gpu_seconds=1.0)


@pytest.fixture(scope="module")
def problem():
    return Problem.build(Fleet.parse(FLEET), None)


def cell(workload="a", config="x", load=1.0):
    return Cell(workload, config, load, "rate" if workload == "a" else "concurrency")


def ok(throughput=0.9, e2e: float | None = 15.0, ttft=0.5, se=None, saturated=False):
    values = {"throughput": throughput, "e2e_p99": e2e, "ttft_p99": ttft}
    given = {name: value for name, value in values.items() if value is not None}
    return Measured(values=given, se=se or {}, gpu_seconds=1.0, saturated=saturated)


def observe(problem, *outcomes, **of):
    """Observations of consecutive levels of a column, and the flat indices of its levels."""
    loads = (1.0, 2.0, 4.0) if of.get("workload", "a") == "a" else (8.0, 16.0)
    cells = [cell(**of, load=load) for load in loads]
    told = {c: outcome for c, outcome in zip(cells, outcomes, strict=False) if outcome}
    at = {c: int(np.ravel_multi_index(problem.index(c), problem.exists.shape)) for c in cells}
    found = Observations.of(problem, Runs.of(problem, [(at[c], told[c]) for c in told]))
    return found, list(at.values())


def soft(ratio):
    """A latency's log ratio to its SLO, k asinh(x / k) with k = 0.5."""
    return 0.5 * math.asinh(math.log(ratio) / 0.5)


def test_values_are_logs_relative_to_the_rate_and_the_slo(problem):
    found, (at, unknown, _) = observe(problem, ok())
    np.testing.assert_allclose(found.value[at], [math.log(0.9), soft(0.5), soft(0.5)])
    assert found.exact[at].all()
    assert not found.seen[unknown].any()
    assert not found.value[unknown].any()
    assert (found.n_measured, found.measured.sum(), found.broken.sum()) == (1, 1, 0)


def test_under_concurrency_throughput_is_absolute(problem):
    found, (_, at) = observe(problem, None, ok(throughput=3.0, e2e=20.0), workload="b")
    np.testing.assert_allclose(found.value[at, :2], [math.log(3.0), soft(2.0)])
    scale = throughput_scale(problem).reshape(problem.exists.shape)
    np.testing.assert_array_equal(scale[0, 0], [1, 2, 4])
    np.testing.assert_array_equal(scale[1], 1.0)


def test_units_of_a_metric_without_slo_are_the_others(problem):
    per_cell = units(problem).reshape(*problem.exists.shape, 3)
    np.testing.assert_allclose(per_cell[0, :, :, 1:], np.broadcast_to([30.0, 1.0], (2, 3, 2)))
    np.testing.assert_allclose(per_cell[1, :, :, 1:], np.broadcast_to([10.0, 1.0], (2, 3, 2)))


def test_noise_is_the_relative_variance_times_the_squared_slope(problem):
    found, (at, *_) = observe(problem, ok(se={"e2e_p99": 1.5, "throughput": 0.09}))
    slope = (soft(0.5 * 1.0001) - soft(0.5 / 1.0001)) / (2 * math.log(1.0001))
    np.testing.assert_allclose(found.noise[at], [0.01, 0.01 * slope**2, 0], rtol=1e-5)
    np.testing.assert_array_equal(found.exact[at], [False, False, True])


def test_infinite_and_zero_values_are_decisive_but_not_modelled(problem):
    found, (at, *_) = observe(problem, ok(e2e=math.inf, ttft=0.0))
    assert np.isfinite(found.value).all()
    np.testing.assert_array_equal(found.modelled[at], [True, False, False])
    assert found.exact[at].all()
    assert found.value[at, 1] > 0 > found.value[at, 2]


def test_a_standard_error_without_bound_leaves_its_value_unknown(problem):
    found, (at, *_) = observe(problem, ok(se={"e2e_p99": math.inf}))
    np.testing.assert_array_equal(found.seen[at], [True, False, True])
    assert np.isfinite(found.noise).all()


@pytest.mark.parametrize(
    ("outcome", "measured"),
    [(NOTHING, False), (ok(saturated=True), True), (ok(throughput=0.0), True)],
)
def test_failed_saturated_and_idle_cells_are_broken(problem, outcome, measured):
    found, (at, *_) = observe(problem, outcome)
    assert (found.broken[at], found.measured[at], found.n_measured) == (True, measured, 1)


BREAKS = {
    "at the SLO": (ok(e2e=30.0, ttft=1.0), False),
    "over one SLO": (ok(ttft=1.0001), True),
    "infinite": (ok(e2e=math.inf), True),
    "noisy": (ok(e2e=90.0, se={"e2e_p99": 1.0}), False),
    "missing": (ok(e2e=None), False),
    "failed": (NOTHING, True),
    "saturated": (ok(saturated=True), True),
}


@pytest.mark.parametrize("case", BREAKS)
def test_a_cell_breaks_when_that_is_certain(problem, case):
    outcome, breaks = BREAKS[case]
    found, (at, *_) = observe(problem, outcome)
    assert Belief(problem, confidence=0.95).breaks(found)[at] == breaks


def test_only_the_slos_of_a_workload_count(problem):
    found, (at, _) = observe(problem, ok(e2e=9.0, ttft=99.0), workload="b")
    assert not Belief(problem, confidence=0.95).breaks(found)[at]


def test_bounds_are_for_what_is_still_open(problem):
    """Cells that exist, below a break, times throughput and the workload's own metrics."""
    belief = Belief(problem, confidence=0.95)
    nothing, _ = observe(problem)
    assert belief.uncertain(nothing) == 2 * 3 * 3 + 2 * 2 * 2
    found, _ = observe(problem, ok(), NOTHING)
    assert belief.uncertain(found) == 1 * 3 * 3 + 2 * 2 * 2


PREFIXES = {
    "all hold": ((ok(0.9), ok(1.8), ok(3.0)), 3.0),
    "the last breaks": ((ok(0.9), ok(1.8), ok(3.0, e2e=31.0)), 1.8),
    "one in between breaks": ((ok(0.9), ok(1.8, ttft=1.01), ok(3.0)), 0.9),
    "the lowest breaks": ((ok(0.9, e2e=math.inf), ok(1.8), ok(3.0)), 0.0),
    "one fails": ((ok(0.9), NOTHING, ok(3.0)), 0.9),
    "one is saturated": ((ok(0.9), ok(1.8), ok(3.0, saturated=True)), 1.8),
    "throughput falls": ((ok(0.9), ok(1.8), ok(1.7)), 1.8),
    "at the SLO": ((ok(0.9, e2e=30.0), ok(1.8, ttft=1.0), ok(3.0)), 3.0),
}


@pytest.mark.parametrize("case", PREFIXES)
def test_capacity_is_the_best_throughput_of_the_feasible_prefix(problem, case):
    outcomes, capacity = PREFIXES[case]
    found, _ = observe(problem, *outcomes)
    kappa = feasible_prefix(problem, found.value[None], found.broken)
    assert kappa.shape == (1, 2, 2)
    assert kappa[0, 0, 0] == pytest.approx(capacity)
