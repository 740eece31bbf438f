"""Whatever no benchmark gives, or this version does not do, is refused in one sentence."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetsieve import Failed, Fleet, Grid, InputError, Measured, Sieve
from fleetsieve.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/qwen3-32b-h100"


@pytest.fixture(scope="module")
def example():
    return Fleet.load(EXAMPLE / "fleet.yaml"), Grid.read(EXAMPLE / "grid.csv")


def measured(gpu_seconds=300.0, se=None, **values):
    values = {"throughput": 3.0, "e2e_mean": 2.0, "ttft_mean": 0.3, **values}
    return Measured(values=values, se=se or {}, gpu_seconds=gpu_seconds)


BOGUS: Any = "bogus"  # no kind of failure, which a type checker would refuse
IMPOSSIBLE = {
    "negative latency": (measured(e2e_mean=-3.0), "e2e_mean -3.0"),
    "minus infinity": (measured(e2e_mean=-math.inf), "e2e_mean -inf"),
    "latency that is no number": (measured(ttft_mean=math.nan), "ttft_mean nan"),
    "negative throughput": (measured(throughput=-1.0), "throughput -1.0"),
    "endless throughput": (measured(throughput=math.inf), "throughput inf"),
    "no throughput": (Measured(values={"e2e_mean": 1.0}, gpu_seconds=1.0), "throughput nan"),
    "negative cost": (measured(gpu_seconds=-1e9), "gpu_seconds -1000000000.0"),
    "endless cost": (measured(gpu_seconds=math.inf), "gpu_seconds inf"),
    "negative error": (measured(se={"e2e_mean": -1.0}), "standard error of e2e_mean -1.0"),
    "error that is no number": (measured(se={"e2e_mean": math.nan}), "e2e_mean nan"),
    "unknown failure": (Failed(kind=BOGUS, gpu_seconds=1.0), "'bogus'"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_outcome_is_refused_and_changes_nothing(example, case):
    fleet, grid = example
    seen = []
    sieve = Sieve(fleet, grid=grid, on_event=seen.append)
    outcome, words = IMPOSSIBLE[case]
    with pytest.raises(InputError) as caught:
        sieve.tell(sieve.problem.cells()[0], outcome)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (sieve.measurements, seen) == (0, [])


@pytest.mark.parametrize("budget", [-1.0, math.nan])
def test_an_impossible_budget_is_refused(example, budget):
    fleet, grid = example
    with pytest.raises(InputError, match="budget is"):
        Sieve(fleet, grid=grid, budget=budget)


def changed(example, **sections):
    fleet, _ = example
    data = fleet.mapping()
    for key, value in sections.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) else value
    return Fleet.parse(data, base=EXAMPLE, source="fleet.yaml")


def test_an_unknown_stop_rule_is_refused(example):
    with pytest.raises(InputError, match="'never'"):
        Sieve(example[0], grid=example[1], stop="never")


def test_replica_limits_on_a_huge_fleet_are_refused(example):
    data = example[0].mapping()
    data["fleet"]["gpus"] = 20_000
    data["workloads"][0]["min_replicas"] = 1
    with pytest.raises(InputError, match="20000"):
        Sieve(Fleet.parse(data, base=EXAMPLE, source="fleet.yaml"), grid=example[1])


def complaint(capsys, *argv):
    assert main(list(argv)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


def test_a_refused_run_leaves_no_study_behind(tmp_path, capsys):
    study = tmp_path / "new.db"
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text((EXAMPLE / "fleet.yaml").read_text() + "\nprior: predicted.csv\n")
    grid = str(EXAMPLE / "grid.csv")
    said = complaint(capsys, "run", str(fleet), "--grid", grid, "--study", str(study))
    assert "predicted.csv" in said
    assert not study.exists()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
def test_a_device_is_no_fleet_file(capsys):
    assert "/dev/zero" in complaint(capsys, "plan", "/dev/zero")


def test_a_name_that_no_file_can_have_is_refused(tmp_path, capsys):
    fleet = str(EXAMPLE / "fleet.yaml")
    assert "--json" in complaint(capsys, "plan", fleet, "--json", str(tmp_path / ("a" * 300)))


def test_a_study_that_does_not_exist_is_named(capsys):
    fleet = str(EXAMPLE / "fleet.yaml")
    assert "none.db" in complaint(capsys, "decide", fleet, "--study", "none.db")


@pytest.mark.parametrize("number", ["1e308", "1e-308"])
def test_numbers_that_only_overflow_are_refused(tmp_path, capsys, number):
    text = (EXAMPLE / "grid.csv").read_text().splitlines()
    fields = text[1].split(",")
    fields[text[0].split(",").index("gpu_seconds")] = number
    (tmp_path / "grid.csv").write_text("\n".join([text[0], ",".join(fields), *text[2:]]))
    fleet = str(EXAMPLE / "fleet.yaml")
    assert number in complaint(capsys, "plan", fleet, "--grid", str(tmp_path / "grid.csv"))


@pytest.mark.skipif(os.name != "posix", reason="closes file descriptors in a shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream_is_not_our_bug(closed):
    roots = os.pathsep.join(str(ROOT / root) for root in ("fleetsieve", "kernels", "measure"))
    command = f"{sys.executable} -m fleetsieve schema fleet {closed}"
    done = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
