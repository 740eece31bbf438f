"""A process and its whole group end when they should, and nothing else is ever touched."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleetsieve_measure import gpu_memory
from fleetsieve_measure import process as process_module
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.leftovers import Leftovers, members, start_time
from fleetsieve_measure.process import Process

SLEEPS = "import time; time.sleep(600)"
STUBBORN = f"import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); {SLEEPS}"
# Prints the number of a child that ignores TERM, and goes on with what is asked.
WITH_CHILD = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}])
print("child", child.pid, flush=True)
"""


def running(pid):
    return start_time(pid) is not None


async def until(happens, seconds=10.0):
    end = time.monotonic() + seconds
    for _ in iter(lambda: time.monotonic() < end, False):
        if found := happens():
            return found
        await asyncio.sleep(0.01)
    raise TimeoutError


def code(text, *args):
    return [sys.executable, "-c", text, *args]


async def started(tmp_path, command, **options):
    options = {"log": tmp_path / "log", "env": dict(os.environ), **options}
    return await Process.start(command, **options)


async def child_of(process, stubborn=1):
    """The number of the child that `WITH_CHILD` printed, once so many of them ignore TERM."""
    await until(lambda: process.log_lines().count("up") == stubborn)
    return next(int(x.split()[1]) for x in process.log_lines() if x.startswith("child"))


def test_output_of_both_kinds_goes_to_the_log_below_the_command(tmp_path):
    async def scenario():
        text = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
        process = await started(tmp_path, code(text))
        assert await process.exited == process.returncode == 3
        assert process.log_lines()[0].startswith(f"$ {sys.executable} -c")
        assert process.log_tail(2) == ["out", "err"]
        await process.stop()

    asyncio.run(scenario())


def test_a_talkative_process_never_waits_for_a_reader(tmp_path):
    async def scenario():
        process = await started(tmp_path, code("print(('x' * 99 + '\\n') * 40_000)"))
        async with asyncio.timeout(20):
            assert await process.exited == 0
        assert process.log_size() > 4_000_000
        assert process.log_tail(3)[0] == "x" * 99
        await process.stop()

    asyncio.run(scenario())


def test_it_runs_in_the_folder_of_its_log_with_the_environment_it_is_given(tmp_path):
    async def scenario():
        log = tmp_path / "deep" / "server.log"
        text = "import os; print(os.getcwd(), os.environ['ONLY'], 'HOME' in os.environ)"
        process = await started(tmp_path, code(text), log=log, env={"ONLY": "this"})
        await process.exited
        assert process.log_tail(1) == [f"{log.parent} this False"]
        await process.stop()

    asyncio.run(scenario())


def test_it_has_a_group_of_its_own_but_no_session_of_its_own(tmp_path):
    async def scenario():
        process = await started(tmp_path, code(SLEEPS))
        assert os.getpgid(process.pid) == process.pid
        assert os.getsid(process.pid) == os.getsid(0)
        await process.stop()

    asyncio.run(scenario())


def test_a_missing_executable_is_told_with_what_would_do(tmp_path):
    with pytest.raises(InputError, match=r"no-such-engine cannot be started \(No such file"):
        asyncio.run(started(tmp_path, ["no-such-engine", "serve"]))
    script = tmp_path / "not-executable"
    script.write_text("")
    with pytest.raises(InputError, match=r"Permission denied.*in command"):
        asyncio.run(started(tmp_path, [str(script)]))


def test_a_stop_is_polite_first(tmp_path):
    async def scenario():
        text = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=1)"
        process = await started(tmp_path, code(f"{text}; signal.pause()"))
        await until(lambda: "up" in process.log_lines())
        await process.stop(grace=10)
        assert process.returncode == 7

    asyncio.run(scenario())


def test_what_ignores_term_is_killed_after_the_grace(tmp_path):
    async def scenario():
        process = await started(tmp_path, code(STUBBORN))
        await until(lambda: "up" in process.log_lines())
        await process.stop(grace=0.1)
        assert process.returncode == -signal.SIGKILL

    asyncio.run(scenario())


