"""Random fleets: what a seed means, and what must occur among them."""

import numpy as np
import pytest

from fleetsieve.analytic import Service, closed_loop, open_loop
from fleetsieve.problem import FAILED, MEASURED, Problem
from fleetsieve.random_fleet import KINDS, RunNoise, random_fleet
from fleetsieve_measure import Failed, Measured


def service(places: float) -> Service:
    """One workload on one config whose requests take 1 s, whatever the batch."""
    one = np.ones((1, 1, 1))
    return Service(
        step=one * 0.01,
        per_sequence=one * 0,
        prefill=one * 1e-12,
        output=one * 100,
        spread_in=one * 0,
        spread_out=one * 0,
        places=one * places,
        run=300.0,
    )


def test_one_place_waits_as_an_exponential_queue_of_one_server_does() -> None:
    rate = np.array([[[0.3, 0.6, 0.8]]])
    found = open_loop(service(1), rate)
    # M/M/1: the mean wait is ρ / (μ (1 - ρ)); p99 of an exponential wait is ln 100 times its mean.
    waits = rate / (1 - rate) * np.log(100)
    extra = found.ttft - 0.01
    np.testing.assert_allclose(extra, waits, rtol=0.01)


def test_beyond_saturation_the_backlog_of_the_run_is_waited_for() -> None:
    found = open_loop(service(4), np.array([[[8.0]]]))
    # Twice what 4 places serve: after 300 s half of the arrivals still wait, 150 s long.
    assert found.throughput.item() == pytest.approx(4.0)
    assert found.ttft.item() == pytest.approx(0.99 * 150, rel=0.01)


def test_a_closed_loop_obeys_littles_law() -> None:
    found = closed_loop(service(4), np.array([[[2.0, 4.0, 12.0]]]))
    np.testing.assert_allclose(found.throughput.ravel(), [2.0, 4.0, 4.0])
    # Users = throughput × (wait + 1 s of service).
    np.testing.assert_allclose(found.ttft.ravel() - 0.01, [0.0, 0.0, 2.0], atol=1e-6)


def test_a_seed_means_one_fleet() -> None:
    one, two, other = random_fleet(7), random_fleet(7), random_fleet(17)
    assert one.grid.rows == two.grid.rows
    assert one.fleet.model_dump() == two.fleet.model_dump()
    assert one.grid.rows != other.grid.rows


def test_stated_levels_reach_the_fleet_file() -> None:
    found = random_fleet(3, confidence=0.8, tolerance=0.05).fleet.decision
    assert (found.confidence, found.tolerance) == (0.8, 0.05)


def test_fleets_are_small_and_have_what_makes_decisions_hard() -> None:
    fleets = [random_fleet(seed) for seed in range(60)]
    problems = [Problem.build(f.fleet, f.grid) for f in fleets]
    outcomes = [row.outcome for f in fleets for row in f.grid.rows]
    assert max(problem.n_cells for problem in problems) <= 256
    assert {len(p.workloads) for p in problems} == {kind.workloads for kind in KINDS}
    assert any(isinstance(o, Failed) and o.kind == "oom" for o in outcomes)
    assert any(isinstance(o, Measured) and o.saturated for o in outcomes)
    assert 0.5 < np.mean([f.monotone for f in fleets]) < 0.95
    assert 0.5 < np.mean([f.knife_edge > 0 for f in fleets]) < 1
    larger_is_slower = 0
    for fleet, problem in zip(fleets, problems, strict=True):
        truth = problem.truth(fleet.grid)
        most = np.where(truth.status == FAILED, np.nan, truth.values[..., 0]).max(axis=2)
        larger_is_slower += bool((np.diff(most, axis=1) < 0).any())
    assert larger_is_slower > 5


def test_half_of_the_noisy_runs_are_within_two_thirds_of_the_level_and_tails_are_heavy() -> None:
    fleet = random_fleet(2)
    problem = Problem.build(fleet.fleet, fleet.grid)
    truth = problem.truth(fleet.grid)
    noise, rng = RunNoise(truth, 0.1), np.random.default_rng(0)
    index = int(np.flatnonzero(truth.status == MEASURED)[0])
    exact = truth.values.reshape(-1, len(problem.outputs))[index]
    runs = [noise(index, rng) for _ in range(4000)]
    log = np.log([run.values[0] / exact for run in runs])
    assert np.median(np.abs(log[:, 1])) == pytest.approx(0.067, rel=0.15)
    assert np.median(log[:, 1]) == pytest.approx(0, abs=0.005)
    assert np.median(np.abs(log[:, 0])) < 0.005
    # A Gaussian of this level would do so once in 16,000 runs.
    assert np.mean(np.abs(log[:, 1]) > 0.4) > 0.005
    stated = np.array([run.se[0] / run.values[0] for run in runs])
    np.testing.assert_allclose(stated[:, 1], 0.03)
