"""The pacer keeps to its schedule, on a clock that jumps."""

import asyncio
import contextlib

import pytest

from fleetsieve_measure.simulated.batching import Batching, Limits
from fleetsieve_measure.simulated.pacer import Pacer
from fleetsieve_measure.simulated.step_time import StepTime

ONE_SECOND = StepTime(
    per_token=0.0,
    per_pair=0.0,
    weights=0.0,
    per_kv_token=0.0,
    allreduce=0.0,
    allreduce_per_token=0.0,
    overhead=1.0,
)


class Clock:
    """Time passes only in `sleep`, which wakes up `late` seconds late."""

    def __init__(self, late=0.0):
        self.now = 100.0
        self.late = late

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        for _ in range(5):  # whoever waits for a token sees the time at which it came
            await asyncio.sleep(0)
        self.now += seconds + (self.late if seconds else 0.0)


class Bench:
    """A pacer whose steps take 1 s, at work."""

    def __init__(self, clock, **limits):
        self.clock = clock
        self.batching = Batching(Limits(**{"kv_tokens": 10_000, **limits}))
        self.pacer = Pacer(self.batching, ONE_SECOND, clock=clock, sleep=clock.sleep)

    async def times(self, generation, count):
        """When the next tokens come out."""
        seen = []
        for _ in range(count):
            await generation.token()
            seen.append(self.clock())
        return seen

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self.pacer.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


def test_lateness_does_not_add_up():
    async def scenario():
        async with Bench(Clock(late=0.3)) as bench:
            return await bench.times(bench.pacer.submit(10, 20), 20)

    assert asyncio.run(scenario()) == pytest.approx([101.3 + n for n in range(20)])


def test_what_a_stall_delayed_is_caught_up_with():
    async def scenario():
        clock = Clock()
        async with Bench(clock) as bench:
            generation = bench.pacer.submit(10, 8)
            await bench.times(generation, 2)
            clock.late = 3.5  # the process did not run when it should have woken up at 103
            third = await bench.times(generation, 1)
            clock.late = 0.0
            return third + await bench.times(generation, 5)

    # The steps that should have ended at 104, 105 and 106 end as soon as they can.
    times = asyncio.run(scenario())
    assert times == pytest.approx([106.5, 106.5, 106.5, 106.5, 107, 108])


def test_after_an_idle_time_the_schedule_starts_anew():
    async def scenario():
        clock = Clock()
        async with Bench(clock) as bench:
            await bench.times(bench.pacer.submit(10, 1), 1)
            await asyncio.sleep(0)
            clock.now = 500.25
            return await bench.times(bench.pacer.submit(10, 2), 2)

    assert asyncio.run(scenario()) == pytest.approx([501.25, 502.25])


def test_an_aborted_request_gives_its_place_to_the_next():
    async def scenario():
        async with Bench(Clock(), max_num_seqs=1) as bench:
            first, second = bench.pacer.submit(10, 1000), bench.pacer.submit(10, 1)
            await bench.times(first, 3)
            bench.pacer.abort(first)
            await second.token()
            bench.pacer.abort(second)
            await asyncio.sleep(0)
            return bench.pacer, bench.batching

    pacer, batching = asyncio.run(scenario())
    assert (pacer.finished, pacer.aborted) == (1, 1)
    assert (pacer.prompt_tokens, pacer.generation_tokens) == (20, 5)
    assert batching.free_blocks == batching.limits.blocks


def test_a_request_may_be_aborted_before_it_runs():
    async def scenario():
        async with Bench(Clock()) as bench:
            bench.pacer.abort(bench.pacer.submit(10, 5))
            await bench.pacer.submit(10, 1).token()
            return bench.pacer.generation_tokens

    assert asyncio.run(scenario()) == 1
