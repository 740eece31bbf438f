"""What a run amounts to, on samples made by hand."""

import math

import numpy as np
import pytest

from fleetsieve_measure.load import ClosedLoop, OpenLoop
from fleetsieve_measure.outcome import outcome_of
from fleetsieve_measure.record import Record
from fleetsieve_measure.results import Failed, Measured
from fleetsieve_measure.trial import Rules, Sample

SLO = {"e2e_p90": 2.0, "ttft_p50": 0.5}
RULES = Rules(slo=SLO, warmup=10.0, seconds=100.0, longest=400.0, drain=60.0)


def open_loop(rate):
    return OpenLoop(rate, lambda: iter(()))


def request(due, e2e=1.0, ttft=0.25, tokens=4, ok=True, asked=(16, 4)):
    """A request of `tokens` tokens at equal distances."""
    found = Record(due, prompt_tokens=asked[0], output_tokens=asked[1], sent=due, reads=tokens)
    found.ok, found.end, found.tokens = ok, due + e2e, tokens
    found.source, found.prompt_reported = "usage", 16
    found.first, found.last = due + ttft, due + e2e
    found.times.extend(np.linspace(due + ttft, due + e2e, tokens))
    found.counts.extend([0] * tokens)
    if not ok:
        found.error = "HTTP 500: no"
    return found


def sample(records, opens=10.0, closes=110.0, **facts):
    return Sample(records, start=0.0, opens=opens, closes=closes, stopped=closes + 2, **facts)


def judge(records, load=None, **facts):
    return outcome_of(sample(records, **facts), load or open_loop(1.0), RULES, 50.0)


def test_only_requests_due_in_the_window_count_however_long_they_take():
    warm = [request(float(k), e2e=9.0) for k in range(10)]
    late = [request(110.0 + k, e2e=9.0) for k in range(5)]
    slow = request(109.5, e2e=40.0)
    found = judge([*warm, *[request(10.0 + k) for k in range(99)], slow, *late]).outcome
    assert isinstance(found, Measured)
    assert found.values["e2e_p50"] == pytest.approx(1.0)
    assert found.values["e2e_mean"] == pytest.approx((99 * 1.0 + 40.0) / 100)
    assert found.values["throughput"] == 1.0
    assert found.requests == 100
    assert found.gpu_seconds == 50.0
    assert not found.saturated


def test_failed_requests_are_late_for_ever_and_are_not_served():
    records = [request(10.0 + k, ok=k % 10 != 0) for k in range(100)]
    found = judge(records, open_loop(2.0)).outcome
    assert isinstance(found, Measured)
    assert found.values["throughput"] == pytest.approx(1.8)
    assert found.se["throughput"] == pytest.approx(2.0 * math.sqrt(0.1 * 0.9 / 100))
    assert found.values["e2e_p90"] == pytest.approx(1.0)
    assert found.values["e2e_p95"] == math.inf
    assert found.summary["failed"] == 10
    assert found.summary["first_error"] == "HTTP 500: no"


def test_a_failure_among_few_requests_is_no_proof_that_an_slo_is_missed():
    """1 of 60 fails: the p90 is finite, a p99 of 1 % failures is as likely as not."""
    slo = {"e2e_p99": 2.0}
    rules = Rules(slo=slo, warmup=10.0, seconds=100.0, longest=400.0, drain=60.0)
    for failed, known in ((1, False), (10, True)):
        records = [request(10.0 + k, ok=k >= failed) for k in range(60)]
        found = outcome_of(sample(records), open_loop(1.0), rules, 50.0).outcome
        assert isinstance(found, Measured)
        assert found.values["e2e_p99"] == math.inf
        assert found.se.get("e2e_p99") == (None if known else math.inf)


def test_a_closed_loop_counts_completions_in_the_window():
    """4 users, 2 s a request: 2 requests/s, exactly so in each tenth of the window."""
    records = [request(2.0 * k + user / 2, e2e=2.0) for k in range(60) for user in range(4)]
    found = judge(records, ClosedLoop(4, 10.0)).outcome
    assert isinstance(found, Measured)
    assert found.values["throughput"] == pytest.approx(2.0, rel=0.02)


def test_no_success_is_no_measurement():
    found = judge([request(10.0 + k, ok=False) for k in range(50)])
    assert isinstance(found.outcome, Failed)
    assert found.outcome.kind == "error"
    assert "HTTP 500: no" in found.outcome.reason
    assert not found.spoilt


def test_a_starved_client_spoils_the_run():
    records = [request(10.0 + k) for k in range(100)]
    assert judge(records, sleep_lateness=0.2).spoilt
    for each in records:
        each.reads, each.times = 1, each.times * 10
    assert judge(records).spoilt
    assert isinstance(judge(records).outcome, Failed)


@pytest.mark.parametrize(("asked", "word"), [((16, 8), "outputs"), ((2, 4), "prompts")])
def test_lengths_that_the_server_did_not_keep_to_are_no_measurement(asked, word):
    found = judge([request(10.0 + k, asked=asked) for k in range(100)]).outcome
    assert isinstance(found, Failed)
    assert found.reason.startswith(word)
    assert "% of the tokens" in found.reason


def test_what_an_early_end_cut_off_counts_as_late_as_it_was():
    """Cut off at 112, 100 of 200 requests are as old as they are then."""
    done = [request(10.0 + k / 2) for k in range(100)]
    cut = [request(60.0 + k / 2, ok=False) for k in range(100)]
    for each in cut:
        each.end, each.first, each.last = 112.0, None, None
        del each.times[:]
    found = judge([*done, *cut], open_loop(2.0), early="e2e_p90 surely exceeds 2 s").outcome
    assert isinstance(found, Measured)
    ages = sorted([1.0] * 100 + [112.0 - r.due for r in cut])
    assert found.values["e2e_p90"] == pytest.approx(ages[179])
    assert found.summary["ended_early"] == "e2e_p90 surely exceeds 2 s"


def test_a_growing_backlog_saturates_and_its_throughput_is_what_was_completed():
    """20 requests/s are due, and one ends each 0.1 s."""
    records = [request(k / 20, e2e=(k + 1) / 10 - k / 20) for k in range(2200)]
    load = open_loop(20.0)
    whole = judge(records, load).outcome
    assert isinstance(whole, Measured)
    assert whole.saturated
    assert whole.values["throughput"] == pytest.approx(10.0, rel=0.02)
    early = judge(records, load, early="the backlog grows", overload=True).outcome
    assert isinstance(early, Measured)
    assert early.saturated
    assert set(early.values) == {"throughput"}


def test_the_summary_says_how_the_run_went():
    records = [request(10.0 + k) for k in range(100)]
    records[3].sent = records[3].due + 0.04
    found = judge(records, sleep_lateness=0.001, most_in_flight=7).outcome
    summary = found.summary
    assert summary["load"] == {"rate": 1.0}
    assert summary["offered_rate"] == pytest.approx(1.0)
    assert summary["dispatch_lag_seconds"]["max"] == pytest.approx(0.04)
    assert summary["most_in_flight"] == 7
    assert summary["enough_requests"]
    assert summary["goodput"] == pytest.approx(1.0)
    assert summary["statistics"]["e2e_p99"]["high"] is None  # 100 requests do not bound a p99


def test_goodput_is_the_throughput_within_every_slo():
    records = [request(10.0 + k, e2e=3.0 if k < 30 else 1.0) for k in range(100)]
    assert judge(records).outcome.summary["goodput"] == pytest.approx(0.7)
