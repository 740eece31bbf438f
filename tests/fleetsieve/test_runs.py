"""Cells that are measured more than once: what their runs say together, and when they are asked."""

import numpy as np
import pytest

from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet
from fleetsieve.observations import Observations
from fleetsieve.problem import FAILED, MEASURED, Problem
from fleetsieve.runs import Runs
from fleetsieve.sieve import Sieve
from fleetsieve.tails import excess
from fleetsieve_measure import Failed, Measured

FLEET = {
    "fleet": {"gpus": 4},
    "configs": [{"name": "x", "gpus": 1}, {"name": "y", "gpus": 2}],
    "workloads": [
        {"name": "a", "demand": 6, "slo": {"e2e_p99": 30, "ttft_p99": 1}, "loads": [1, 2, 4]}
    ],
    "measure": {"repeats": 3},
}
OOM, ERROR = (Failed(kind=kind, gpu_seconds=1.0) for kind in ("oom", "error"))


@pytest.fixture(scope="module")
def problem():
    return Problem.build(Fleet.parse(FLEET), None)


def run(throughput=1.0, e2e=15.0, ttft=0.5, error=0.02):
    values = {"throughput": throughput, "e2e_p99": e2e, "ttft_p99": ttft}
    se = {name: error * value for name, value in values.items()} if error else {}
    return Measured(values=values, se=se, gpu_seconds=1.0)


def observe(problem, *runs):
    told = Runs.of(problem, [(0, outcome) for outcome in runs])
    return Observations.of(problem, told, varies=True), told.truth(problem)


def test_runs_of_a_cell_count_as_their_median(problem):
    found, truth = observe(problem, run(e2e=10), run(e2e=90), run(e2e=12))
    assert truth.values[0, 0, 0].tolist() == [1.0, 12.0, 0.5]
    alone, _ = observe(problem, run(e2e=12))
    np.testing.assert_allclose(found.value[0], alone.value[0])
    assert (found.runs[0].tolist(), found.n_measured) == ([3, 3, 3], 1)


def test_the_scatter_of_runs_is_their_sum_of_squares_about_the_mean(problem):
    singles = [run(e2e=28), run(e2e=30), run(e2e=32, throughput=1.1)]
    found, _ = observe(problem, *singles)
    values = np.array([observe(problem, one)[0].value[0] for one in singles])
    expected = sum(np.outer(v, v) for v in values - values.mean(axis=0))
    np.testing.assert_allclose(found.scatter[0], expected, atol=1e-12)
    assert not found.scatter[1:].any()


def test_the_variance_of_a_median_is_at_least_what_simulation_gives(problem):
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 4, 5, 9):
        found, _ = observe(problem, *[run()] * count)
        simulated = np.median(rng.standard_normal((100_000, count)), axis=1).var()
        assert simulated * 0.98 <= found.share[0, 0] <= 1.4 * simulated


def test_the_tails_of_a_median_are_as_wide_as_simulation_gives():
    """Student's t with 4 degrees of freedom, at the probability that a Gaussian has at 2.5 sd."""
    rng = np.random.default_rng(0)
    tail = 0.0062097
    factors = np.sqrt(1 + excess(2.5, 5))
    for count in (1, 2, 3, 5):
        factor = factors[count]
        draws = np.median(rng.standard_t(4, (1_000_000, count)) / np.sqrt(2), axis=1)
        reach = np.quantile(draws, 1 - tail)
        share = {1: 1.0, 2: 0.5, 3: np.pi / 6, 5: np.pi / 10}[count]
        # Never narrower than a Gaussian.
        assert factor == pytest.approx(max(reach / (2.5 * np.sqrt(share)), 1.0), rel=0.03)


@pytest.mark.parametrize(
    ("outcomes", "status", "broken"),
    [
        ((run(), ERROR), MEASURED, False),
        ((ERROR, run()), MEASURED, False),
        ((ERROR, ERROR), FAILED, True),
        ((run(), OOM), FAILED, True),
        ((OOM, run()), FAILED, True),
    ],
)
def test_an_error_beside_a_measured_run_says_nothing_and_other_failures_decide(
    problem, outcomes, status, broken
):
    found, truth = observe(problem, *outcomes)
    assert (truth.status[0, 0, 0], found.broken[0]) == (status, broken)


def test_a_noisy_cell_at_its_slo_is_asked_again_until_its_runs_are_used_up():
    sieve = Sieve(Fleet.parse(FLEET))
    times: dict[tuple[str, float], int] = {}
    while not sieve.done:
        (proposal,) = sieve.ask()
        cell = proposal.cell
        times[cell.config, cell.load] = times.get((cell.config, cell.load), 0) + 1
        edge = 29.9 if cell.load == 2 else 5.0 * cell.load
        sieve.tell(proposal.ticket, run(throughput=cell.load, e2e=edge, error=0.1))
    assert sieve.stop_reason == "within_noise"
    named = {(cell.config, cell.load) for cell in sieve.decision().within_noise}
    assert {("x", 2.0), ("y", 2.0)} & named
    assert max(times.values()) == 3


def test_without_a_certificate_the_allocation_rests_on_cells_as_they_were_measured():
    """At load 2 latency is within noise of the SLO and rather holds: 3 replicas are enough."""
    sieve, rng = Sieve(Fleet.parse(FLEET)), np.random.default_rng(0)
    latency = {1.0: 10.0, 2.0: 28.0, 4.0: 300.0}
    while not sieve.done:
        (proposal,) = sieve.ask()
        load = proposal.cell.load
        e2e = latency[load] * np.exp(rng.normal(0, 0.1))
        sieve.tell(proposal.ticket, run(throughput=load, e2e=e2e, error=0.1))
    decision = sieve.decision()
    assert (decision.stop_reason, decision.certified) == ("within_noise", False)
    assert [(row.config, row.replicas, row.load) for row in decision.allocation] == [("x", 3, 2.0)]
    # Certain is less than what is given, and the gap is that of what is certain.
    assert decision.value.conservative < 1 <= decision.value.optimistic
    assert decision.gap == decision.value.optimistic - decision.value.conservative > 0.02
    assert (decision.value.conservative, decision.value.optimistic) == sieve.value
    assert any("loses at most" in note for note in decision.notes)


def test_exact_cells_are_never_asked_again():
    sieve = Sieve(Fleet.parse(FLEET))
    asked = []
    while not sieve.done:
        (proposal,) = sieve.ask()
        asked.append(proposal.cell)
        sieve.tell(proposal.ticket, run(throughput=proposal.cell.load, error=0.0))
    assert len(asked) == len(set(asked))


def test_a_repeat_is_told_by_its_ticket_and_never_unasked():
    sieve = Sieve(Fleet.parse(FLEET))
    (first,) = sieve.ask()
    outcome = run(throughput=first.cell.load, e2e=29.9, error=0.1)
    sieve.tell(first.ticket, outcome)
    with pytest.raises(InputError, match="was told before"):
        sieve.tell(first.cell, outcome)
    while first.cell != (proposal := sieve.ask()[0]).cell:
        sieve.tell(proposal.ticket, run(throughput=proposal.cell.load, e2e=29.9, error=0.1))
    sieve.tell(proposal.ticket, outcome)
    assert sieve.runs_of(first.cell) == 2
