"""The study file: every event survives, one writer at a time, and no other file is mistaken."""

import contextlib
import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve.cell import Cell
from fleetsieve.errors import InputError
from fleetsieve.events import Abandoned, Asked, Told
from fleetsieve.fleet import Fleet
from fleetsieve.journal import event_of, passed_over, row_of
from fleetsieve.problem import Problem
from fleetsieve.standing import Standing
from fleetsieve.study import Study
from fleetsieve_measure import Failed, Measured

TEXT = """\
fleet: {gpus: 16}
decision: {tolerance: 0.02}
engine: {kind: vllm, model: some/model, url: http://here}
configs:
  - {name: tp1, gpus: 1, features: {tp: 1}, args: {max-num-seqs: 8}}
  - {name: tp2, gpus: 2, features: {tp: 2}}
workloads:
  - name: chat
    demand: 12
    slo: {e2e_p99: 30}
    requests: {prompt_tokens: 100, output_tokens: 10}
    arrivals: poisson
    loads: [1, 2]
  - {name: batch, demand: 1, loads: [1, 2]}
"""
CELL = Cell("chat", "tp1", 0.1 + 0.2, "rate")
EVENTS = [
    Asked(ticket=0, cell=CELL, gpu_seconds=600.0, expected_gap_reduction=1 / 3, score=5e-324),
    Asked(ticket=1, cell=Cell("chat", "tp2", 64.0, "concurrency"), gpu_seconds=1.0,
          expected_gap_reduction=0.0, score=-math.inf),
    Told(
        ticket=0,
        cell=CELL,
        outcome=Measured(
            values={"throughput": 0.1, "e2e_p99": math.inf},
            se={"e2e_p99": 1 / 7},
            gpu_seconds=601.7,
            saturated=True,
            requests=300,
        ),
    ),
    Abandoned(ticket=1),
    Told(ticket=None, cell=CELL, outcome=Failed(kind="oom", gpu_seconds=3.0, reason='"x"\nü')),
]  # fmt: skip


def fleet(old="", new="", text=TEXT):
    assert not old or text.count(old) == 1
    return Fleet.parse(text.replace(old, new) if old else text, source="f.yaml")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "f.study.db"


def refusal(call, *arguments):
    with pytest.raises(InputError) as caught:
        call(*arguments).close()
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(path, events=EVENTS, seed=7, of=None):
    with Study.open(path, of or fleet(), seed) as study:
        for event in events:
            study.append(event)


def test_the_journal_reads_back_as_it_was_written(path):
    write(path)
    with Study.open(path, fleet()) as study:
        assert study.events() == EVENTS
        assert study.seed == 7


floats = st.floats(allow_nan=False)


@given(
    load=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    values=st.dictionaries(st.text(), floats),
    cost=floats,
    text=st.text(),
)
def test_every_float_and_text_survives_exactly(load, values, cost, text):
    cell = Cell(text, "c", load, "rate")
    outcome = Measured(values=values, se=values, gpu_seconds=cost)
    for event in (
        Told(ticket=3, cell=cell, outcome=outcome),
        Told(ticket=3, cell=cell, outcome=Failed(kind="timeout", gpu_seconds=cost, reason=text)),
        Asked(ticket=3, cell=cell, gpu_seconds=cost, expected_gap_reduction=cost, score=cost),
    ):
        assert event_of(*row_of(event)) == event


def test_a_measured_nan_is_still_one(path):
    outcome = Measured(values={"throughput": math.nan}, gpu_seconds=1.0)
    write(path, [Told(ticket=None, cell=CELL, outcome=outcome)])
    with Study.open_read_only(path) as study:
        (event,) = study.events()
    assert isinstance(event, Told)
    assert isinstance(event.outcome, Measured)
    assert math.isnan(event.outcome.values["throughput"])


def test_an_event_can_be_read_while_the_writer_goes_on(path):
    with Study.open(path, fleet()) as writer, Study.open_read_only(path) as reader:
        assert reader.events() == []
        writer.append(EVENTS[0])
        assert reader.events() == EVENTS[:1]
        writer.append(EVENTS[1])
        assert reader.events() == EVENTS[:2]
        assert reader.fleet.mapping() == fleet().mapping()


