"""The README's Python runs, and what it shows of the demo is what the demo prints."""

import re
from pathlib import Path

import pytest

from fleetsieve.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_python_of_the_readme_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    assert "conservative" in capsys.readouterr().out


def test_the_readme_opens_with_what_the_demo_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    study = tmp_path / "demo.study.db"
    assert main(["run", "examples/qwen3-32b-h100/fleet.yaml", "--study", str(study)]) == 0
    printed = words(capsys.readouterr().out)
    # What the search spent may differ with the last bits of another processor's arithmetic.
    shown = [line for line in blocks("")[0].splitlines() if "GPU-seconds" not in line]
    missing = [word for word in words("\n".join(shown)) if word not in printed]
    assert not missing


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_the_two_commands(command):
    assert f"\n    {command}\n" in README


def words(text: str) -> list[str]:
    return text.replace("─", " ").split()
