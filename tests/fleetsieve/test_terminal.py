"""The terminal: one line per mistake, examples that run, quiet where asked, 80 columns."""

import contextlib
import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleetsieve import examples
from fleetsieve.cli import main

ROOTS = [str(Path(__file__).parents[2] / name) for name in ("fleetsieve", "kernels", "measure")]
FLEET = """\
fleet: {gpus: 4, price_per_gpu_hour: 36}
engine: {kind: vllm, model: m}
configs:
  - {name: tp1, gpus: 1, features: {tp: 1}}
  - {name: tp2, gpus: 2, features: {tp: 2}, args: {tensor-parallel-size: 2}}
workloads:
  - {name: chat, demand: 4, slo: {e2e_p99: 30}}
"""
GRID = """\
workload,config,gpus,tp,rate,throughput,e2e_p99,gpu_seconds,status
chat,tp1,1,1,0.5,0.5,10,100,ok
chat,tp1,1,1,1,0.9,40,100,ok
chat,tp2,2,2,1,1,9,200,ok
chat,tp2,2,2,2,1.8,29,200,ok
"""
COMMANDS = ("run", "plan", "decide", "replay", "export", "report", "watch", "probe", "schema")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET)
    Path("grid.csv").write_text(GRID)
    return tmp_path


def output(capsys, code, *argv):
    capsys.readouterr()
    assert main(list(argv)) == code
    return capsys.readouterr()


def refusal(capsys, *argv):
    out, err = output(capsys, 2, *argv)
    assert out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err)
    return err