def test_the_file_alone_has_all_even_if_somebody_reads_as_the_writer_ends(path):
    write(path, EVENTS[:1])
    with Study.open_read_only(path) as reader:
        assert reader.events() == EVENTS[:1]
        write(path, EVENTS[1:])
        copy = path.with_name("copy.study.db")
        copy.write_bytes(path.read_bytes())
    with Study.open_read_only(copy) as study:
        assert study.events() == EVENTS


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("", "", True),
        ("tolerance: 0.02", "tolerance: 0.5, budget_gpu_seconds: 9, stop: regret", True),
        ("url: http://here", "url: http://there", True),
        ("gpus: 16", "gpus: 8", False),
        ("tolerance: 0.02", "tolerance: 0.02, confidence: 0.9", False),
        ("demand: 12", "demand: 3", False),
        ("e2e_p99: 30", "e2e_p99: 3", False),
        ("{name: tp2, gpus: 2, features: {tp: 2}}", "{name: tp4, gpus: 4, features: {tp: 4}}",
         False),
    ],
)  # fmt: skip
def test_where_a_run_stood_is_told_for_the_question_that_it_answered(path, old, new, kept):
    standings = [Standing(0, 0.0, 0.0, 1.0), Standing(3, 0.1 + 0.2, 1 / 3, 2 / 3)]
    with Study.open(path, fleet()) as study:
        for standing in reversed(standings):
            study.stand(standing)
        assert study.standings() == standings
    with Study.open(path, fleet(old, new)) as study:
        assert study.standings() == (standings if kept else [])
    with Study.open(path, fleet()) as study:
        assert study.standings() == standings


def test_a_study_of_an_earlier_version_has_no_standings_until_it_is_resumed(path):
    write(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE standings")
    with Study.open_read_only(path) as study:
        assert study.standings() == []
    with Study.open(path, fleet()) as study:
        study.stand(Standing(0, 0.0, 0.0, 1.0))
        assert len(study.standings()) == 1


def test_a_study_that_cannot_be_written_says_so(path):
    write(path)
    with (
        Study.open_read_only(path) as study,
        pytest.raises(InputError, match="cannot be written: attempt to write a readonly database"),
    ):
        study.append(EVENTS[0])


def test_a_folder_that_cannot_be_written_can_be_read(path, monkeypatch):
    write(path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Study.open_read_only(path) as study:
        assert study.events() == EVENTS


def test_a_second_writer_is_refused_until_the_first_ends(path):
    with Study.open(path, fleet()):
        message = refusal(Study.open, path, fleet())
        assert message.startswith(f"{path} is being written by another process")
    Study.open(path, fleet()).close()


def test_only_the_study_is_left_behind(path):
    write(path)
    refusal(Study.open, path, fleet(), 8)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_seed_is_the_first_writers(path):
    Study.open(path, fleet()).close()
    Study.open(path, fleet(), 0).close()
    assert "begun with seed 0, not 1; leave the seed out" in refusal(Study.open, path, fleet(), 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gpus: 16", "gpus: 8"),
        ("tolerance: 0.02", "tolerance: 0.05"),
        ("demand: 12", "demand: 3"),
        ("e2e_p99: 30", "e2e_p99: 3, ttft_mean: 1"),
        ("    loads: [1, 2]\n", "    loads: [1, 2, 4]\n"),
        ("  - {name: batch, demand: 1, loads: [1, 2]}\n", ""),
        ("{name: tp2, gpus: 2, features: {tp: 2}}", "{name: tp4, gpus: 4, features: {tp: 4}}"),
        ("url: http://here", "url: http://there"),
    ],
)  # fmt: skip
def test_what_a_cell_does_not_rest_on_may_change(path, old, new):
    write(path)
    with Study.open(path, fleet(old, new)) as study:
        assert study.events() == EVENTS
        assert study.fleet.mapping() == fleet(old, new).mapping()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("{name: tp2, gpus: 2,", "{name: tp2, gpus: 4,", "config 'tp2' has other gpus than"),
        ("features: {tp: 1}", "features: {tp: 3}", "config 'tp1' has other features than"),
        ("max-num-seqs: 8", "max-num-seqs: 9", "config 'tp1' has other args than"),
        ("some/model", "other/model", "config 'tp1' has other engine than"),
        ("prompt_tokens: 100", "prompt_tokens: 200", "workload 'chat' has other requests than"),
        ("arrivals: poisson", "arrivals: constant", "workload 'chat' has other arrivals than"),
    ],
)
def test_what_a_cell_rests_on_may_not_change(path, old, new, named):
    write(path)
    message = refusal(Study.open, path, fleet(old, new))
    assert message.startswith(f"f.yaml: {named} in {path}")
    with Study.open_read_only(path) as study:
        study.check(fleet())
        assert refusal(study.check, fleet(old, new)) == message


