"""Load and windows in time that jumps, against servers whose queues follow by arithmetic."""

import asyncio
import itertools
from functools import partial

import numpy as np
import pytest

from fleetsieve_measure.arrivals import constant, poisson
from fleetsieve_measure.client import Body
from fleetsieve_measure.load import ClosedLoop, OpenLoop
from fleetsieve_measure.outcome import outcome_of
from fleetsieve_measure.results import Failed, Measured
from fleetsieve_measure.trial import Rules, run_trial
from fleetsieve_measure.window import Window


class Endless:
    """A source of equal requests."""

    def next(self):
        return Body("/", b"", 1, 2)


class FakeClient:
    """A server in the client's place: `servers` slots, `service` seconds each, first come first."""

    def __init__(self, loop, service, servers=1, fails=lambda number: False):
        self._loop, self._service, self._fails = loop, service, fails
        self._slots = asyncio.Semaphore(servers)
        self._numbers = itertools.count()
        self.in_flight = self.most = 0

    async def send(self, body, record):
        record.sent = self._loop.time()
        record.prompt_tokens, record.output_tokens = body.prompt_tokens, body.output_tokens
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            async with self._slots:
                await asyncio.sleep(self._service / 2)
                record.first = self._loop.time()
                await asyncio.sleep(self._service / 2)
            record.last, record.tokens, record.source = self._loop.time(), 2, "usage"
            record.times.extend([record.first, record.last])
            record.counts.extend([0, 0])
            record.ok = not self._fails(next(self._numbers))
            record.error = None if record.ok else "HTTP 500: no"
        except asyncio.CancelledError:
            record.error = "aborted by the client"
            raise
        finally:
            self.in_flight -= 1
            record.end, record.reads = self._loop.time(), 2
        return record


def rules(slo=None, warmup=10.0, seconds=100.0, longest=400.0, drain=60.0):
    return Rules(slo or {}, warmup, seconds, longest, drain)


def trial(loop, load, rule, service=0.1, gone=lambda: False, **server):
    client = FakeClient(loop, service, **server)
    sample = loop.run_until_complete(run_trial(client, Endless(), load, rule, gone))
    assert client.in_flight == 0, "nothing is left behind"
    assert all(record.end is not None for record in sample.records)
    return client, sample


def steady(rate):
    return OpenLoop(rate, partial(constant, rate))


def random(rate, seed=0):
    return OpenLoop(rate, partial(poisson, rate, np.random.default_rng(seed)))


def test_an_open_loop_sends_when_due_whatever_the_server_does(jumping):
    client, sample = trial(jumping, steady(5.0), rules(), service=30.0, servers=10**6)
    sent = np.array([record.sent - sample.start for record in sample.records])
    np.testing.assert_allclose(sent, np.arange(len(sent)) / 5, atol=1e-6)
    assert client.most == pytest.approx(150, abs=2), "Little's law"
    measured = [record.due - sample.start for record in sample.measured]
    np.testing.assert_allclose(measured, np.arange(50, 550) / 5, atol=1e-6)
    assert all(record.ok for record in sample.measured), "also those that ended after the window"
    assert sample.stopped - sample.start == pytest.approx(140, abs=0.2)


def test_latency_counts_from_when_a_request_was_due_also_in_overload(jumping):
    """10 requests/s are served and 20 are due: the k-th, due at k/20, ends at (k+1)/10."""
    rule = rules(longest=100.0, drain=500.0)
    never = OpenLoop(20.0, partial(constant, 20.0))
    client, sample = trial(jumping, never, Rules({}, 10, 100, 100, 500))
    assert sample.overload
    for number, record in enumerate(sample.records):
        if record.ok:
            assert record.e2e == pytest.approx((number + 1) / 10 - number / 20, abs=1e-6)
    outcome = outcome_of(sample, never, rule, 1.0).outcome
    assert isinstance(outcome, Measured)
    assert outcome.saturated
    assert outcome.values["throughput"] == pytest.approx(10.0, rel=0.1)
    assert client.most > 30