def test_a_grandchild_that_holds_on_ends_with_the_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "_TIDY", 0.1)

    async def scenario():
        process = await started(tmp_path, code(f"{WITH_CHILD}\n{SLEEPS}"))
        child = await child_of(process)
        await process.stop(grace=5)
        assert not running(child)
        assert members(process.pid) == []

    asyncio.run(scenario())


def test_a_grandchild_ends_when_the_leader_dies_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "_TIDY", 0.1)

    async def scenario():
        process = await started(tmp_path, code(f"{WITH_CHILD}\n{SLEEPS}"))
        child = await child_of(process)
        os.kill(process.pid, signal.SIGKILL)
        assert await process.exited == -signal.SIGKILL
        await until(lambda: not running(child))
        await process.stop()

    asyncio.run(scenario())


def test_a_cancelled_stop_still_kills(tmp_path):
    async def scenario():
        process = await started(tmp_path, code(f"{WITH_CHILD}\n{STUBBORN}"))
        child = await child_of(process, stubborn=2)
        stopping = asyncio.ensure_future(process.stop(grace=600))
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        async with asyncio.timeout(10):
            assert await process.exited == -signal.SIGKILL
        await until(lambda: not running(child))

    asyncio.run(scenario())


# Maps a new file of shared memory, or one that is there, and never lets go of it.
SHARES = """
import sys
from multiprocessing import resource_tracker, shared_memory
size = 4096 * (sys.argv[2] == "new")
memory = shared_memory.SharedMemory(sys.argv[1], create=bool(size), size=size)
resource_tracker.unregister(memory._name, "shared_memory")
"""


@pytest.fixture
def shared():
    """A file of shared memory that is not there yet."""
    path = Path(f"/dev/shm/fleetsieve-test-{os.getpid()}-{time.monotonic_ns()}")
    yield path
    path.unlink(missing_ok=True)


def test_shared_memory_that_a_killed_server_leaves_is_removed(tmp_path, shared):
    async def scenario():
        process = await started(tmp_path, code(f"{SHARES}\n{STUBBORN}", shared.name, "new"))
        await until(lambda: "up" in process.log_lines())
        assert shared.exists()
        await process.stop(grace=0.1)
        assert not shared.exists()

    asyncio.run(scenario())


def test_shared_memory_that_somebody_else_made_or_uses_stays(tmp_path, shared):
    async def scenario():
        options = {"log": tmp_path / "first.log"}
        first = await started(
            tmp_path, code(f"{SHARES}\n{STUBBORN}", shared.name, "new"), **options
        )
        await until(lambda: "up" in first.log_lines())
        second = await started(tmp_path, code(f"{SHARES}\n{STUBBORN}", shared.name, "old"))
        await until(lambda: "up" in second.log_lines())
        await first.stop(grace=0.1)
        assert shared.exists()  # the second uses it
        await second.stop(grace=0.1)
        assert shared.exists()  # and found it there

    asyncio.run(scenario())


def test_shared_memory_of_a_server_that_crashed_is_removed_if_it_was_noted(tmp_path, shared):
    async def scenario():
        process = await started(tmp_path, code(f"{SHARES}\n{STUBBORN}", shared.name, "new"))
        await until(lambda: "up" in process.log_lines())
        process.note_shared_memory()
        os.killpg(process.pid, signal.SIGKILL)
        assert await process.exited == -signal.SIGKILL
        await process.stop()
        assert not shared.exists()

    asyncio.run(scenario())


def test_those_who_tidy_up_after_a_crash_are_given_the_time(tmp_path, shared):
    async def scenario():
        # Python starts a process that removes the memory when the one that made it has gone.
        text = f"""
import time
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory({shared.name!r}, create=True, size=4096)
print("up", flush=True)
time.sleep(600)
"""
        process = await started(tmp_path, code(text))
        await until(lambda: "up" in process.log_lines())
        os.kill(process.pid, signal.SIGKILL)
        await process.exited
        await process.stop()
        assert not shared.exists()

    asyncio.run(scenario())