def test_a_definition_is_remembered_while_it_is_absent(path):
    write(path)
    without = "  - {name: tp2, gpus: 2, features: {tp: 2}}\n"
    Study.open(path, fleet(without, "")).close()
    message = refusal(Study.open, path, fleet("{name: tp2, gpus: 2,", "{name: tp2, gpus: 8,"))
    assert "config 'tp2' has other gpus" in message


def test_a_grid_may_lie_elsewhere(path):
    grid = "{kind: grid, path: %s}"
    old = "{kind: vllm, model: some/model, url: http://here}"
    Study.open(path, fleet(old, grid % "a.csv")).close()
    with Study.open(path, fleet(old, grid % "b.csv")) as study:
        for event in EVENTS:
            study.append(event)
    assert "other engine" in refusal(Study.open, path, fleet())


def test_what_was_never_measured_may_become_something_else(path):
    """A first run that ended before its first cell leaves a study, and a file to correct."""
    old, new = "{kind: vllm, model: some/model, url: http://here}", "{kind: sglang, model: other}"
    with Study.open(path, fleet()) as study:
        study.append(next(event for event in EVENTS if isinstance(event, Asked)))
    with Study.open(path, fleet(old, new)) as study:
        for event in EVENTS:
            study.append(event)
    assert "other engine" in refusal(Study.open, path, fleet())
    Study.open(path, fleet(old, new)).close()


def test_a_text_file_is_no_study_and_stays_as_it_is(path):
    path.write_text(TEXT * 100)
    for call in ((Study.open, path, fleet()), (Study.open_read_only, path)):
        assert "is no readable study: file is not a database" in refusal(*call)
    assert path.read_text() == TEXT * 100


def test_another_database_is_no_study_and_stays_as_it_is(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE studies (x)")
    connection.close()
    before = path.read_bytes()
    for call in ((Study.open, path, fleet()), (Study.open_read_only, path)):
        assert "is no study but another database" in refusal(*call)
    assert path.read_bytes() == before


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_study_is_refused(path, share):
    write(path, EVENTS * 100)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    for call in ((Study.open, path, fleet()), (Study.open_read_only, path)):
        assert "is no readable study" in refusal(*call)


def damage(path, statement, *values):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement, values).rowcount == 1


DEEP = "[" * 100_000
STORED = [
    ("fleet", "{"), ("fleet", DEEP), ("fleet", "[]"), ("fleet", b'{"\xff": 1}'), ("fleet", b"\xff"),
    ("fleet", "{}"), ("seed", "x"), ("seed", "1e9"), ("grid", b"\xff"), ("base", b"\xff"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), STORED)
def test_what_is_stored_beside_the_journal_is_refused_in_one_sentence_where_damaged(
    path, key, value
):
    write(path)
    # As text, whatever bytes it holds: so a damaged page reads.
    damage(path, "UPDATE meta SET value = CAST(? AS TEXT) WHERE key = ?", value, key)
    with Study.open_read_only(path) as study:
        said = refusal(lambda: (study.seed, study.version, study.grid, study.fleet))
    assert re.fullmatch(rf"{re.escape(str(path))}[^\n]{{,400}}", said)