def python(*arguments, **environment):
    path = os.pathsep.join([*ROOTS, os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


NEAREST = {
    "option": (["run", "fleet.yaml", "--bugdet", "3"], "--budget"),
    "command": (["rnu"], "'run'"),
    "choice": (["run", "fleet.yaml", "--stop", "regert"], "'regret'"),
    "format": (["export", "x.db", "--to", "kubernets"], "'kubernetes'"),
    "document": (["schema", "fleat"], "'fleet'"),
    "policy": (["replay", "fleet.yaml", "grid.csv", "--policy", "bisekt"], "'bisect'"),
    "workload": (
        ["decide", "fleet.yaml", "--grid", "grid.csv", "--demand", "chta=3"],
        "'chat'",
    ),
    "metric": (
        ["decide", "fleet.yaml", "--grid", "grid.csv", "--slo", "chat.e2e_99=3"],
        "'e2e_p99'",
    ),
}


@pytest.mark.parametrize("case", NEAREST)
def test_a_wrong_name_is_answered_with_the_nearest_one_in_one_line(folder, capsys, case):
    argv, nearest = NEAREST[case]
    assert f"did you mean {nearest}" in refusal(capsys, *argv)


NEAREST_IN_FILES = {
    "key": ("gpus: 4", "gpsu: 4", "'gpus'"),
    "metric": ("e2e_p99", "e2e-p99", "'e2e_p99'"),
    "config": ("name: tp2", "name: tp22", "'tp2'"),
    "workload": ("name: chat", "name: chatt", "'chat'"),
}


@pytest.mark.parametrize("case", NEAREST_IN_FILES)
def test_a_wrong_name_in_a_fleet_file_too(folder, capsys, case):
    old, new, nearest = NEAREST_IN_FILES[case]
    assert FLEET.count(old) == 1
    Path("fleet.yaml").write_text(FLEET.replace(old, new))
    message = refusal(capsys, "plan", "fleet.yaml", "--grid", "grid.csv")
    assert f"did you mean {nearest}?" in message


@pytest.mark.parametrize(
    "argv",
    [
        ["run"],
        ["run", "fleet.yaml", "--budget"],
        ["run", "fleet.yaml", "--budget", "much"],
        ["run", "fleet.yaml", "extra"],
        ["run", "--quiet=3", "fleet.yaml"],
        ["export", "x.db"],
        ["\x1b[2J\nx"],
        ["run", "fleet.yaml", "--\x1b[2J\nx"],
        ["run", "fleet.yaml", "--seed", "9" * 400],
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(folder, capsys, argv):
    message = refusal(capsys, *argv)
    assert "\x1b" not in message
    assert "did you mean" in message or " --help" in message


def test_no_command_is_the_help_and_wrong(capsys):
    out, err = output(capsys, 2)
    assert out == ""
    assert err == output(capsys, 0, "--help").out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_fits_80_columns_and_ends_with_examples(capsys, command):
    text = output(capsys, 0, command, "--help").out
    shown = [line.strip() for line in text.splitlines()]
    assert list(examples.lines(command)) == [s for s in shown if s.startswith("fleetsieve ")]
    assert examples.lines(command)
    assert max(map(len, text.splitlines())) <= 80


def test_the_examples_run(folder, capsys):
    port = free_port()
    for command in ("plan", "run", "decide", "replay", "export", "report", "schema"):
        for line in examples.lines(command):
            name, *argv = shlex.split(line)
            assert name == "fleetsieve"
            output(capsys, 0, *argv)
    with simulated(port):
        for line in examples.lines("probe"):
            argv = shlex.split(line.replace(":8000", f":{port}"))[1:]
            assert json.loads(output(capsys, 0, *argv).out)["ok"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def simulated(port):
    """A simulated server at `port`."""
    command = ["-m", "fleetsieve_measure.simulated", "--model", "llama-3.1-8b", "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        end = time.monotonic() + 20
        while not answers(port) and time.monotonic() < end:
            time.sleep(0.05)
        yield
        process.terminate()


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_quiet_shows_nothing_and_decides_the_same(folder, capsys):
    argv = ["run", "fleet.yaml", "--grid", "grid.csv", "--json"]
    assert output(capsys, 0, *argv, "quiet.json", "--study", "q.db", "--quiet") == ("", "")
    out, err = output(capsys, 0, *argv, "loud.json", "--study", "l.db")
    assert out
    assert err
    assert Path("quiet.json").read_text() == Path("loud.json").read_text()
    out, err = output(capsys, 3, *argv, "-", "--study", "s.db", "-q", "--budget", "100")
    assert json.loads(out)["stop_reason"] == "budget"
    assert err == ""
    replay = ["replay", "fleet.yaml", "grid.csv", "--policy", "bisect", "--quiet"]
    assert output(capsys, 0, *replay, "--orders", "2") == ("", "")
    assert "error" in refusal(capsys, "run", "none.yaml", "--quiet")


def test_what_measuring_costs_is_said_in_currency(folder, capsys):
    # 36 per GPU-hour is one cent per GPU-second; all four cells take 600.
    text = output(capsys, 0, "plan", "fleet.yaml", "--grid", "grid.csv").out
    assert "at a price of 6.00." in " ".join(text.split())
    argv = ["run", "fleet.yaml", "--grid", "grid.csv", "--json", "d.json"]
    text = output(capsys, 0, *argv).out
    found = json.loads(Path("d.json").read_text())
    assert found["price"] == pytest.approx(found["gpu_seconds"] / 100)
    assert f"at a price of {found['price']:.2f}." in " ".join(text.split())
    Path("fleet.yaml").write_text(FLEET.replace(", price_per_gpu_hour: 36", ""))
    argv = ["decide", "fleet.yaml", "--grid", "grid.csv", "--json"]
    assert json.loads(output(capsys, 0, *argv, "-").out)["price"] is None
    assert "price" not in output(capsys, 0, *argv, "again.json").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(shell):
    variables = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = python("-m", "fleetsieve", "--show-completion", shell, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_FLEETSIEVE_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("fleetsieve re", {"replay", "report"}),
        ("fleetsieve export x.db --to ku", {"kubernetes"}),
        ("fleetsieve replay f g --policy bi", {"bisect"}),
    ],
)
def test_completion_completes_commands_formats_and_policies(words, found):
    count = str(len(words.split()) - 1)
    variables = {"_FLEETSIEVE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count}
    done = python("-m", "fleetsieve", **variables)
    assert set(done.stdout.split()) == found
    assert done.stderr == ""


def test_tables_fit_80_columns_whatever_the_names_are(folder, capsys):
    long = "a-name-" * 30
    Path("fleet.yaml").write_text(FLEET.replace("name: chat", f"name: {long}"))
    Path("grid.csv").write_text(GRID.replace("chat,", f"{long},"))
    both = ["fleet.yaml", "--grid", "grid.csv"]
    for argv in (
        ["plan", *both],
        ["decide", *both],
        ["decide", *both, "--sweep", "gpus=1..3"],
        ["replay", "fleet.yaml", "grid.csv", "--policy", "bisect", "--orders", "1"],
        ["run", *both],
    ):
        out, err = output(capsys, 0, *argv)
        assert max(map(len, (out + err).splitlines())) <= 80, argv


@pytest.mark.parametrize(
    ("variables", "styled", "coloured"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False)],
)
def test_styles_are_for_terminals_and_colours_for_those_that_want_them(variables, styled, coloured):
    code = "from fleetsieve.show import console; console('stdout').print('x', style='bold red')"
    assert python("-c", code, **variables).stdout == "x\n"
    shown = in_a_terminal(code, variables)
    assert ("\x1b[" in shown) is styled
    assert (re.search(r"\x1b\[[0-9;]*3[0-7]", shown) is not None) is coloured


def in_a_terminal(code, variables):
    """What code writes to a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS), "TERM": "xterm", **variables}
    subprocess.run([sys.executable, "-c", code], env=env, stdout=theirs, check=True)
    os.close(theirs)
    written = os.read(ours, 4096).decode()
    os.close(ours)
    return written
