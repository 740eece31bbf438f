"""The package alone, in an environment that has aiohttp and NumPy and nothing else."""

import json
import os
import re
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest

import fleetsieve_measure

ROOT = Path(fleetsieve_measure.__file__).parents[1]


def with_requirements(names):
    """Distributions and, over and over, what they require here."""
    found = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = distribution(name)
        for requirement in found[name].requires or ():
            wanted = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            needed = "extra ==" not in requirement
            if needed and not ("python_version" in requirement and not _installed(wanted)):
                waiting.append(wanted)
    return found


def _installed(name):
    try:
        return distribution(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Runs a bare interpreter that finds the package, aiohttp, NumPy and their requirements."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    packages = folder / "packages"
    packages.mkdir()
    for found in with_requirements(["aiohttp", "numpy"]).values():
        for file in found.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(Path(str(found.locate_file(top))).resolve())
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)])}

    def run(*arguments, **options):
        python = folder / "venv" / "bin" / "python"
        return subprocess.run(
            [str(python), *arguments], env=env, capture_output=True, text=True, check=False,
            timeout=120, cwd=folder, **options,
        )  # fmt: skip

    return run


def test_nothing_that_the_decision_engine_needs_is_there(alone):
    for name in ("jax", "pandas", "pyarrow", "pydantic", "scipy", "fleetsieve", "yaml"):
        assert alone("-c", f"import {name}").returncode == 1, name


def test_every_module_can_be_imported(alone):
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(ROOT.rglob("*.py"))
    ]
    assert len(modules) > 30
    done = alone("-c", "; ".join(f"import {name}" for name in modules))
    assert done.returncode == 0, done.stderr


def test_a_cell_is_measured_on_a_simulated_engine(alone, tmp_path):
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    done = alone(str(script), str(tmp_path / "servers"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "Measured", found
    assert found["throughput"] == 20.0
    assert 0 < found["ttft_p50"] < found["e2e_p50"]


MEASURE = """
import asyncio, json, sys
from functools import partial
from pathlib import Path
from fleetsieve_measure.arrivals import constant
from fleetsieve_measure.bench import Bench, CellPlan
from fleetsieve_measure.engines import Launch
from fleetsieve_measure.lengths import Constant, Independent
from fleetsieve_measure.load import OpenLoop
from fleetsieve_measure.node import Node
from fleetsieve_measure.slots import Slots
from fleetsieve_measure.trial import Rules

async def main():
    plan = CellPlan(
        key="x",
        launch=Launch(kind="simulated", model="qwen3-8b", args={"gpu": "h100"}),
        gpus=1,
        lengths=Independent(Constant(50), Constant(5)),
        load=OpenLoop(20.0, partial(constant, 20.0)),
        rules=Rules({}, 0.3, 1.0, 2.0, 10.0),
        stall_seconds=30.0,
        seed=(0,),
    )
    async with Node(Slots(1), Path(sys.argv[1])) as node:
        outcome = (await Bench(node).measure(plan)).outcome
    values = getattr(outcome, "values", {})
    print(json.dumps({"kind": type(outcome).__name__, "reason": str(outcome), **values}))

asyncio.run(main())
"""


def test_the_probe_has_a_command_line_of_its_own(alone):
    done = alone("-m", "fleetsieve_measure", "probe", "http://127.0.0.1:9", "--model", "m")
    assert done.returncode == 3
    assert json.loads(done.stdout)["ok"] is False
    done = alone("-m", "fleetsieve_measure", "probe", "nonsense", "--model", "m")
    assert (done.returncode, done.stdout) == (2, "")
    assert "give http://HOST:PORT" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_interpreter_is_the_one_that_runs_the_tests(alone):
    done = alone("-c", "import sys; print(sys.version_info[:2])")
    assert done.stdout.strip() == str(sys.version_info[:2])
