"""The pool keeps as many measurements in flight as it may, and leaves none behind."""

import asyncio

import pytest

from fleetsieve_measure import Measured
from fleetsieve_measure.pool import Pool


class Bench:
    """An engine whose measurements end when the test says so."""

    def __init__(self):
        self.running = {}
        self.cancelled = []

    async def measure(self, job):
        self.running[job] = asyncio.get_running_loop().create_future()
        try:
            return await self.running[job]
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # a server takes a moment to stop
            self.cancelled.append(job)
            raise
        finally:
            del self.running[job]

    def finish(self, job):
        self.running[job].set_result(outcome(job))


def outcome(job):
    return Measured(values={"throughput": float(job)}, gpu_seconds=1.0)


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_results_arrive_in_the_order_of_completion():
    async def scenario():
        bench = Bench()
        async with Pool(bench.measure, parallel=3) as pool:
            for job in (1, 2, 3):
                pool.start(job)
            assert pool.free == 0
            await settle()
            assert set(bench.running) == {1, 2, 3}
            arrived = []
            for job in (3, 1, 2):
                bench.finish(job)
                arrived.append(await pool.next())
            assert arrived == [(job, outcome(job)) for job in (3, 1, 2)]
            assert (pool.free, pool.in_flight, await pool.next()) == (3, (), None)

    asyncio.run(scenario())


def test_of_several_that_are_complete_the_first_started_comes_first():
    async def scenario():
        bench = Bench()
        async with Pool(bench.measure, parallel=2) as pool:
            pool.start(1)
            pool.start(2)
            await settle()
            bench.finish(2)
            bench.finish(1)
            await settle()
            assert [await pool.next() for _ in range(2)] == [(1, outcome(1)), (2, outcome(2))]

    asyncio.run(scenario())


def test_a_full_pool_refuses_and_a_slot_is_free_once_its_result_is_taken():
    async def scenario():
        bench = Bench()
        async with Pool(bench.measure) as pool:
            pool.start(1)
            with pytest.raises(RuntimeError, match="all 1 slots are taken"):
                pool.start(2)
            await settle()
            bench.finish(1)
            await pool.next()
            pool.start(2)
            assert pool.in_flight == (2,)

    asyncio.run(scenario())


def test_leaving_waits_until_what_is_in_flight_has_stopped():
    async def scenario():
        bench = Bench()
        async with Pool(bench.measure, parallel=2) as pool:
            pool.start(1)
            pool.start(2)
            await settle()
        assert sorted(bench.cancelled) == [1, 2]
        assert bench.running == {}
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_a_stop_ends_the_wait_and_touches_no_measurement():
    async def scenario():
        bench, stop = Bench(), asyncio.Event()
        async with Pool(bench.measure) as pool:
            pool.start(1)
            await settle()
            stop.set()
            assert await pool.next(stop) is None
            assert pool.in_flight == (1,)
            bench.finish(1)
            assert await pool.next() == (1, outcome(1))

    asyncio.run(scenario())


def test_an_engine_that_breaks_is_no_outcome_and_stops_the_others():
    async def scenario():
        bench = Bench()

        async def measure(job):
            if job == 2:
                raise ZeroDivisionError
            return await bench.measure(job)

        async def use():
            async with Pool(measure, parallel=2) as pool:
                pool.start(1)
                await settle()
                pool.start(2)
                await pool.next()

        with pytest.raises(ZeroDivisionError):
            await use()
        assert bench.cancelled == [1]

    asyncio.run(scenario())


def test_a_pool_has_a_slot():
    with pytest.raises(ValueError, match="parallel is 0"):
        Pool(Bench().measure, parallel=0)