def test_nobody_elses_process_of_the_same_name_is_touched(tmp_path):
    async def scenario():
        process = await started(tmp_path, code(SLEEPS))
        await process.stop()
        assert not running(process.pid)

    with subprocess.Popen(code(SLEEPS), process_group=0) as neighbour:
        asyncio.run(scenario())
        assert running(neighbour.pid)
        neighbour.kill()


def test_an_exit_is_seen_at_once_by_all_who_wait(tmp_path):
    async def scenario():
        process = await started(tmp_path, code(SLEEPS))
        impatient = asyncio.ensure_future(asyncio.wait_for(process.exited, 0.01))
        with pytest.raises(TimeoutError):
            await impatient
        begin = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        assert await asyncio.gather(process.exited, process.exited) == [-9, -9]
        assert time.monotonic() - begin < 2
        await process.stop()

    asyncio.run(scenario())


def test_a_group_is_written_down_while_it_runs(tmp_path):
    async def scenario():
        folder = tmp_path / "leftovers"
        process = await started(tmp_path, code(SLEEPS), leftovers=Leftovers(folder))
        record = json.loads((folder / f"{process.pid}.json").read_text())
        assert record["leader"] == [process.pid, start_time(process.pid)]
        assert record["owner"] == [os.getpid(), start_time(os.getpid())]
        await process.stop()
        assert list(folder.iterdir()) == []

    asyncio.run(scenario())


# Starts a server as a run does, prints its number, and ends as it is told.
RUN = """
import asyncio, os, sys
from pathlib import Path
from fleetsieve_measure.leftovers import Leftovers
from fleetsieve_measure.process import Process

async def main():
    folder = Path(sys.argv[1])
    process = await Process.start(
        sys.argv[3:], log=folder / "log", env=dict(os.environ),
        leftovers=Leftovers(folder / "leftovers"),
    )
    print(process.pid, flush=True)
    exec(sys.argv[2])

asyncio.run(main())
"""


def server_of_a_run(folder, ending):
    """The number of a server that a run started before it ended so."""
    package = Path(process_module.__file__).parents[1]
    run = subprocess.run(
        code(RUN, str(folder), ending, *code(SLEEPS)),
        env={**os.environ, "PYTHONPATH": str(package)},
        stdout=subprocess.PIPE,
        check=False,
    )
    return int(run.stdout)


@pytest.fixture
def orphan(tmp_path):
    """A server that a killed run has left, written down in tmp_path."""
    pid = server_of_a_run(tmp_path, "os.kill(os.getpid(), 9)")
    yield pid
    if running(pid):
        os.killpg(pid, signal.SIGKILL)


@pytest.mark.parametrize("ending", ["pass", "sys.exit(1)", "raise ZeroDivisionError"])
def test_no_server_outlives_the_event_loop(tmp_path, ending):
    pid = server_of_a_run(tmp_path, ending)
    asyncio.run(until(lambda: not running(pid)))


def test_the_next_run_ends_what_a_killed_one_left(tmp_path, orphan):
    leftovers = Leftovers(tmp_path / "leftovers")
    assert running(orphan)
    assert leftovers.end() == [orphan]
    asyncio.run(until(lambda: not running(orphan)))
    assert leftovers.end() == []


@pytest.mark.parametrize("change", [{"boot": "another"}, {"leader": 1}])
def test_a_number_that_was_given_to_another_process_is_never_signalled(tmp_path, orphan, change):
    record = json.loads((tmp_path / "leftovers" / f"{orphan}.json").read_text())
    file = tmp_path / "notes" / f"{orphan}.json"
    file.parent.mkdir()
    if "leader" in change:
        pid, started_at = record["leader"]
        record["leader"] = [pid, started_at + change["leader"]]
    else:
        record |= change
    file.write_text(json.dumps(record))
    assert Leftovers(file.parent).end() == []
    assert running(orphan)
    assert not file.exists()


