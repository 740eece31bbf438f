"""Several cells in flight: what is asked meanwhile, and what the benchmark of it counts."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fleetsieve.belief import Belief
from fleetsieve.fleet import Fleet
from fleetsieve.policies import sieve
from fleetsieve.problem import Problem
from fleetsieve.runs import Runs
from fleetsieve.search import Search
from fleetsieve_measure import Measured

RATES, SIZES = (0.4, 0.8, 1.6, 3.2), (1, 2, 4)
FLEET = {
    "fleet": {"gpus": 8},
    "configs": [{"name": f"tp{g}", "gpus": g, "features": {"tp": g}} for g in SIZES],
    "workloads": [
        {
            "name": name,
            "demand": demand,
            "slo": {"e2e_p99": limit, "ttft_p99": limit / 10},
            "loads": list(RATES),
        }
        for name, demand, limit in (("chat", 6.0, 10.0), ("code", 3.0, 20.0))
    ],
}


@pytest.fixture(scope="module")
def flight():
    path = Path(__file__).parents[2] / "benchmarks" / "in_flight.py"
    spec = importlib.util.spec_from_file_location("in_flight", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def started():
    """A search without observations, and a truth with a knee."""
    problem = Problem.build(Fleet.parse(FLEET), None)
    outcomes = {}
    for cell in problem.cells():
        mu = {"chat": 1.6, "code": 0.8}[cell.workload] * int(cell.config[2:]) ** 0.9
        rho = min(cell.load / mu, 0.99)
        e2e = {"chat": 3.0, "code": 8.0}[cell.workload] * (1 + 0.3 * rho / (1 - rho))
        values = {"throughput": min(cell.load, mu), "e2e_p99": e2e, "ttft_p99": e2e / 10}
        outcomes[cell] = Measured(values=values, gpu_seconds=1.0)
    return Search.start(Belief(problem, confidence=0.95), 0.02), problem.outcomes(outcomes)


def told(search, truth, cells):
    return search.after(Runs.of_truth(truth, np.array(cells)))


@pytest.mark.parametrize("patient", [False, True])
def test_what_is_pending_is_never_asked_again(started, patient):
    search, truth = started
    search = told(search, truth, [2, 14])
    pending, shuffle = [], np.random.default_rng(0).random(24)
    while (
        pick := search.pick(sieve, shuffle, pending=tuple(pending), patient=patient)
    ) is not None:
        assert pick.index not in pending
        assert search.free[pick.index]
        pending.append(pick.index)
    assert patient or len(pending) == search.free.sum(), "without patience every free cell is asked"


def test_patience_asks_while_there_is_nothing_to_wait_for(started):
    """With no cell pending the choice is the same; patience never ends a search."""
    search, truth = started
    shuffle = np.random.default_rng(1).random(24)
    while not search.certified:
        pick = search.pick(sieve, shuffle, patient=True)
        assert pick == search.pick(sieve, shuffle)
        search = told(search, truth, [pick.index])


def test_a_patient_ask_waits_where_pending_cells_would_settle_it_all(started):
    search, truth = started
    search = told(search, truth, [2, 14])
    shuffle = np.random.default_rng(2).random(24)
    pending = []
    while (pick := search.pick(sieve, shuffle, pending=tuple(pending), patient=True)) is not None:
        pending.append(pick.index)
    assert len(pending) < search.free.sum()
    gap, distance = search.belief.gains(search.observed, search.hypothesis, pending)
    left = search.free.copy()
    left[pending] = False
    assert (gap + distance)[left].max() <= 1e-12


def test_before_the_first_outcome_there_is_nothing_to_wait_by(started):
    search, _ = started
    shuffle = np.random.default_rng(2).random(24)
    assert search.pick(sieve, shuffle, pending=tuple(range(23)), patient=True) is not None


def test_one_cell_in_flight_is_the_plain_search(flight, started):
    search, truth = started
    problem, rng = search.belief.problem, np.random.default_rng(3)
    found = flight.fly(search, truth, 1, 3)
    shuffle, order = rng.random(24), []
    while not search.certified:
        order.append(search.pick(sieve, shuffle).index)
        search = told(search, truth, order[-1:])
    cost = problem.gpu_seconds.ravel()[order]
    gpus = np.array(SIZES)[np.unravel_index(order, problem.exists.shape)[1]]
    assert found == flight.Flight(True, cost.sum(), (cost / gpus).sum(), len(order))


def test_what_is_in_flight_at_the_end_is_paid_up_to_then(flight, started):
    search, truth = started
    found = flight.fly(search, truth, 4, 0)
    assert found.certified
    costs = search.belief.problem.gpu_seconds
    cheapest, dearest = costs.min(), costs.max()
    assert found.told * cheapest <= found.gpu_seconds <= (found.told + 3) * dearest
    assert found.gpu_seconds <= found.seconds * 4 * max(SIZES), "four cells of at most four GPUs"
