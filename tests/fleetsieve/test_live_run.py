"""A run that measures live, on simulated servers: from the first launch to the decision."""

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fleetsieve.cli import main
from fleetsieve.errors import InputError
from fleetsieve.events import Told
from fleetsieve.interrupt import Interrupt
from fleetsieve.samples import SampleFolder
from fleetsieve.study import Study
from fleetsieve_measure import Measured, outcome

ROOTS = [str(Path(__file__).parents[2] / name) for name in ("fleetsieve", "kernels", "measure")]
# Two workloads, so that one cell never decides. How busy this machine is spoils no run here.
FLEET = """\
fleet: {gpus: 4}
decision: {tolerance: 0.3}
engine: {kind: simulated, model: llama-3.1-8b, args: {max-num-seqs: 32}}
configs:
  - {name: tp1, gpus: 1}
  - {name: tp2, gpus: 2}
workloads:
  - {name: chat, demand: 6, slo: {e2e_p50: 20}, requests: {prompt_tokens: 50, output_tokens: 8},
     arrivals: constant, loads: [6, 9]}
  - {name: code, demand: 6, slo: {e2e_p50: 20}, requests: {prompt_tokens: 60, output_tokens: 9},
     arrivals: constant, loads: [6, 9]}
measure: {gpus: 2, seconds: 1, warmup_seconds: 0.2, launch_seconds: 1}
"""
PATIENT = "import fleetsieve_measure.outcome as o; o._MOST_LATE = 1e3"
RUN = f"{PATIENT}; import sys; from fleetsieve.cli import main; sys.exit(main())"


def argv(folder):
    out = folder / "decision.json"
    return ["run", str(folder / "fleet.yaml"), "--seed", "1", "--json", str(out)]


@contextlib.contextmanager
def started(folder):
    """A run as a process of its own, up to the moment when its first cell has been told."""
    (folder / "fleet.yaml").write_text(FLEET)
    path = os.pathsep.join([*ROOTS, os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", RUN, *argv(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            lines = [process.stderr.readline() for _ in range(2)]
            assert lines[1].split()[:1] == [b"1"], b"".join(lines)
            yield process
        finally:
            process.kill()


def told(folder):
    with Study.open_read_only(folder / "fleet.study.db") as study:
        return [event for event in study.events() if isinstance(event, Told)]


def servers(folder):
    """Processes that run in `folder`, as servers do; workers have no folder of their own."""
    found = set()
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").readlink().is_relative_to(folder):
                found.add(int(process.name))
    return found


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@dataclass
class Story:
    """A run that was killed with -9 after its first cell, and resumed to its decision."""

    folder: Path
    refused: int = 0
    told: list[Told] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    code: int = -1

    @property
    def decision(self):
        return json.loads((self.folder / "decision.json").read_text())


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    story = Story(tmp_path_factory.mktemp("live"))
    with started(story.folder) as process:
        process.send_signal(signal.SIGSTOP)  # it must not end before the second run asks
        story.refused = main(argv(story.folder))
        process.kill()
    story.told, story.left = told(story.folder), servers(story.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "_MOST_LATE", 1e3)
        story.code = main(argv(story.folder))
    return story


def test_a_second_run_on_the_same_study_is_refused(story):
    assert story.refused == 2


def test_a_killed_run_resumes_and_decides(story):
    assert story.code == 0
    found = story.decision
    assert found["certified"]
    assert found["measurements"] == len(told(story.folder)) >= 2
    assert all(workload["feasible"] for workload in found["workloads"])


def test_what_was_told_before_the_kill_is_as_it_was_and_no_cell_is_told_twice(story):
    after = told(story.folder)
    assert after[: len(story.told)] == story.told
    assert len(after) > len(story.told) >= 1
    assert len({event.cell for event in after}) == len(after)


def test_the_server_that_the_kill_left_is_ended_and_none_is_left_by_the_run(story):
    assert len(story.left) == 1
    assert servers(story.folder) == set()


def test_the_journal_says_how_each_cell_was_measured(story):
    for event in told(story.folder):
        summary = event.outcome.summary
        assert isinstance(event.outcome, Measured), event.outcome
        assert summary["load"] == {"rate": event.cell.load}
        assert summary["requests"] == event.outcome.requests
        assert summary["window_seconds"] == pytest.approx(1.0, abs=0.2)
        assert event.outcome.gpu_seconds >= 1.2


def test_the_requests_of_each_cell_are_kept_and_give_its_numbers_again(story):
    samples = SampleFolder(story.folder / "fleet.study.db")
    events = told(story.folder)
    assert set(samples.path.iterdir()) == {samples.file(event.cell) for event in events}
    for event in events:
        rows = pq.read_table(samples.file(event.cell)).to_pandas()
        rows = rows[rows.measured]
        assert isinstance(event.outcome, Measured)
        late = np.sort(np.where(rows.ok, rows["last"] - rows.due, math.inf))
        median = late[math.ceil(len(late) / 2) - 1]
        assert event.outcome.values["e2e_p50"] == pytest.approx(median, abs=1e-6)
        rate = rows.ok.mean() * event.cell.load
        assert event.outcome.values["throughput"] == pytest.approx(rate)


def test_ctrl_c_ends_with_a_decision_and_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(outcome, "_MOST_LATE", 1e3)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    thread = threading.Thread(target=interrupt_once_told, args=(tmp_path,))
    thread.start()
    assert main(argv(tmp_path)) == 3
    thread.join()
    found = json.loads((tmp_path / "decision.json").read_text())
    assert (found["certified"], found["stop_reason"]) == (False, "interrupted")
    assert found["measurements"] == len(told(tmp_path)) >= 1
    assert servers(tmp_path) == set()


def interrupt_once_told(folder):
    """SIGINT to this process while its second cell is measured."""
    study = folder / "fleet.study.db"

    def once_told():
        with contextlib.suppress(InputError):  # it is being created
            return study.exists() and told(folder)

    until(once_told, 60)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("before", "asked"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_closed_terminal_asks_to_finish_unless_nohup_says_otherwise(before, asked):
    async def inside():
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            return interrupt.requested

    outer = signal.signal(signal.SIGHUP, before)
    try:
        assert asyncio.run(inside()) is asked
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, outer)