def test_a_closed_loop_keeps_its_concurrency_and_starts_one_after_the_other(jumping):
    client, sample = trial(jumping, ClosedLoop(8, 4.0), rules(), service=5.0, servers=100)
    assert client.most == sample.most_in_flight == 8
    first = sorted(record.sent - sample.start for record in sample.records)[:8]
    np.testing.assert_allclose(first, np.arange(8) / 2, atol=1e-6)
    outcome = outcome_of(sample, ClosedLoop(8, 4.0), rules(), 1.0).outcome
    assert isinstance(outcome, Measured)
    assert outcome.values["throughput"] == pytest.approx(8 / 5, rel=0.01)


def test_the_window_lasts_until_its_percentiles_have_enough_requests(jumping):
    """A p99 needs 299: at 2 requests/s the last is due after 149 s, not the 100 s asked for."""
    _, sample = trial(jumping, steady(2.0), rules({"e2e_p99": 5.0}))
    assert len(sample.measured) == 299
    assert sample.closes - sample.opens == pytest.approx(149.1, abs=0.15)
    _, sample = trial(jumping, steady(2.0), rules({"e2e_p99": 5.0}, longest=120.0))
    assert sample.closes - sample.opens == pytest.approx(120.0, abs=0.2)
    outcome = outcome_of(sample, steady(2.0), rules({"e2e_p99": 5.0}), 1.0).outcome
    assert not outcome.summary["enough_requests"]


def test_a_run_ends_early_once_its_slos_are_surely_missed(jumping):
    slow = rules({"e2e_p90": 1.0}, seconds=1000.0)
    _, sample = trial(jumping, random(5.0), slow, service=2.0, servers=1000)
    assert sample.early == "e2e_p90 surely exceeds 1 s"
    assert sample.stopped - sample.start < 60
    outcome = outcome_of(sample, random(5.0), slow, 1.0).outcome
    assert isinstance(outcome, Measured)
    assert outcome.values["e2e_p90"] > 1.0
    assert not outcome.saturated
    assert outcome.summary["saved_seconds"] > 900


def test_a_run_ends_early_once_its_slos_are_surely_met(jumping):
    _, sample = trial(jumping, random(5.0), rules({"e2e_p50": 1.0}, seconds=1000.0), servers=9)
    assert sample.early == "every SLO is surely met"
    assert sample.stopped - sample.start < 60


def test_requests_that_never_end_are_cut_off_after_the_drain_and_count_as_failed(jumping):
    stuck = rules(drain=7.0, longest=100.0)
    _, sample = trial(jumping, steady(1.0), stuck, service=10**6, servers=10**6)
    assert sample.aborted
    assert sample.stopped - sample.start == pytest.approx(117, abs=0.3)
    assert isinstance(outcome_of(sample, steady(1.0), stuck, 1.0).outcome, Failed)


def test_a_server_that_fails_every_request_ends_the_run(jumping):
    for load in (steady(5.0), ClosedLoop(4, 1.0)):
        _, sample = trial(jumping, load, rules(), fails=lambda number: True, servers=100)
        assert sample.early == "every request fails"
        assert sample.stopped - sample.start < 20
        assert len(sample.records) < 200, "a closed loop backs off"


def test_a_server_that_has_gone_ends_the_run_at_once(jumping):
    end = jumping.time() + 42
    _, sample = trial(jumping, steady(5.0), rules(), gone=lambda: jumping.time() >= end)
    assert sample.early == "the server ended"
    assert sample.stopped == pytest.approx(end, abs=0.2)


def test_an_error_in_the_load_is_not_swallowed(jumping):
    class Broken:
        def next(self):
            raise ZeroDivisionError

    client = FakeClient(jumping, 0.1)
    with pytest.raises(ZeroDivisionError):
        jumping.run_until_complete(run_trial(client, Broken(), steady(5.0), rules()))


def test_a_window_counts_what_is_due_between_its_edges_and_nothing_else():
    window = Window(100.0, warmup=10, seconds=20, longest=50, enough=3)
    dues = [100, 109.9, 110, 115, 129.9, 130, 131]
    assert [window.admit(due) for due in dues] == [False, False, True, True, True, False, False]
    assert (window.count, window.closes) == (3, 130)
    few = Window(100.0, warmup=10, seconds=20, longest=50, enough=9)
    assert [few.admit(due) for due in (110, 130, 159.9, 160)] == [True, True, True, False]
    assert (few.count, few.closes) == (3, 160)
