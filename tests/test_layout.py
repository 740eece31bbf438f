"""Promises about where code lives and what its import drags in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOTS = ("fleetsieve", "kernels", "measure")
HEAVY = "{'jax', 'jaxlib', 'numpyro', 'optax'}"


def run(code: str) -> str:
    path = os.pathsep.join(str(ROOT / root) for root in ROOTS)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("root", ROOTS)
def test_a_source_root_is_no_package(root):
    assert (ROOT / root).is_dir()
    assert not (ROOT / root / "__init__.py").exists()


@pytest.mark.parametrize(
    "package", ["fleetsieve/fleetsieve", "kernels/fleetsieve_kernels", "measure/fleetsieve_measure"]
)
def test_every_package_ships_its_types(package):
    assert (ROOT / package / "py.typed").is_file()


def test_measure_imports_without_jax_and_without_the_engine():
    code = f"import sys, fleetsieve_measure; print({HEAVY} & set(sys.modules))"
    assert run(code) == "set()\n"
    code = "import sys, fleetsieve_measure; print('fleetsieve' in sys.modules)"
    assert run(code) == "False\n"


def test_reading_a_fleet_imports_neither_jax_nor_pandas():
    fleet = ROOT / "examples/qwen3-32b-h100/fleet.yaml"
    code = (
        f"import sys; from fleetsieve.fleet import Fleet; Fleet.load({str(fleet)!r}); "
        f"print(({HEAVY} | {{'pandas', 'scipy', 'pyarrow'}}) & set(sys.modules))"
    )
    assert run(code) == "set()\n"


def test_help_keeps_jax_out():
    code = (
        "import runpy, sys\n"
        "sys.argv = ['fleetsieve', '--help']\n"
        "try:\n"
        "    runpy.run_module('fleetsieve', run_name='__main__')\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        f"print({HEAVY} & set(sys.modules))\n"
    )
    assert run(code).endswith("set()\n")
