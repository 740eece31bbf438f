"""Virtual time against queueing theory, closed forms and hand-computed schedules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.simulated.batching import Limits
from fleetsieve_measure.simulated.replica import Replica
from fleetsieve_measure.simulated.step_time import StepTime
from fleetsieve_measure.simulated.virtual import simulate

ROOMY = Limits(kv_tokens=10**7)


def constant(seconds):
    """Every step takes as long."""
    return linear(seconds, 0.0)


def linear(per_step, per_token):
    """A step takes longer with each token."""
    return StepTime(
        per_token=per_token,
        per_pair=0.0,
        weights=0.0,
        per_kv_token=0.0,
        allreduce=0.0,
        allreduce_per_token=0.0,
        overhead=per_step,
    )


def test_a_request_alone_takes_its_prefill_and_a_step_per_further_token():
    line = simulate(
        [2.0], [100], [5], step_time=linear(0.01, 0.001), limits=ROOMY, token_times=True
    )
    assert line.sent == [2.0]
    assert line.first_token == pytest.approx([2.0 + 0.01 + 0.1])
    assert line.last_token == pytest.approx(line.first_token + 4 * (0.01 + 0.001))
    assert line.token_times is not None
    np.testing.assert_allclose(np.diff(line.token_times[0]), 0.011)


def test_requests_that_arrive_during_a_step_join_at_its_end():
    # Steps end at 1, 2, 3, ...; the second request joins at 1 and gets its tokens at 2 and 3.
    line = simulate([0.0, 0.4], [1, 1], [3, 2], step_time=constant(1.0), limits=ROOMY)
    np.testing.assert_allclose(line.first_token, [1, 2])
    np.testing.assert_allclose(line.last_token, [3, 3])


def test_an_idle_engine_starts_a_step_when_a_request_arrives():
    line = simulate([0.0, 7.25], [1, 1], [1, 1], step_time=constant(1.0), limits=ROOMY)
    np.testing.assert_allclose(line.last_token, [1, 8.25])


def one_at_a_time(arrivals, seconds):
    """Requests of one step each, one per step: a single-server queue with constant service."""
    ones = np.ones(len(arrivals), dtype=int)
    limits = Limits(kv_tokens=1000, max_num_seqs=1)
    line = simulate(arrivals, ones, ones, step_time=constant(seconds), limits=limits)
    return line.last_token


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60))
def test_one_at_a_time_it_is_a_single_server_queue(gaps):
    arrivals = np.cumsum(gaps)
    departures, free = [], 0.0
    for arrival in arrivals:
        free = max(arrival, free) + 1.0
        departures.append(free)
    np.testing.assert_allclose(one_at_a_time(arrivals, 1.0), departures)


def test_with_poisson_arrivals_the_wait_is_that_of_an_m_d_1_queue():
    rng = np.random.default_rng(1)
    rate, service = 0.7, 1.0
    arrivals = np.cumsum(rng.exponential(1 / rate, 60_000))
    wait = one_at_a_time(arrivals, service) - arrivals - service
    # Pollaczek-Khinchine with constant service times.
    expected = rate * service**2 / (2 * (1 - rate * service))
    assert wait.mean() == pytest.approx(expected, rel=0.05)


def test_overload_grows_linearly():
    # 2 requests/s where 1 request/s is served: request n waits n (1 − 1/2) s.
    arrivals = np.arange(200) / 2
    wait = one_at_a_time(arrivals, 1.0) - arrivals - 1.0
    np.testing.assert_allclose(wait, np.arange(200) / 2)


def test_a_closed_loop_serves_as_many_at_once_as_it_has_users():
    # 3 users whose requests take 4 steps of 1 s: three requests every 4 s.
    count = 12
    line = simulate(
        np.zeros(count),
        np.ones(count, dtype=int),
        np.full(count, 4),
        step_time=constant(1.0),
        limits=ROOMY,
        concurrency=3,
    )
    np.testing.assert_allclose(line.sent, np.repeat([0, 4, 8, 12], 3))
    np.testing.assert_allclose(line.last_token, np.repeat([4, 8, 12, 16], 3))


def test_bounded_concurrency_holds_back_only_who_comes_too_early():
    line = simulate(
        [0.0, 1.0, 9.0], [1, 1, 1], [3, 3, 3], step_time=constant(1.0), limits=ROOMY, concurrency=1
    )
    np.testing.assert_allclose(line.sent, [0, 3, 9])
    np.testing.assert_allclose(line.last_token, [3, 6, 12])


REQUESTS = st.lists(
    st.tuples(st.floats(0, 0.2), st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=30
)


@settings(deadline=None)
@given(REQUESTS, st.integers(90, 400), st.integers(1, 8), st.none() | st.integers(1, 4))
def test_times_are_in_order_and_tokens_are_all_there(requests, kv_tokens, seats, users):
    gaps, prompts, outputs = (np.array(column) for column in zip(*requests, strict=True))
    arrivals = np.cumsum(gaps)
    limits = Limits(
        kv_tokens=kv_tokens, block_size=1, max_num_seqs=seats, max_num_batched_tokens=32
    )

    def run():
        return simulate(
            arrivals,
            prompts,
            outputs,
            step_time=linear(0.01, 0.001),
            limits=limits,
            concurrency=users,
            token_times=True,
        )

    line = run()
    assert line.token_times is not None
    assert [len(times) for times in line.token_times] == outputs.tolist()
    assert (line.sent >= arrivals).all()
    assert (line.first_token >= line.sent + 0.01).all()
    assert (np.diff(line.first_token) >= 0).all()
    for index, times in enumerate(line.token_times):
        assert times[0] == line.first_token[index]
        assert times[-1] == line.last_token[index]
        assert (np.diff(times) > 0).all()
    if users is not None:
        for start in line.sent:
            assert np.sum((line.sent <= start) & (line.last_token > start)) <= users
    again = run()
    np.testing.assert_array_equal(line.last_token, again.last_token)


def test_a_small_kv_cache_preempts_and_costs_time():
    arguments = (np.zeros(8), np.full(8, 100), np.full(8, 100))
    ample = simulate(*arguments, step_time=constant(0.01), limits=ROOMY)
    tight = simulate(*arguments, step_time=constant(0.01), limits=Limits(kv_tokens=900))
    assert ample.preemptions == 0 < tight.preemptions
    assert tight.last_token.max() > ample.last_token.max()


def test_no_requests_take_no_time():
    assert simulate([], [], [], step_time=constant(1.0), limits=ROOMY).last_token.size == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([1.0, 0.5], [1, 1], [1, 1]), "sort them"),
        (([-1.0], [1], [1]), "first arrival is at -1"),
        (([0.0, np.nan], [1, 1], [1, 1]), "not finite"),
        (([0.0], [1, 2], [1]), "give one number per request in each"),
        (([0.0], [1.5], [1]), "give whole numbers"),
        (([0.0], [0], [1]), "give at least one of each"),
        (([0.0], [10**8], [1]), "does not fit in the KV cache"),
    ],
)
def test_what_cannot_be_served_is_refused(arguments, says):
    with pytest.raises(InputError, match=says):
        simulate(*arguments, step_time=constant(1.0), limits=ROOMY)


def test_nobody_is_served_by_no_users():
    with pytest.raises(InputError, match="concurrency is 0; give at least 1"):
        simulate([0.0], [1], [1], step_time=constant(1.0), limits=ROOMY, concurrency=0)


def test_more_load_lengthens_the_tail_and_saturation_shows():
    replica = Replica(model="qwen3-8b")
    rng = np.random.default_rng(3)
    gaps, count = rng.exponential(1.0, 400), 400
    tails = []
    for rate in (1, 4, 16, 64):
        arrivals = np.cumsum(gaps) / rate
        line = simulate(
            arrivals,
            np.full(count, 1000),
            np.full(count, 200),
            step_time=replica.step_time,
            limits=replica.limits,
        )
        tails.append(np.percentile(line.last_token - arrivals, 99))
    assert tails == sorted(tails)
    assert tails[-1] > 3 * tails[0]