PAYLOADS = {
    "values": [
        "x",
        [],
        1,
        None,
        {"throughput": "x"},
        {"throughput": None},
        {"throughput": 10**400},
    ],
    "se": ["x", [], {"e2e_p99": []}],
    "gpu_seconds": ["x", None, [], 10**400],
    "requests": ["x", 1.5, []],
    "summary": ["x", [], None, {"launch_seconds": "x"}, {"saved_gpu_seconds": 10**400}],
}
CELLS = [
    "{}", "[]", "1", "null", '["a", "b", 1.0]', '[[], "b", 1.0, "rate"]', '["a", 3, 1.0, "rate"]',
    '["a", "b", 0, "rate"]', '["a", "b", "nan", "rate"]', '["a", "b", Infinity, "rate"]',
    '["a", "b", 1.0, []]', '["a", "b", 1.0, {}]', DEEP,
]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "text"),
    [("cell", text) for text in CELLS]
    + [("payload", text) for text in ("[]", "1", "null", '"x"', DEEP)]
    + [
        ("payload", json.dumps({**json.loads(row_of(EVENTS[2])[3]), key: value}))
        for key, values in PAYLOADS.items()
        for value in values
    ],
)
def test_a_row_that_stands_for_no_event_is_refused_in_one_sentence(path, column, text):
    write(path)
    damage(path, f"UPDATE journal SET {column} = ? WHERE seq = 3", text)
    with Study.open_read_only(path) as study:
        said = refusal(study.events)
    assert re.fullmatch(rf"{re.escape(str(path))} is no readable study: [^\n]{{,300}}", said)


def test_a_study_of_another_format_is_refused(path):
    write(path)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    connection.close()
    for call in ((Study.open, path, fleet()), (Study.open_read_only, path)):
        assert "has the study format 99, and this version reads 1" in refusal(*call)


def test_an_event_of_another_version_is_refused(path):
    write(path)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE journal SET kind = 'paused' WHERE seq = 2")
    connection.close()
    with Study.open_read_only(path) as study, pytest.raises(InputError, match="an event 'paused'"):
        study.events()


def test_a_study_must_exist_to_be_read(path, tmp_path):
    assert "does not exist" in refusal(Study.open_read_only, path)
    assert "is no file" in refusal(Study.open_read_only, tmp_path)
    path.touch()
    assert "is empty" in refusal(Study.open_read_only, path)
    Study.open(path, fleet()).close()


def test_a_study_needs_a_folder(tmp_path):
    message = refusal(Study.open, tmp_path / "missing" / "a.db", fleet())
    assert "cannot be opened: No such file or directory" in message
    assert "cannot be opened" in refusal(Study.open, tmp_path, fleet())


WRITER = """
import sys
from fleetsieve.events import Abandoned
from fleetsieve.fleet import Fleet
from fleetsieve.study import Study
study = Study.open(sys.argv[1], Fleet.parse(sys.argv[2]))
for ticket in range(10**6):
    study.append(Abandoned(ticket))
    print(ticket, flush=True)
"""


def test_what_was_written_survives_a_kill_and_the_lock_does_not(path):
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(str(root / name) for name in ("fleetsieve", "kernels", "measure"))
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), TEXT],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    with process:
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        written = 20 + len(process.stdout.read().splitlines())
    with Study.open(path, fleet()) as study:
        events = study.events()
    assert len(events) in (written, written + 1), "one may be written and not yet announced"
    assert events == [Abandoned(ticket) for ticket in range(len(events))]


def test_events_of_what_the_fleet_no_longer_asks_are_noted():
    problem = Problem.build(fleet("    loads: [1, 2]\n", "    loads: [1]\n"), None)
    here, gone = Cell("chat", "tp1", 1.0, "rate"), Cell("chat", "tp1", 2.0, "rate")
    asked = [
        Asked(ticket=t, cell=c, gpu_seconds=1.0, expected_gap_reduction=0.0, score=0.0)
        for t, c in enumerate((here, gone, here))
    ]
    assert passed_over([*asked, Abandoned(1)], problem) == (
        "the study has measurements that the fleet does not ask about, 1 in all, which are passed "
        "over: chat on tp1"
    )
    assert passed_over([asked[0], asked[2], Abandoned(0)], problem) is None
