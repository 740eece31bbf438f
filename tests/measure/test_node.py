"""Servers of a node share its GPUs without ever meeting on one, and none outlives the node."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleetsieve_measure.engines import Launch
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.leftovers import start_time
from fleetsieve_measure.node import Node
from fleetsieve_measure.server import LaunchFailed
from fleetsieve_measure.slots import Slots

FAKE = Path(__file__).with_name("fake_engine.py")
PROFILING = "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current 90."
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory."


@pytest.fixture(autouse=True)
def _all_gpus_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def launch(kind="vllm", **wishes):
    """A launch of a fake engine that misbehaves as wished."""
    return Launch(
        kind=kind,
        model="tiny",
        command=(sys.executable, str(FAKE)),
        env={"FAKE": json.dumps({"served": "tiny", **wishes})},
    )


class Bed:
    """A node on which a test runs, the pauses that it made and the servers that it launched."""

    def __init__(self, folder, gpus, **options):
        self.slots = Slots(gpus)
        self.folder = folder
        self.pauses = []
        self.launches = folder / "launches"
        options = {"deadline": 20.0, "grace": 1.0, "patience": 5.0, **options}
        self.node = Node(
            self.slots,
            folder / "run",
            memory=lambda devices: tuple(0.0 for _ in devices),
            settle=0.001,
            sleep=self.pause,
            **options,
        )

    async def pause(self, seconds):
        self.pauses.append(seconds)

    def launch(self, **wishes):
        return launch(count=str(self.launches), **wishes)

    @property
    def launched(self):
        return self.launches.stat().st_size if self.launches.exists() else 0

    def lease(self, key="a", gpus=1, launched=None):
        return self.node.server(key, launched or self.launch(), gpus)


def run(folder, scenario, gpus=8, **options):
    """Run `scenario` with a node of its own; all GPUs are free in the end."""

    async def inside():
        bed = Bed(folder, gpus, **options)
        async with bed.node:
            found = await scenario(bed)
        return bed, found

    bed, found = asyncio.run(inside())
    return bed, found


def test_a_server_stays_up_for_the_next_cell_of_its_key(tmp_path):
    async def scenario(bed):
        async with bed.lease() as first:
            assert first.launched_for_this_lease
            assert first.launch.gpus == (0,)
        async with bed.lease() as again:
            assert again is first
            assert not again.launched_for_this_lease
            assert await again.healthy()

    bed, _ = run(tmp_path, scenario)
    assert bed.launched == 1


def test_every_server_gets_gpus_of_its_own(tmp_path):
    async def scenario(bed):
        async with bed.lease("a", 2) as a, bed.lease("b", 4) as b, bed.lease("a", 2) as c:
            assert sorted(a.launch.gpus + b.launch.gpus + c.launch.gpus) == list(range(8))
            assert len({a.launch.port, b.launch.port, c.launch.port}) == 3
            assert len({a.launch.folder, b.launch.folder, c.launch.folder}) == 3
            assert bed.slots.free == 0

    run(tmp_path, scenario)


def test_the_longest_idle_server_makes_way_for_another_key(tmp_path):
    async def scenario(bed):
        for key in ("a", "b"):
            async with bed.lease(key):
                pass
        async with bed.lease("a"):  # used again, so that b is idle for longer
            pass
        async with bed.lease("c") as c:
            assert c.launch.gpus == (1,)
        async with bed.lease("a") as a:
            assert not a.launched_for_this_lease
        async with bed.lease("b") as b:
            assert b.launched_for_this_lease

    bed, _ = run(tmp_path, scenario, gpus=2)
    assert bed.launched == 4


def test_as_many_idle_servers_make_way_as_a_large_one_needs(tmp_path):
    async def scenario(bed):
        async with bed.lease("a"), bed.lease("b"), bed.lease("c"):
            pass
        async with bed.lease("d", 4) as d:
            assert d.launch.gpus == (0, 1, 2, 3)

    run(tmp_path, scenario, gpus=4)


def test_who_finds_no_gpu_waits_and_is_served_in_order(tmp_path):
    async def scenario(bed):
        served = []

        async def want(key, gpus):
            async with bed.lease(key, gpus):
                served.append(key)

        async with bed.lease("first", 2):
            waiting = [
                asyncio.ensure_future(want(key, gpus))
                for key, gpus in (("large", 2), ("small", 1), ("tiny", 1))
            ]
            await asyncio.sleep(0.05)
            assert served == []
        await asyncio.gather(*waiting)
        assert served[0] == "large"

    run(tmp_path, scenario, gpus=2)


def test_a_wait_that_is_cancelled_takes_nothing(tmp_path):
    async def scenario(bed):
        async with bed.lease("a", 2):
            waiting = asyncio.ensure_future(bed.lease("b", 2).__aenter__())
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        async with bed.lease("c", 2) as c:
            assert c.launch.gpus == (0, 1)

    run(tmp_path, scenario, gpus=2)


def test_a_failure_of_the_infrastructure_is_tried_again_after_a_growing_pause(tmp_path):
    async def scenario(bed):
        launched = bed.launch(failures=2, last_words=[PROFILING])
        async with bed.lease(launched=launched) as server:
            return server.launch_seconds

    bed, seconds = run(tmp_path, scenario, back_off=5.0)
    assert bed.launched == 3
    assert bed.pauses == [5.0, 10.0]
    assert 15 < seconds < 35  # the GPUs were held all the while


def test_a_failure_that_persists_is_passed_on_with_what_all_tries_took(tmp_path):
    async def scenario(bed):
        launched = bed.launch(failures=9, last_words=[PROFILING])
        with pytest.raises(LaunchFailed, match="Error in memory profiling") as caught:
            async with bed.lease(launched=launched):
                pass
        assert bed.slots.free == 8
        return caught.value

    bed, failure = run(tmp_path, scenario, back_off=5.0, tries=3)
    assert bed.launched == 3
    assert failure.infrastructure
    assert 15 < failure.seconds < 35


def test_a_failure_of_the_config_is_passed_on_at_once(tmp_path):
    async def scenario(bed):
        launched = bed.launch(failures=9, last_words=[OUT_OF_MEMORY])
        with pytest.raises(LaunchFailed) as caught:
            async with bed.lease(launched=launched):
                pass
        assert bed.slots.free == 8
        return caught.value

    bed, failure = run(tmp_path, scenario)
    assert (bed.launched, bed.pauses, failure.kind) == (1, [], "oom")


async def kv_caches_of_two_launches(bed, sizes):
    launched = bed.launch(kv_sizes=sizes)
    found = []
    for _ in range(2):
        async with bed.lease(launched=launched) as server:
            found.append(server.kv_cache_tokens)
            await server.stop()
    return found


def test_a_kv_cache_of_another_size_is_launched_again(tmp_path):
    async def scenario(bed):
        return await kv_caches_of_two_launches(bed, [1000, 500, 1000, 1000])

    bed, found = run(tmp_path, scenario)
    assert found == [1000, 1000]
    assert bed.launched == 4


def test_a_first_kv_cache_that_was_wrong_does_not_stand_for_ever(tmp_path):
    async def scenario(bed):
        return await kv_caches_of_two_launches(bed, [500, 1000, 1010])

    bed, found = run(tmp_path, scenario)
    assert found == [500, 1010]
    assert bed.launched == 3


def test_a_kv_cache_that_differs_a_little_is_the_same(tmp_path):
    async def scenario(bed):
        return await kv_caches_of_two_launches(bed, [1000, 1090])

    bed, _ = run(tmp_path, scenario)
    assert bed.launched == 2


def test_a_kv_cache_that_never_settles_is_no_fault_of_the_config(tmp_path):
    async def scenario(bed):
        sizes = [1000, 500, 1000, 500]
        with pytest.raises(LaunchFailed, match="500 tokens, and had 1000") as caught:
            await kv_caches_of_two_launches(bed, sizes)
        assert bed.slots.free == 8
        return caught.value.infrastructure

    assert run(tmp_path, scenario)[1]


@pytest.mark.parametrize(("kind", "alone"), [("vllm", True), ("simulated", False)])
def test_start_ups_that_race_are_one_after_the_other(tmp_path, kind, alone):
    async def scenario(bed):
        launched = launch(
            kind, spans=str(tmp_path / "spans"), bind_after=0.5, count=str(bed.launches)
        )

        async def want(key):
            async with bed.lease(key, launched=launched):
                return

        await asyncio.gather(want("a"), want("b"))
        return (tmp_path / "spans").read_text().split()

    _, spans = run(tmp_path, scenario)
    assert (spans == ["begin", "end"] * 2) == alone
    assert alone or spans == ["begin", "begin", "end", "end"]


def test_no_two_leases_ever_share_a_gpu(tmp_path):
    async def scenario(bed):
        in_use = set()

        async def want(key, gpus):
            async with bed.lease(key, gpus) as server:
                block = set(server.launch.gpus)
                assert len(block) == gpus
                assert not in_use & block
                in_use.update(block)
                await asyncio.sleep(0.02)
                in_use.difference_update(block)

        wanted = [("a", 1), ("b", 2), ("a", 1), ("c", 4), ("b", 2), ("a", 1), ("c", 4), ("d", 2)]
        await asyncio.gather(*(want(key, gpus) for key, gpus in wanted))

    run(tmp_path, scenario, gpus=4)


def test_a_body_that_raises_leaves_no_server_that_is_still_busy(tmp_path):
    async def scenario(bed):
        leased = []

        async def fail():
            async with bed.lease() as server:
                leased.append(server)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert not leased[0].alive
        assert bed.slots.free == 8
        async with bed.lease() as again:
            assert again.launched_for_this_lease

    run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["killed", "sick"])
def test_an_idle_server_that_has_died_or_stopped_completing_is_replaced(tmp_path, how):
    async def scenario(bed):
        wishes = {"completes": 2} if how == "sick" else {"grandchild": str(tmp_path / "pid")}
        launched = bed.launch(**wishes)
        async with bed.lease(launched=launched) as first:
            pass
        if how == "killed":
            os.killpg(os.getpgid(int((tmp_path / "pid").read_text())), signal.SIGKILL)
        async with bed.lease(launched=launched) as second:
            assert second is not first
            assert second.launched_for_this_lease
            assert second.launch.folder == first.launch.folder  # with its compile caches

    bed, _ = run(tmp_path, scenario)
    assert bed.launched == 2


def test_leaving_the_node_stops_what_is_idle_and_what_is_in_use(tmp_path):
    pids = tmp_path / "idle", tmp_path / "used"

    async def scenario(bed):
        async with bed.lease("a", launched=bed.launch(grandchild=str(pids[0]))):
            pass
        stack = contextlib.AsyncExitStack()
        lease = bed.lease("b", launched=bed.launch(grandchild=str(pids[1])))
        return stack, await stack.enter_async_context(lease)

    async def inside():
        bed = Bed(tmp_path, 8)
        async with bed.node:
            stack, server = await scenario(bed)
        assert not server.alive
        await stack.aclose()
        assert bed.slots.free == 8

    asyncio.run(inside())
    assert [start_time(int(path.read_text())) for path in pids] == [None, None]


def test_a_cancelled_run_leaves_no_server_not_even_one_that_was_starting(tmp_path):
    number = tmp_path / "starting"

    async def main():
        bed = Bed(tmp_path, 8)
        async with bed.node:
            launched = bed.launch(bind_after=600, grandchild=str(number))
            async with bed.lease("a"), bed.lease("b", launched=launched):
                raise AssertionError("the second server never starts")

    async def scenario():
        task = asyncio.ensure_future(main())
        while not (number.exists() and number.read_text()):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert start_time(int(number.read_text())) is None


def test_more_gpus_than_a_node_has_are_refused_before_anybody_waits(tmp_path):
    async def scenario(bed):
        async with bed.lease("a", 2):
            with pytest.raises(InputError, match="one node has 2"):
                async with bed.lease("b", 4):
                    pass

    run(tmp_path, scenario, gpus=2)


def test_wrong_input_gives_the_gpus_back(tmp_path):
    async def scenario(bed):
        with pytest.raises(InputError, match="port is set by the launcher"):
            async with bed.lease(launched=replace(launch(), args={"port": 1})):
                pass
        assert bed.slots.free == 8

    run(tmp_path, scenario)
    with pytest.raises(InputError, match="tries is 0"):
        Bed(tmp_path, 8, tries=0)


def test_a_server_of_somebody_else_takes_no_gpu_and_one_user_at_a_time(tmp_path):
    async def scenario(bed):
        users, most = 0, 0

        async def want(launched):
            nonlocal users, most
            async with bed.lease("url", launched=launched):
                users += 1
                most = max(most, users)
                await asyncio.sleep(0.02)
                users -= 1

        async with bed.lease("mine", 1) as mine:
            launched = Launch(kind="openai", url=mine.url)
            await asyncio.gather(*(want(launched) for _ in range(3)))
            assert await mine.healthy()
        assert most == 1

    run(tmp_path, scenario, gpus=1)


def test_servers_that_a_killed_run_left_are_ended_first(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], process_group=0
    ) as left:
        folder = tmp_path / "run" / "leftovers"
        folder.mkdir(parents=True)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        record = {
            "boot": boot,
            "owner": [os.getpid(), 0],
            "leader": [left.pid, start_time(left.pid)],
        }
        (folder / f"{left.pid}.json").write_text(json.dumps(record))

        async def scenario(bed):
            assert left.wait(10) == -signal.SIGKILL

        run(tmp_path, scenario)
