"""A start: what it imports, what a second one compiles, and how an interrupt ends it."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

import fleetsieve

ROOT = Path(__file__).parents[2]
FLEET = """\
fleet: {gpus: 4}
configs:
  - {name: x, gpus: 1, features: {tp: 1}}
  - {name: y, gpus: 2, features: {tp: 2}}
workloads:
  - {name: chat, demand: 2, slo: {e2e_p99: 30}}
"""
GRID = """\
workload,config,gpus,rate,throughput,e2e_p99,gpu_seconds
chat,x,1,0.5,0.5,10,100
chat,x,1,1,0.9,40,100
chat,y,2,0.5,0.5,5,200
chat,y,2,2,1.8,29,200
"""
# Prints the distributions, other than this project's, that a piece of code has imported.
IMPORTED = """
import json, runpy, sys
before = set(sys.modules)
sys.argv = {argv!r}
try:
    {code}
except SystemExit as stop:
    assert not stop.code, stop.code
tops = {{name.partition(".")[0] for name in set(sys.modules) - before}}
found = sorted(top for top in tops - sys.stdlib_module_names if not top.startswith("fleetsieve"))
print(json.dumps(found))
"""
COMMAND = "runpy.run_module('fleetsieve', run_name='__main__')"


def python(*arguments, path=(), **environment):
    roots = [*path, *(ROOT / name for name in ("fleetsieve", "kernels", "measure"))]
    path = os.pathsep.join([*map(str, roots), os.environ.get("PYTHONPATH", "")])
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def imported(code, *argv):
    done = python("-c", IMPORTED.format(code=code, argv=["fleetsieve", *argv]))
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("start")
    (made / "f.yaml").write_text(FLEET)
    (made / "g.csv").write_text(GRID)
    return made


def decision(folder):
    return "-m", "fleetsieve", "decide", folder / "f.yaml", "--grid", folder / "g.csv"


@pytest.fixture(scope="module")
def starts(folder):
    """Two starts of the same decision with a cache that was empty, and its files after each."""
    cache, log = folder / "cache", {"JAX_EXPLAIN_CACHE_MISSES": "1"}
    found = []
    for options in ((), ("-X", "importtime")):
        done = python(*options, *decision(folder), XDG_CACHE_HOME=str(cache), **log)
        assert done.returncode == 0, done.stderr
        files = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
        found.append(SimpleNamespace(out=done.stdout, err=done.stderr, files=files))
    return found


def test_the_package_imports_no_other_distribution():
    assert imported("import fleetsieve") == set()


def test_every_public_name_is_there_when_it_is_used():
    for name in fleetsieve.__all__:
        assert getattr(fleetsieve, name).__name__ == name
    with pytest.raises(AttributeError, match="Engine"):
        _ = fleetsieve.Engine


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_what_computes_nothing_imports_nothing_that_computes(option):
    light = {"typer", "rich", "click", "shellingham", "annotated_doc", "pygments", "markdown_it"}
    assert imported(COMMAND, option) <= light | {"mdurl", "typing_extensions"}


def test_version_is_that_of_the_installed_distribution():
    done = python("-m", "fleetsieve", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"fleetsieve {version('fleetsieve')}\n"


def test_a_second_start_compiles_nothing(starts):
    first, second = (start.err.count("COMPILATION CACHE MISS") for start in starts)
    assert first > 0
    assert second == 0


def test_a_second_start_decides_the_same_and_leaves_the_cache_as_it_is(starts):
    first, second = starts
    assert first.files
    assert second.files == first.files
    assert second.out == first.out


def test_a_decision_imports_only_what_it_needs(starts):
    modules = set(re.findall(r"^import time:.*\| +(\S+)$", starts[1].err, re.MULTILINE))
    assert {"jax", "fleetsieve.belief"} <= modules
    others = {"scipy.stats", "scipy.optimize", "aiohttp", "pandas", "pyarrow", "matplotlib"}
    assert not modules & others


# Whoever runs the tests in the background may have the signal ignored.
HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


@pytest.mark.parametrize("module", ["typer", "numpy", "jax", "rich"])
def test_an_interrupt_of_an_import_is_one_line(folder, module, tmp_path):
    (tmp_path / f"{module}.py").write_text(f"{HEARD}; signal.raise_signal(signal.SIGINT)")
    done = python(*decision(folder), path=[tmp_path])
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "interrupted\n")


def test_an_interrupt_that_a_callback_would_swallow_is_one_line():
    code = """
import gc, signal, sys, time, types
def command():
    gc.callbacks.append(lambda phase, info: phase == "stop" and signal.raise_signal(signal.SIGINT))
    gc.collect()
    gc.callbacks.clear()
    time.sleep(20)  # the interrupt comes again and ends it
    return 0
sys.modules["fleetsieve.cli"] = types.ModuleType("fleetsieve.cli")
sys.modules["fleetsieve.cli"].main = command
from fleetsieve.__main__ import main
sys.exit(main())
"""
    done = python("-c", HEARD + code)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "interrupted\n")
