"""The recorded engine reveals what it was given, and refuses what it was not."""

import asyncio

import pytest

from fleetsieve_measure import Failed, Measured
from fleetsieve_measure.recorded import RecordedEngine

OK = Measured(values={"throughput": 1.0}, gpu_seconds=5.0)
OOM = Failed(kind="oom", gpu_seconds=3.0)


def test_each_job_gives_its_own_outcome_however_often_it_is_asked():
    engine = RecordedEngine({("a", 1): OK, ("a", 2): OOM})

    async def measure():
        return [await engine.measure(job) for job in (("a", 2), ("a", 1), ("a", 2))]

    assert asyncio.run(measure()) == [OOM, OK, OOM]


def test_what_was_not_recorded_is_an_error_that_names_it():
    with pytest.raises(LookupError, match="no outcome of b is recorded"):
        asyncio.run(RecordedEngine({"a": OK}).measure("b"))


def test_the_pause_is_the_callers_and_comes_before_the_outcome():
    seen = []

    async def pause(job):
        seen.append(job)

    assert asyncio.run(RecordedEngine({"a": OK}, pause).measure("a")) == OK
    assert seen == ["a"]


def test_an_outcome_leaves_room_for_others():
    order = []

    async def other():
        order.append("other")

    async def both():
        task = asyncio.ensure_future(other())
        await RecordedEngine({"a": OK}).measure("a")
        order.append("measured")
        await task

    asyncio.run(both())
    assert order == ["other", "measured"]
