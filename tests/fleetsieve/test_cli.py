"""The command line: exit codes, one sentence for wrong input, and JSON alone where asked."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from fleetsieve.cli import main
from fleetsieve.decision import Decision
from fleetsieve.fleet import Fleet
from fleetsieve.schemas import ReplayJson

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/qwen3-32b-h100"
FLEET = """\
fleet: {gpus: 4}
engine: {kind: grid, path: g.csv}
configs:
  - {name: x, gpus: 1, features: {tp: 1}}
  - {name: y, gpus: 2, features: {tp: 2}}
workloads:
  - {name: v1.chat, demand: 2, slo: {e2e_p99: 30}}
"""
GRID = """\
workload,config,gpus,tp,rate,throughput,e2e_p99,gpu_seconds,status
v1.chat,x,1,1,0.5,0.5,10,100,ok
v1.chat,x,1,1,1,0.9,40,100,ok
v1.chat,y,2,2,0.5,0.5,5,200,ok
v1.chat,y,2,2,1,1,9,200,ok
v1.chat,y,2,2,2,1.8,29,200,ok
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(FLEET)
    Path("g.csv").write_text(GRID)
    return tmp_path


def changed(text, old, new):
    assert text.count(old) >= 1
    return text.replace(old, new, 1)


def refusal(capsys, *argv):
    """The one line on stderr of a command that ends with exit code 2."""
    assert main([str(part) for part in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def decision_in(text):
    """The decision in JSON text, which holds its schema's keys and no others."""
    adapter = TypeAdapter(Decision)
    data = json.loads(text)
    found = adapter.validate_python(data)
    assert {"schema": "fleetsieve.decision/1", **adapter.dump_python(found, mode="json")} == data
    return found


def output(capsys, code, *argv):
    assert main([str(part) for part in argv]) == code
    return capsys.readouterr()


WRONG_FLEETS = {
    "unknown key": ("gpus: 4", "gpu: 4", ["f.yaml: fleet: the key 'gpu'", "'gpus'"]),
    "workload not in the grid": ("v1.chat", "v2", ["workload 'v2' has no row", "v1.chat"]),
    "config not in the grid": ("name: x", "name: z", ["config 'z' has no row", "x, y"]),
    "gpus that disagree": ("gpus: 2, f", "gpus: 4, f", ["'y' has gpus 4", "has 2"]),
    "SLO the grid lacks": ("e2e_p99", "ttft_p99", ["SLO on ttft_p99", "but e2e_p99"]),
    "infinite demand": ("demand: 2", "demand: .inf", ["demand is inf", "finite number"]),
    "NaN demand": ("demand: 2", "demand: .nan", ["demand is nan", "finite number"]),
    "negative demand": ("demand: 2", "demand: -2", ["demand is -2", "at least 0"]),
    "duplicate config": ("name: y", "name: x", ["the name 'x' is given twice"]),
    "duplicate key": ("demand: 2", "demand: 2, demand: 3", ["'demand' is given twice"]),
    "YAML syntax": ("gpus: 4}", "gpus: 4", ["f.yaml, line", "give valid YAML"]),
    "grid that is not there": ("path: g.csv", "path: h.csv", ["h.csv does not exist"]),
    "nothing to measure with": (
        "{kind: grid, path: g.csv}",
        "{kind: vllm, model: m}",
        ["'v1.chat' has no loads", "there is no grid"],
    ),
    "steering a terminal": ("v1.chat", '"a\\eb"', ["no control characters"]),
}


@pytest.mark.parametrize("case", WRONG_FLEETS)
def test_a_wrong_fleet_is_one_sentence(folder, capsys, case):
    old, new, named = WRONG_FLEETS[case]
    text = changed(FLEET, old, new)
    if "engine" in case:
        text = changed(text, "e2e_p99: 30}}", "e2e_p99: 30}, loads: [1]}")
    Path("f.yaml").write_text(text)
    message = refusal(capsys, "run", "f.yaml")
    assert all(part in message for part in named), message
    assert not Path("f.study.db").exists()


WRONG_GRIDS = {
    "NaN": (",10,100", ",nan,100", ["line 2: e2e_p99 is 'nan'"]),
    "negative latency": (",10,100", ",-1,100", ["line 2: e2e_p99 is '-1'", "at least 0"]),
    "negative throughput": ("0.5,0.5,10", "0.5,-3,10", ["line 2: throughput is '-3'"]),
    "no number": ("0.5,0.5,10", "0.5,fast,10", ["line 2: throughput is 'fast'"]),
    "no load column": (",rate,", ",speed,", ["g.csv has no load column; add rate"]),
    "duplicate column": (",tp,", ",gpus,", ["has the column 'gpus' twice"]),
    "only a header": (GRID[GRID.index("v1.chat") :], "", ["g.csv has no rows"]),
    "unknown status": ("100,ok", "100,fine", ["line 2: status is 'fine'"]),
    "gpus that differ": ("x,1,1,1,", "x,2,1,1,", ["line 3: gpus is '2'", "had 1"]),
    "ragged": (",100,ok", ",100", ["line 2 has 8 cells for 9 columns"]),
}


@pytest.mark.parametrize("case", WRONG_GRIDS)
def test_a_wrong_grid_is_one_sentence(folder, capsys, case):
    old, new, named = WRONG_GRIDS[case]
    Path("g.csv").write_text(changed(GRID, old, new))
    message = refusal(capsys, "run", "f.yaml")
    assert all(part in message for part in named), message


def test_a_row_with_both_loads_is_refused(folder, capsys):
    lines = GRID.replace(",rate,", ",rate,concurrency,").splitlines()
    wide = [lines[0], *(line.replace(",0.5,", ",0.5,8,", 1) for line in lines[1:2])]
    Path("g.csv").write_text("\n".join(wide))
    assert "line 2 has both rate and concurrency" in refusal(capsys, "plan", "f.yaml")


@pytest.mark.parametrize("name", ["f.yaml", "g.csv"])
def test_an_empty_file_and_one_that_is_no_text_are_refused(folder, capsys, name):
    Path(name).write_bytes(b"")
    assert f"{name} is empty" in refusal(capsys, "run", "f.yaml")
    Path(name).write_bytes(b"\xff\xfe\x00\x80" * 8)
    assert f"{name} is not UTF-8 text" in refusal(capsys, "run", "f.yaml")


def test_an_oversized_fleet_is_refused_before_it_is_read(folder, capsys):
    with Path("f.yaml").open("wb") as file:
        file.truncate(200_000_000)
    assert "f.yaml has 200000000 bytes" in refusal(capsys, "run", "f.yaml")


def test_a_bomb_of_aliases_is_refused(folder, capsys):
    bomb = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]" for n in range(1, 9)]
    Path("f.yaml").write_text("\n".join(bomb))
    assert "f.yaml expands to" in refusal(capsys, "run", "f.yaml")


WRONG_OPTIONS = {
    "unknown workload": (["--demand", "v1.chap=3"], ["'v1.chap'", "did you mean 'v1.chat'?"]),
    "no number": (["--demand", "v1.chat=many"], ["--demand is 'v1.chat=many'"]),
    "no assignment": (["--demand", "7"], ["--demand is '7'"]),
    "infinite demand": (["--demand", "v1.chat=inf"], ["demand is inf"]),
    "no metric": (["--slo", "v1.chat=3"], ["--slo is 'v1.chat=3'", "WORKLOAD.METRIC"]),
    "metric the grid lacks": (["--slo", "v1.chat.ttft_p50=3"], ["SLO on ttft_p50"]),
    "negative SLO": (["--slo", "v1.chat.e2e_p99=-3"], ["slo.e2e_p99 is -3.0"]),
    "sweep of something else": (["--sweep", "tp=1..4"], ["--sweep is 'tp=1..4'"]),
    "descending sweep": (["--sweep", "gpus=9..8"], ["gpus=FIRST..LAST"]),
    "endless sweep": (["--sweep", "gpus=1..99999"], ["at most 1000"]),
    "sweep and gpus": (["--sweep", "gpus=1..2", "--gpus", "4"], ["give one of them"]),
    "JSON into a directory": (["--json", "."], ["--json is '.', a directory"]),
    "JSON into nowhere": (["--json", "no/where.json"], ["whose folder does not exist"]),
}


@pytest.mark.parametrize("case", WRONG_OPTIONS)
def test_a_wrong_option_of_decide_is_one_sentence(folder, capsys, case):
    options, named = WRONG_OPTIONS[case]
    message = refusal(capsys, "decide", "f.yaml", "--grid", "g.csv", *options)
    assert all(part in message for part in named), message


def test_decide_needs_something_to_decide_from(folder, capsys):
    assert "give --grid GRID or --study DB" in refusal(capsys, "decide", "f.yaml")
    message = refusal(capsys, "decide", "f.yaml", "--study", "none.db")
    assert "none.db does not exist" in message
    assert "g.csv is no readable study" in refusal(capsys, "decide", "f.yaml", "--study", "g.csv")


def test_a_file_that_is_no_study_is_refused_and_kept(folder, capsys):
    assert "g.csv is no readable study" in refusal(capsys, "run", "f.yaml", "--study", "g.csv")
    assert Path("g.csv").read_text() == GRID
    assert sorted(p.name for p in folder.iterdir()) == ["f.yaml", "g.csv"]


@pytest.mark.parametrize("budget", ["nan", "inf", "0", "-1"])
def test_a_budget_is_a_number_above_0(folder, capsys, budget):
    assert "budget_gpu_seconds" in refusal(capsys, "run", "f.yaml", "--budget", budget)


@pytest.mark.parametrize(
    "argv",
    [
        ["run"],
        ["run", "f.yaml", "--zzz"],
        ["run", "f.yaml", "--stop", "never"],
        ["run", "f.yaml", "--parallel", "0"],
        ["run", "f.yaml", "--budget", "much"],
        ["replay", "f.yaml", "g.csv", "--orders", "0"],
        ["schema", "grid"],
        ["simulate"],
    ],
)
def test_wrong_usage_is_one_sentence_that_names_the_help(folder, capsys, argv):
    assert " --help" in refusal(capsys, *argv)


def test_what_a_file_says_cannot_steer_the_terminal(folder, capsys):
    Path("g.csv").write_text(GRID.replace("v1.chat", "\x1b[2Jchat"))
    assert "\x1b" not in refusal(capsys, "run", "f.yaml")


def test_a_bug_says_so_and_exits_with_1(folder, capsys, monkeypatch):
    monkeypatch.setattr(Fleet, "load", lambda _: 1 / 0)
    out, err = output(capsys, 1, "plan", "f.yaml")
    assert out == ""
    assert "ZeroDivisionError" in err
    assert err.splitlines()[-1].startswith("this is a bug in fleetsieve")


def test_help_names_the_commands_that_exist(capsys):
    out, err = output(capsys, 0, "--help")
    assert err == ""
    for command in ("run", "plan", "decide", "replay", "export", "report", "watch", "schema"):
        assert f"\n  {command} " in out
        assert f"Usage: fleetsieve {command}" in output(capsys, 0, command, "--help").out


def test_wrong_input_is_refused_before_jax_is_imported(folder):
    code = (
        "import sys; from fleetsieve.cli import main; "
        "code = main(['run', 'none.yaml']); assert code == 2; "
        "print({'jax', 'pandas', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def environment():
    roots = [str(ROOT / name) for name in ("fleetsieve", "kernels", "measure")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*roots, os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize("name", ["fleet", "decision", "replay"])
def test_a_schema_is_json_alone(capsys, name):
    out, err = output(capsys, 0, "schema", name)
    schema = json.loads(out)
    assert err == ""
    assert schema["type"] == "object"
    assert schema["$schema"].startswith("https://json-schema.org/")


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m fleetsieve schema decision; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({command}) | true"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "0\n"


def test_a_terminal_that_knows_only_ascii_is_served(folder, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["plan", "f.yaml"]) == 0
    assert b"0.5\\u20131 req/s" in written.getvalue()


def test_plan_measures_nothing_and_adds_up(folder, capsys):
    Path("f.yaml").write_text(changed(FLEET, "gpus: 4", "gpus: 4, price_per_gpu_hour: 9"))
    out, err = output(capsys, 0, "plan", "f.yaml", "--json", "-")
    found = json.loads(out)
    assert (found["cells"], found["gpu_seconds"], found["price"]) == (5, 800, 2.0)
    assert found["next"]
    assert "5 cells" in err
    assert sorted(p.name for p in folder.iterdir()) == ["f.yaml", "g.csv"]


def test_run_certifies_and_its_study_decides_the_same(folder, capsys):
    rules = ["--stop", "gap", "--inference", "map", "--seed", "5", "--parallel", "2"]
    out, err = output(capsys, 0, "run", "f.yaml", *rules, "--json", "run.json")
    assert out.startswith("Certified")
    found = decision_in(Path("run.json").read_text())
    assert found.certified
    assert found.stop_reason == "gap"
    assert err.count("\n") == 1 + found.measurements, "a title and a line per measurement"
    out, _ = output(capsys, 0, "decide", "f.yaml", "--study", "f.study.db", "--json", "-")
    again = decision_in(out)
    assert again.stop_reason is None
    assert again.allocation == found.allocation
    assert again.value == found.value


def test_a_budget_ends_a_run_with_3(folder, capsys):
    Path("f.yaml").write_text(changed(FLEET, "demand: 2", "demand: 9"))
    out, _ = output(capsys, 3, "run", "f.yaml", "--budget", "200", "--json", "-")
    found = decision_in(out)
    assert (found.certified, found.stop_reason) == (False, "budget")
    assert 0 < found.gpu_seconds <= 200


def test_what_of_the_grid_is_not_used_is_one_note(folder, capsys):
    Path("g.csv").write_text(GRID + "v1.chat,z,1,1,0.5,0.5,10,100,ok\n")
    note = "Note: g.csv: not used are configs z"
    assert note in output(capsys, 0, "plan", "f.yaml").out
    out, _ = output(capsys, 0, "decide", "f.yaml", "--grid", "g.csv", "--json", "d.json")
    assert note in out
    assert decision_in(Path("d.json").read_text()).notes == (note.removeprefix("Note: "),)


def test_decide_from_all_rows_is_certain(folder, capsys):
    out, _ = output(capsys, 0, "decide", "f.yaml", "--grid", "g.csv", "--json", "-")
    found = decision_in(out)
    # x holds its SLO up to 0.5 req/s, y up to 1.8: two y give 3.6 of the 2 asked for.
    assert (found.measurements, found.gap, found.value.conservative) == (5, 0, 1)


def test_the_options_of_decide_change_the_question(folder, capsys):
    def value(*options):
        out, _ = output(capsys, 0, "decide", "f.yaml", "--grid", "g.csv", "--json", "-", *options)
        return json.loads(out)["value"]["conservative"]

    assert value("--demand", "v1.chat=7.2") == pytest.approx(0.5)
    assert value("--gpus", "2") == pytest.approx(0.9)
    # y takes 9 s at 1 req/s and 5 s at 0.5, x takes 10 s at its lowest load: two y are left.
    assert value("--slo", "v1.chat.e2e_p99=9.5", "--demand", "v1.chat=4") == pytest.approx(0.5)
    assert value("--slo", "v1.chat.e2e_p99=7") == pytest.approx(0.5)


def test_a_sweep_finds_the_smallest_budget_that_serves_everything(folder, capsys):
    argv = ["decide", "f.yaml", "--grid", "g.csv", "--sweep", "gpus=1..5"]
    out, _ = output(capsys, 0, *argv, "--json", "-")
    found = json.loads(out)
    # One GPU holds x alone; two: y, 1.8 of 2; three: y and x, 2.3.
    values = [point["value"]["conservative"] for point in found["budgets"]]
    assert values == pytest.approx([0.25, 0.9, 1, 1, 1])
    assert found["smallest"] == 3
    out, _ = output(capsys, 0, *argv)
    assert "The smallest budget that serves every demand: 3 GPUs." in out


def test_replay_compares_policies(folder, capsys):
    argv = ["replay", "f.yaml", "g.csv", "--policy", "random", "--orders", "1", "--json", "r.json"]
    out, _ = output(capsys, 0, *argv)
    assert "random" in out
    found = TypeAdapter(ReplayJson).validate_python(json.loads(Path("r.json").read_text()))
    assert (found.cells, found.grid_gpu_seconds, found.oracle.value) == (5, 800, 1)


def test_an_unknown_policy_is_refused(folder, capsys):
    assert "'best'" in refusal(capsys, "replay", "f.yaml", "g.csv", "--policy", "best")
