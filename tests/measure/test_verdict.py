"""When a run may end early, on queues whose fate is known by arithmetic and on binomial facts."""

import math

import numpy as np
import pytest

from fleetsieve_measure.record import Record
from fleetsieve_measure.verdict import SloVerdict, overloaded, serves_nobody


def record(due, end=None, ok=True, first=None):
    found = Record(due, ok=ok and end is not None, end=end, last=end, first=first or end)
    if found.first is not None:
        found.times.append(found.first)
    return found


def queue(arrivals, service, servers, now):
    """First come, first served by `servers`; what has not come by `now` is not there."""
    free, records = np.zeros(servers), []
    for due, takes in zip(arrivals, np.broadcast_to(service, len(arrivals)), strict=True):
        if due > now:
            break
        k = int(np.argmin(free))
        free[k] = max(free[k], due) + takes
        records.append(record(due, free[k] if free[k] <= now else None))
    return records


def poisson(rate, seconds, seed):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(3 * rate * seconds)))


@pytest.mark.parametrize("load", [1.3, 1.6, 2.0, 4.0])
def test_a_queue_offered_more_than_it_serves_is_overloaded_in_time(load):
    """One server of 10 requests/s."""
    arrivals = poisson(10 * load, 200, 0)
    assert overloaded(queue(arrivals, 0.1, 1, 60.0), 0.0, 60.0)
    assert not overloaded(queue(arrivals, 0.1, 1, 0.5), 0.0, 0.5)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_queue_that_keeps_up_is_not_overloaded_at_any_look(load):
    wrong = 0
    for seed in range(40):
        arrivals = poisson(40 * load, 60, seed)
        whole = queue(arrivals, 0.1, 4, math.inf)
        for now in np.arange(2.0, 60.0, 1.0):
            came = [r for r in whole if r.due <= now]
            seen = [record(r.due, r.end if r.end <= now else None) for r in came]
            wrong += overloaded(seen, 0.0, now)
    assert wrong <= 2


@pytest.mark.parametrize("seed", range(4))
def test_long_service_does_not_hide_that_a_backlog_grows(seed):
    """360 requests at once, 90 s each on average: 4 a second are served, and 5 come."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / 5, 2000))
    late = queue(arrivals, rng.gamma(8, 90 / 8, 2000), 360, 300.0)
    assert overloaded(late, 0.0, 300.0)


def test_a_system_that_fills_up_is_not_overloaded():
    """Every request takes 20 s however many there are: until then nothing ends."""
    arrivals = poisson(20, 100, 1)
    for now in np.arange(1.0, 90.0, 0.5):
        assert not overloaded(queue(arrivals, 20.0, 4000, now), 0.0, now)


def test_requests_that_fail_are_no_backlog_but_a_server_that_fails_all_of_them_serves_nobody():
    bad = [record(k / 10, k / 10 + 0.01, ok=False) for k in range(40)]
    assert serves_nobody(bad)
    assert not serves_nobody([*bad[:-1], record(4.0, 4.1)])
    assert not serves_nobody(bad[:19])
    assert not overloaded(bad, 0.0, 4.0)


def test_an_slo_that_is_surely_missed_ends_the_run():
    """6 of 60 miss a p99: with a true miss rate of 1 % that has a chance of 3e-5."""
    records = [record(k, k + (9.0 if k % 10 == 0 else 1.0)) for k in range(60)]
    assert SloVerdict({"e2e_p99": 5.0}).look(records, 100.0) == "e2e_p99 surely exceeds 5 s"
    records = [record(k, k + (9.0 if k % 60 == 0 else 1.0)) for k in range(60)]
    assert SloVerdict({"e2e_p99": 5.0}).look(records, 100.0) is None


def test_requests_in_flight_count_as_late_as_they_are_and_failures_as_late_for_ever():
    waiting = [record(float(k)) for k in range(30)]
    assert SloVerdict({"e2e_p50": 5.0}).look(waiting, 100.0) is None, "nothing has ended"
    waiting += [record(30.0, 31.0) for _ in range(5)]
    assert SloVerdict({"e2e_p50": 5.0}).look(waiting, 100.0) is not None
    assert SloVerdict({"ttft_p50": 5.0}).look(waiting, 100.0) is not None
    assert SloVerdict({"tpot_p50": 5.0}).look(waiting, 100.0) is None
    assert SloVerdict({"e2e_p50": 5.0}).look(waiting, 40.0) is not None
    assert SloVerdict({"e2e_p50": 50.0}).look(waiting, 30.0) is None
    failed = [record(float(k), k + 0.1, ok=False) for k in range(30)]
    assert SloVerdict({"tpot_p50": 5.0}).look(failed, 100.0) is not None


def test_slos_that_are_surely_met_end_the_run_and_a_mean_never_does():
    records = [record(float(k), k + 1.0) for k in range(40)]
    assert SloVerdict({"e2e_p50": 5.0}).look(records, 100.0) == "every SLO is surely met"
    assert SloVerdict({"e2e_p99": 5.0}).look(records, 100.0) is None
    assert SloVerdict({"e2e_p50": 5.0, "e2e_mean": 5.0}).look(records, 100.0) is None
    assert SloVerdict({"itl_p50": 5.0}).look(records, 100.0) is None


def test_looks_at_a_sample_on_the_edge_seldom_decide_wrongly():
    """True p90 at the limit exactly: a verdict either way is wrong."""
    wrong = 0
    for seed in range(300):
        values = np.random.default_rng(seed).exponential(size=400)
        records = [record(0.0, float(v)) for v in values]
        verdict = SloVerdict({"e2e_p90": math.log(10)})
        wrong += any(verdict.look(records[:n], 1e9) for n in range(1, 400))
    assert wrong / 300 <= 0.03
