"""From the fleet file to launches, load and files, field by field."""

import asyncio
import json
from itertools import islice

import numpy as np
import pyarrow.parquet as pq
import pytest

from fleetsieve.cell import Cell
from fleetsieve.durations import launch_seconds, measuring_seconds
from fleetsieve.errors import InputError
from fleetsieve.events import Told
from fleetsieve.fleet import Fleet
from fleetsieve.journal import event_of, row_of
from fleetsieve.launches import engine_for, launch_of, node_gpus, simulated
from fleetsieve.live_engine import LiveEngine
from fleetsieve.measuring_notes import highest_levels, remarks
from fleetsieve.samples import SampleFolder
from fleetsieve.sieve import Sieve
from fleetsieve.traffic import lengths_of, load_of, rules_of, seed_of
from fleetsieve_measure import Failed, Measured
from fleetsieve_measure.bench import Finding
from fleetsieve_measure.load import ClosedLoop, OpenLoop
from fleetsieve_measure.record import Record
from fleetsieve_measure.trial import Sample

YAML = """
fleet: {gpus: 8, gpus_per_node: 4}
engine: {kind: vllm, model: m, args: {max-model-len: 100, enforce-eager: true}, env: {A: "1"}}
configs:
  - {name: tp1, gpus: 1}
  - {name: tp2, gpus: 2, args: {tensor-parallel-size: 2, max-model-len: 50}}
  - {name: sim, gpus: 4, engine: {kind: simulated, model: qwen3-8b}}
  - {name: up, gpus: 1, engine: {kind: openai, url: "http://127.0.0.1:1", model: n}}
workloads:
  - name: chat
    demand: 3
    slo: {e2e_p99: 40, ttft_mean: 2}
    requests: {prompt_tokens: 60, output_tokens: {lognormal: {median: 20, sigma: 0.5}, max: 30}}
    loads: [1, 8]
  - name: users
    demand: 3
    slo: {e2e_p50: 4}
    requests: {prompt_tokens: 6, output_tokens: 3}
    arrivals: {concurrency: true}
    loads: [1, 8]
measure: {seconds: 100, warmup_seconds: 10, launch_seconds: 50}
"""


@pytest.fixture
def fleet(monkeypatch):
    for name in ("FLEETSIEVE_API_KEY", "OPENAI_API_KEY", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return Fleet.parse(YAML, source="f.yaml")


def config(fleet, name):
    return next(c for c in fleet.configs if c.name == name)


def changed(fleet, old, new, base="."):
    assert old in YAML
    return Fleet.parse(YAML.replace(old, new), source="f.yaml", base=base)


def test_a_config_is_launched_with_its_own_args_over_those_of_the_engine(fleet):
    launch = launch_of(fleet, config(fleet, "tp2"))
    assert (launch.kind, launch.model, launch.env) == ("vllm", "m", {"A": "1"})
    assert launch.args == {
        "max-model-len": 50, "enforce-eager": True, "tensor-parallel-size": 2,
    }  # fmt: skip
    assert launch.command == ()
    assert launch_of(fleet, config(fleet, "sim")).args == {"tensor-parallel-size": 4}
    assert launch_of(fleet, config(fleet, "up")).url == "http://127.0.0.1:1"


def test_the_api_key_stays_in_the_environment(fleet, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    launch = launch_of(fleet, config(fleet, "up"))
    assert launch.api_key_env == "OPENAI_API_KEY"
    assert "secret" not in repr(launch)


def test_a_model_beside_the_fleet_file_is_launched_by_its_path(fleet, tmp_path):
    (tmp_path / "m").mkdir()
    beside = changed(fleet, "tp1, gpus: 1}", "tp1, gpus: 1}", base=tmp_path)
    assert launch_of(beside, config(beside, "tp1")).model == str(tmp_path / "m")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("model: m, ", "", "config 'tp1': engine vllm has no model"),
        ('url: "http://127.0.0.1:1", ', "", "config 'up': engine openai: url is ''"),
        ("max-model-len: 100", "port: 80", "config 'tp1'.*port"),
        ("kind: simulated, model: qwen3-8b", "kind: grid, path: g.csv", "replays a grid"),
    ],
)
def test_what_cannot_be_launched_is_refused_before_anything_runs(fleet, tmp_path, old, new, words):
    with pytest.raises(InputError, match=words):
        LiveEngine(changed(fleet, old, new), tmp_path, on_sample=lambda cell, sample, run: "")


def test_without_an_engine_the_simulated_one_stands_in_where_there_is_no_gpu(fleet, monkeypatch):
    none = changed(fleet, YAML[YAML.index("engine:") : YAML.index("configs:")], "")
    monkeypatch.setattr("fleetsieve.launches.gpus_here", lambda: 0)
    assert engine_for(none, config(none, "tp1")).kind == "simulated"
    assert node_gpus(none) == 4
    monkeypatch.setattr("fleetsieve.launches.gpus_here", lambda: 2)
    with pytest.raises(InputError, match="there is no engine for config 'tp1'"):
        engine_for(none, config(none, "tp1"))
    assert node_gpus(none) == 2