def test_a_server_that_was_never_written_down_is_known_by_its_mark(tmp_path, orphan):
    for note in (tmp_path / "leftovers").iterdir():
        note.unlink()
    assert Leftovers(tmp_path / "elsewhere").end() == []
    assert running(orphan)
    assert Leftovers(tmp_path / "leftovers").end() == [orphan]
    asyncio.run(until(lambda: not running(orphan)))


def test_servers_of_a_run_that_goes_on_are_left_alone(tmp_path):
    async def scenario():
        folder = tmp_path / "leftovers"
        process = await started(tmp_path, code(SLEEPS), leftovers=Leftovers(folder))
        assert Leftovers(folder).end() == []
        assert running(process.pid)
        await process.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"boot": "x", "owner": [1, 2]}', "null"])
def test_a_note_that_was_cut_short_is_dropped(tmp_path, text):
    (tmp_path / "7.json").write_text(text)
    assert Leftovers(tmp_path).end() == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_past_has_no_leftovers(tmp_path):
    assert Leftovers(tmp_path / "none").end() == []


def settle(readings, devices=("0", "1"), **options):
    taken = iter(readings)
    reads = []

    def read(names):
        reads.append(tuple(names))
        return next(taken)

    options = {"interval": 0.001, "deadline": 0.02, **options}
    return asyncio.run(gpu_memory.settled(devices, read, **options)), reads


def test_memory_has_settled_when_five_samples_of_every_gpu_are_equal():
    falling = [(70_000.0 - 10_000 * n, 400.0) for n in range(6)]
    found, reads = settle([*falling, *[(9.0, 400.0)] * 5])
    assert found
    assert len(reads) == 11
    assert set(reads) == {("0", "1")}


def test_one_gpu_of_the_block_that_still_gives_memory_back_is_waited_for():
    found, reads = settle([*[(0.0, 9000.0 - 500 * n) for n in range(8)], *[(0.0, 0.0)] * 5])
    assert found
    assert len(reads) == 13


def test_memory_that_never_settles_ends_the_wait_at_the_deadline():
    found, reads = settle([(1000.0 * n,) for n in range(1000)], devices=("0",))
    assert not found
    assert len(reads) == 20


def test_memory_that_cannot_be_read_is_not_waited_for():
    def broken(names):
        raise OSError("driver is gone")

    assert not asyncio.run(gpu_memory.settled(("0",), broken))
    assert not asyncio.run(gpu_memory.settled(("0",), None))


def test_a_server_without_gpus_has_nothing_to_wait_for():
    assert asyncio.run(gpu_memory.settled((), None))


def test_nvidia_smi_is_asked_for_every_gpu_of_the_block(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nprintf "512\\n80000\\n"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    read = gpu_memory.reader()
    assert read is not None
    assert read(("3", "GPU-8932f937")) == (512.0, 80000.0)
    assert "--id=3,GPU-8932f937" in (tmp_path / "asked").read_text().split()
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert not asyncio.run(gpu_memory.settled(("0",), read))


def test_nvml_is_preferred_and_knows_gpus_by_number_and_by_uuid(monkeypatch):
    used = {0: 1 << 30, "MIG-1": 3 << 20}

    class Nvml:
        NVMLError = type("NVMLError", (Exception,), {})

        def nvmlInit(self):
            pass

        def nvmlDeviceGetHandleByIndex(self, index):
            return index

        def nvmlDeviceGetHandleByUUID(self, uuid):
            return uuid

        def nvmlDeviceGetMemoryInfo(self, handle):
            if handle not in used:
                raise self.NVMLError("Not Found")
            return type("Memory", (), {"used": used[handle]})

    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    read = gpu_memory.reader()
    assert read is not None
    assert read(("0", "MIG-1")) == (1024.0, 3.0)
    assert not asyncio.run(gpu_memory.settled(("5",), read))
