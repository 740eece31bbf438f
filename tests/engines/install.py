"""Installs real engines for the tests: `python tests/engines/install.py NAME…`.

NAME is mlx, dynamo or vllm. Each gets an environment of its own in `.engines/NAME`, or in
`$FLEETSIEVE_ENGINES/NAME`, with exactly what `locks/NAME.txt` lists; one that is complete is left
as it is. Packages come from where pip is configured to find them; mlx and dynamo take some
fifteen seconds each.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# vLLM and its build of PyTorch exist as wheels of this Python for a CPU.
PYTHON = {"vllm": "3.11"}
# What a package calls itself in its own metadata, where its rebuild for a CPU is called otherwise.
ALIASES = {"vllm": ("vllm", "0.32.0+cpu")}


def home() -> Path:
    """Where the environments are."""
    return Path(os.environ.get("FLEETSIEVE_ENGINES") or HERE.parents[1] / ".engines").absolute()


def installed(name: str) -> bool:
    """Whether the environment of an engine is complete and up to date."""
    stamp = home() / name / "installed.txt"
    return stamp.is_file() and stamp.read_text() == _lock(name).read_text()


def install(name: str) -> None:
    """Make the environment of an engine, unless it is there."""
    folder = home() / name
    if installed(name):
        print(f"{name} is in {folder}")
        return
    for command in _commands(name, folder):
        subprocess.run(command, check=True)
    if name in ALIASES:
        _alias(next(folder.glob("lib/python*/site-packages")), *ALIASES[name])
    shutil.copyfile(_lock(name), folder / "installed.txt")
    print(f"{name} was installed in {folder}")


def _lock(name: str) -> Path:
    return HERE / "locks" / f"{name}.txt"


def _interpreter(name: str) -> str:
    version = PYTHON.get(name)
    if version is None or sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is None:
        raise SystemExit(f"engine {name} needs Python {version}; put python{version} on the PATH")
    return found


def _commands(name: str, folder: Path) -> list[list[str | Path]]:
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check"]
    return [
        [_interpreter(name), "-m", "venv", "--clear", folder],
        [*pip, "--quiet", "--no-deps", "-r", _lock(name)],
    ]


def _alias(packages: Path, name: str, version: str) -> None:
    """A distribution of nothing but metadata, for code that looks up its own version."""
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def main(names: list[str]) -> None:
    """Install the engines of these names."""
    known = sorted(lock.stem for lock in (HERE / "locks").glob("*.txt"))
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise SystemExit(f"engine {' '.join(wrong) or 'missing'}: give any of {', '.join(known)}")
    for name in names:
        install(name)


if __name__ == "__main__":
    main(sys.argv[1:])