def test_lengths_are_those_of_the_workload_within_the_models_limit(fleet):
    lengths, times = lengths_of(fleet, fleet.workloads[0], {"max_model_len": 70})
    drawn = lengths.draw(np.random.default_rng(0), 4000)
    assert times is None
    assert drawn.sum(axis=1).max() == 70
    free, _ = lengths_of(fleet, fleet.workloads[0], {})
    drawn = free.draw(np.random.default_rng(0), 4000)
    assert set(drawn[:, 0]) == {60}
    assert np.median(drawn[:, 1]) == pytest.approx(20, abs=1)
    assert drawn[:, 1].max() == 30


def test_a_trace_gives_lengths_and_arrivals(fleet, tmp_path):
    (tmp_path / "t.csv").write_text("time_s,prompt_tokens,output_tokens\n0,5,1\n1,6,2\n3,7,3\n")
    old = YAML[YAML.index("    requests: {prompt_tokens: 60") : YAML.index("    loads: [1, 8]")]
    new = "    requests: {trace: t.csv}\n    arrivals: trace\n"
    traced = changed(fleet, old, new, base=tmp_path)
    workload, cell = traced.workloads[0], Cell("chat", "tp1", 2.0, "rate")
    lengths, times = lengths_of(traced, workload, {})
    assert lengths.draw(np.random.default_rng(0), 4).tolist() == [[5, 1], [6, 2], [7, 3], [5, 1]]
    load = load_of(traced, workload, cell, times, (0,))
    assert isinstance(load, OpenLoop)
    dues = list(islice(load.arrivals(), 7))
    assert dues[3] == pytest.approx(1.5), "three requests at 2 requests/s"
    assert (dues[2] - dues[0]) == pytest.approx(3 * (dues[1] - dues[0])), "the trace's own gaps"


def test_cells_are_loaded_at_their_level_and_seeded_apart(fleet):
    chat, users = fleet.workloads
    cells = [Cell("chat", "tp1", 8.0, "rate"), Cell("chat", "tp2", 8.0, "rate")]
    loads = [load_of(fleet, chat, cell, None, seed_of(cell, 0, 0)) for cell in cells]
    arrivals = [list(islice(load.arrivals(), 4000)) for load in loads if isinstance(load, OpenLoop)]
    assert [dues[-1] for dues in arrivals] == pytest.approx([500, 500], rel=0.1)
    assert arrivals[0] != arrivals[1]
    closed = load_of(fleet, users, Cell("users", "tp1", 8.0, "concurrency"), None, (0,))
    assert closed == ClosedLoop(8, stagger=10.0)


def test_rules_follow_the_file(fleet):
    rules = rules_of(fleet, fleet.workloads[0])
    assert (rules.warmup, rules.seconds, rules.longest) == (10, 100, 400)
    assert rules.drain == 80, "twice the largest SLO"
    assert rules.slo == {"e2e_p99": 40, "ttft_mean": 2}


def test_expected_costs_count_the_requests_that_percentiles_need(fleet):
    chat, users = fleet.workloads
    assert measuring_seconds(fleet, chat, 8.0) == 10 + 100
    assert measuring_seconds(fleet, chat, 2.0) == 10 + 149.5
    assert measuring_seconds(fleet, chat, 0.1) == 10 + 400
    assert measuring_seconds(fleet, users, 1.0) == 110
    assert launch_seconds(fleet, config(fleet, "tp2")) == 50
    assert launch_seconds(fleet, config(fleet, "up")) == 0


def test_a_proposal_costs_its_launch_unless_its_config_is_up(fleet):
    sieve = Sieve(fleet)
    everything = {c.name for c in fleet.configs}
    for up in ((), everything):
        (proposal,) = sieve.ask(up=up)
        chosen = config(fleet, proposal.cell.config)
        workload = next(w for w in fleet.workloads if w.name == proposal.cell.workload)
        seconds = measuring_seconds(fleet, workload, proposal.cell.load)
        launch = 0 if up else launch_seconds(fleet, chosen)
        assert proposal.gpu_seconds == pytest.approx(chosen.gpus * (seconds + launch))


# Files


def record(due, **facts):
    found = Record(due, id=f"r{due}", sent=due, end=due + 1, ok=True, tokens=2, source="usage")
    found.times.extend([due + 0.5, due + 1])
    for name, value in facts.items():
        setattr(found, name, value)
    return found


