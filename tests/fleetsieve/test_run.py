"""The loop of a run: what is measured, in flight, journaled and resumed; Ctrl-C and kill -9."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetsieve.cell import Cell
from fleetsieve.cli import main
from fleetsieve.events import Asked, Told
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid
from fleetsieve.inputs import Inputs
from fleetsieve.interrupt import Interrupt
from fleetsieve.run import engine_of, run_study
from fleetsieve.study import Study

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/qwen3-32b-h100/fleet.yaml"
FLEET = """\
fleet: {gpus: 4}
configs:
  - {name: x, gpus: 1, features: {tp: 1}}
  - {name: y, gpus: 2, features: {tp: 2}}
workloads:
  - {name: chat, demand: 9, slo: {e2e_p99: 30}}
"""
GRID = """\
workload,config,gpus,tp,rate,throughput,e2e_p99,gpu_seconds
chat,x,1,1,0.5,0.5,10,100
chat,x,1,1,1,0.9,20,100
chat,x,1,1,2,1.1,90,100
chat,y,2,2,0.5,0.5,5,200
chat,y,2,2,1,1,9,200
chat,y,2,2,2,1.8,29,200
chat,y,2,2,4,2.1,95,200
"""


@pytest.fixture
def inputs(tmp_path):
    path = tmp_path / "g.csv"
    path.write_text(GRID)
    return Inputs(Fleet.parse(FLEET, source="f.yaml"), Grid.read(path), overridden=True)


@pytest.fixture
def study(tmp_path, inputs):
    with Study.open(tmp_path / "f.study.db", inputs.fleet) as opened:
        yield opened


class Engine:
    """Reveals the grid; `before` runs with each cell, and may take its time or raise."""

    def __init__(self, inputs, before=None):
        self.outcomes = {cell: data.outcome for cell, data in inputs.grid.cells.items()}
        self.before = before
        self.started = []
        self.in_flight = self.most_in_flight = 0

    async def measure(self, cell):
        self.started.append(cell)
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            await asyncio.sleep(0)
            if self.before is not None:
                await self.before(cell)
            return self.outcomes[cell]
        finally:
            self.in_flight -= 1


async def forever(_):
    """Longer than any test waits, and a failure instead of a hang where nobody cancels it."""
    for _ in range(10_000):
        await asyncio.sleep(0)
    raise AssertionError("it was never cancelled")


def told(study):
    return [event.cell for event in study.events() if isinstance(event, Told)]


def test_every_measurement_is_asked_and_told_once(inputs, study):
    engine = Engine(inputs)
    found = run_study(inputs, study, engine=engine)
    asked = [event for event in study.events() if isinstance(event, Asked)]
    assert found.stop_reason is not None
    assert told(study) == [event.cell for event in asked] == engine.started
    assert len(set(engine.started)) == len(engine.started)
    assert engine.most_in_flight == 1


def test_measurements_in_parallel_may_end_in_any_order(inputs, study):
    async def longer_for_the_first(cell):
        for _ in range(20 - 2 * engine.started.index(cell)):
            await asyncio.sleep(0)

    engine = Engine(inputs, longer_for_the_first)
    run_study(inputs, study, engine=engine, parallel=3)
    assert engine.most_in_flight == 3
    arrived = told(study)
    assert len(set(arrived)) == len(arrived)
    assert set(arrived) <= set(engine.started)
    assert arrived != engine.started[: len(arrived)]


def test_what_was_asked_and_never_told_is_measured_first(inputs, study):
    cells = [Cell("chat", "y", 4.0, "rate"), Cell("chat", "x", 2.0, "rate")]
    for ticket, cell in enumerate(cells):
        study.append(Asked(ticket, cell, 100.0, 0.0, 0.0))
    engine = Engine(inputs)
    run_study(inputs, study, engine=engine)
    assert engine.started[:2] == cells
    assert told(study) == engine.started


def test_a_finished_study_measures_nothing_more(inputs, study):
    first = run_study(inputs, study, engine=Engine(inputs))
    events, engine = study.events(), Engine(inputs)
    again = run_study(inputs, study, engine=engine)
    assert (engine.started, study.events()) == ([], events)
    assert again.to_dict() == first.to_dict()


def test_once_certified_what_is_in_flight_is_cancelled_and_stays_asked(inputs, study):
    # Any feasible cell serves so small a demand, so the first outcome that arrives decides.
    fleet = Fleet.parse(FLEET.replace("demand: 9", "demand: 0.01"))
    first = []

    async def only_the_first_returns(cell):
        if first:
            await forever(cell)
        first.append(cell)

    engine = Engine(inputs, only_the_first_returns)
    found = run_study(inputs.of(fleet), study, engine=engine, parallel=2)
    assert found.certified
    assert engine.in_flight == 0
    assert told(study) == first
    assert len(engine.started) > 1
    # More demand needs more measurements, and begins with what was cancelled.
    resumed = Engine(inputs)
    run_study(inputs, study, engine=resumed)
    assert resumed.started[0] == next(cell for cell in engine.started if cell not in first)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_what_is_in_flight_to_the_next_run(inputs, study, number):
    async def interrupted(cell):
        if len(engine.started) > 2:
            os.kill(os.getpid(), number)
            await forever(cell)

    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    engine = Engine(inputs, interrupted)
    found = run_study(inputs, study, engine=engine)
    assert (found.certified, found.stop_reason) == (False, "interrupted")
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert isinstance(study.events()[-1], Asked), "neither told nor abandoned"
    resumed = Engine(inputs)
    run_study(inputs, study, engine=resumed)
    assert resumed.started[0] == engine.started[-1]


def test_a_signal_that_comes_twice_at_once_is_one():
    """As from `timeout`, which signals the process and then its group."""

    async def patient():
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            await interrupt.event.wait()

    asyncio.run(patient())


def test_a_second_signal_does_not_wait(monkeypatch):
    monkeypatch.setattr("fleetsieve.interrupt._TWICE", -1.0)

    async def impatient():
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupt.requested
            await interrupt.event.wait()
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(impatient())


def test_an_engine_that_breaks_leaves_a_journal_to_resume(inputs, study):
    async def breaks(_):
        if len(engine.started) > 1:
            raise ZeroDivisionError

    engine = Engine(inputs, breaks)
    with pytest.raises(ZeroDivisionError):
        run_study(inputs, study, engine=engine)
    resumed = Engine(inputs)
    run_study(inputs, study, engine=resumed)
    assert resumed.started[0] == engine.started[-1]


def test_a_budget_is_kept(inputs, study):
    fleet = Fleet.parse(FLEET.replace("configs:", "decision: {budget_gpu_seconds: 350}\nconfigs:"))
    found = run_study(inputs.of(fleet), study, engine=Engine(inputs), parallel=2)
    assert (found.certified, found.stop_reason) == (False, "budget")
    assert 100 <= sum(event.outcome.gpu_seconds for event in tell_events(study)) <= 350


def tell_events(study):
    return [event for event in study.events() if isinstance(event, Told)]


def test_progress_names_what_happened_and_what_it_cost(inputs, study):
    seen = []
    run_study(inputs, study, engine=Engine(inputs), parallel=2, on_progress=seen.append)
    assert seen[0].last is None
    assert len(seen[0].measuring) == 2
    tells = tell_events(study)
    shown = {p.measurements: p.last for p in seen if p.last is not None}
    assert list(shown.values()) == [(event.cell, event.outcome) for event in tells]
    assert seen[-1].gpu_seconds == sum(event.outcome.gpu_seconds for event in tells)
    assert all(p.gap == pytest.approx(p.value[1] - p.value[0]) for p in seen)
    assert {p.limit for p in seen} == {1100.0}


def test_cells_that_the_fleet_no_longer_asks_about_are_noted(inputs, study):
    run_study(inputs, study, engine=Engine(inputs))
    fleet = Fleet.parse(FLEET.replace("e2e_p99: 30}", "e2e_p99: 30}, loads: [1, 2]"))
    found = run_study(inputs.of(fleet), study, engine=Engine(inputs))
    assert any("does not ask about" in note for note in found.notes)


def test_a_grid_takes_the_place_of_any_engine(inputs, study):
    fleet = Fleet.parse("engine: {kind: vllm, model: m}\n" + FLEET)
    engine = engine_of(Inputs(fleet, inputs.grid, overridden=True), study)
    for cell, data in inputs.grid.cells.items():
        assert asyncio.run(engine.measure(cell)) == data.outcome


KILLS = int(os.environ.get("FLEETSIEVE_TEST_KILLS", "1"))


def test_a_run_killed_at_any_moment_resumes_to_the_same_decision(tmp_path, capsys):
    """One kill by default; FLEETSIEVE_TEST_KILLS sets how many."""
    whole = tmp_path / "whole.db"
    assert main(run_argv(whole, tmp_path / "whole.json")) == 0
    with Study.open_read_only(whole) as study:
        expected = told(study)
    for kill in range(KILLS):
        broken = tmp_path / f"broken{kill}.db"
        lines = random.Random(kill).randint(2, max(2, len(expected) - 2))
        kill_after(lines, broken)
        with Study.open_read_only(broken) as study:
            assert expected[: len(told(study))] == told(study)
            assert lines - 1 <= len(told(study)) < len(expected)
        assert main(run_argv(broken, tmp_path / "broken.json")) == 0
        with Study.open_read_only(broken) as study:
            assert told(study) == expected
        first, second = (
            json.loads((tmp_path / name).read_text()) for name in ("whole.json", "broken.json")
        )
        assert first == second


def run_argv(study, out):
    return ["run", str(EXAMPLE), "--study", str(study), "--seed", "3", "--json", str(out)]


def kill_after(lines, study):
    roots = [str(ROOT / name) for name in ("fleetsieve", "kernels", "measure")]
    path = os.pathsep.join([*roots, os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "fleetsieve", *run_argv(study, os.devnull)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
    )
    with process:
        for _ in range(lines):
            process.stderr.readline()
        process.kill()