def test_every_request_is_in_the_parquet_file_of_its_cell(tmp_path):
    records = [record(100.0), record(111.0, ok=False, error="HTTP 500"), record(112.0)]
    sample = Sample(records, start=100.0, opens=110.0, closes=120.0, stopped=121.0)
    folder = SampleFolder(tmp_path / "f.study.db")
    cells = [Cell("a/b", "x", 1.0, "rate"), Cell("a_b", "x", 1.0, "rate")]
    names = {folder.write(cell, sample) for cell in cells}
    assert {path.name for path in (tmp_path / "f.study.samples").iterdir()} == names
    assert len(names) == 2
    rows = pq.read_table(folder.file(cells[0])).to_pylist()
    assert [row["due"] for row in rows] == [0.0, 11.0, 12.0]
    assert [row["measured"] for row in rows] == [False, True, True]
    assert rows[1]["error"] == "HTTP 500"
    assert rows[2]["token_times"] == [12.5, 13.0]
    metadata = pq.read_schema(folder.file(cells[0])).metadata
    assert metadata[b"workload"] == b"a/b"


def test_requests_that_cannot_be_kept_cost_no_outcome(fleet, tmp_path, monkeypatch):
    async def scenario():
        engine = LiveEngine(fleet, tmp_path / "servers", on_sample=refuse)
        outcome = Measured(values={"throughput": 1.0}, gpu_seconds=1.0)

        class Bench:
            async def measure(self, plan):
                return Finding(outcome, Sample())

        monkeypatch.setattr(engine, "_bench", Bench())
        return await engine.measure(Cell("chat", "tp1", 8.0, "rate"))

    def refuse(cell, sample, run):
        raise InputError("the disk is full")

    found = asyncio.run(scenario())
    assert isinstance(found, Measured)
    assert found.values == {"throughput": 1.0}
    assert found.summary["samples"] == "the disk is full"


def test_summaries_survive_the_journal(fleet):
    cell = Cell("chat", "tp1", 8.0, "rate")
    outcomes = [
        Measured(values={"throughput": 1.0}, gpu_seconds=1.0, summary={"a": [1, None, {"b": 0.1}]}),
        Failed(kind="oom", gpu_seconds=1.0, reason="r", summary={"log": ["x", "y"]}),
    ]
    for outcome in outcomes:
        event = Told(None, cell, outcome)
        row = row_of(event)
        json.loads(row[3])
        assert event_of(*row) == event


def test_a_journal_of_before_there_were_summaries_is_read(fleet):
    payload = '{"failed": "oom", "gpu_seconds": 1.0, "reason": "r"}'
    found = event_of("told", None, '["chat", "tp1", 8.0, "rate"]', payload)
    assert isinstance(found, Told)
    assert found.outcome == Failed(kind="oom", gpu_seconds=1.0, reason="r")


def test_the_decision_says_what_was_short_and_what_was_saved():
    def told(load, **summary):
        outcome = Measured(values={"throughput": 1.0}, gpu_seconds=1.0, summary=summary)
        return Told(None, Cell("chat", "tp1", load, "rate"), outcome)

    events = [
        told(1.0, enough_requests=False),
        told(2.0, enough_requests=True),
        told(3.0, enough_requests=False, ended_early="met", saved_gpu_seconds=40.0),
    ]
    few, saved = remarks(events)
    assert "chat on tp1 at 1;" in few
    assert saved == "1 run ended early, once decided, which saved 40 GPU-seconds"
    assert not list(remarks([told(1.0)]))


def test_a_simulation_is_named_as_one(fleet):
    assert simulated(fleet) == (
        "the numbers of sim are those of a simulated engine with qwen3-8b, not of hardware"
    )
    assert simulated(changed(fleet, "kind: simulated, model: qwen3-8b", "kind: vllm")) is None


def test_a_replica_that_keeps_its_slos_at_the_highest_load_may_carry_more():
    """Demand 60 on two GPUs, and levels up to 4: 8 is all that is known of them."""
    few = Fleet.parse(
        "fleet: {gpus: 2}\nconfigs: [{name: a, gpus: 1}]\n"
        "workloads: [{name: w, demand: 60, slo: {e2e_p50: 9}, loads: [1, 4]}]\n"
    )
    sieve = Sieve(few)
    for cell in sieve.problem.cells():
        values = {"throughput": cell.load, "e2e_p50": 1.0}
        sieve.tell(cell, Measured(values=values, gpu_seconds=1.0))
    (note,) = highest_levels(sieve.decision(), sieve.problem)
    assert note.startswith("w on a kept the SLOs at the highest of the loads")
    enough = Fleet.parse(
        few.mapping() | {"workloads": [few.mapping()["workloads"][0] | {"demand": 8}]}
    )
    again = Sieve(enough)
    for cell in again.problem.cells():
        values = {"throughput": cell.load, "e2e_p50": 1.0}
        again.tell(cell, Measured(values=values, gpu_seconds=1.0))
    assert not list(highest_levels(again.decision(), again.problem))
