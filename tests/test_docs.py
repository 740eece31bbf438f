"""The pages under docs: what they show runs, their links lead somewhere, the site has them all."""

import contextlib
import io
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetsieve import Fleet
from fleetsieve.cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# A block with its language and, in quotes, the name of the file that it shows.
BLOCK = re.compile(r'^```(\w*)(?: title="([\w.-]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
# A block that is too slow for a test says so, and why.
NOT_RUN = re.compile(r"^<!-- not run: .+ -->\n```.*?^```", re.MULTILINE | re.DOTALL)
# What a search spends and how far it gets may differ with the last bits of another processor.
DEPENDS_ON_ROUNDING = ("--study", " run ", " plan ")


def blocks(page: str) -> list[tuple[str, str, str]]:
    return BLOCK.findall(text_of(page))


def commands(console: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block, with the lines that it is shown to print."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, *printed = part.splitlines()
        yield command, printed


def run(command: str) -> str:
    program, *arguments = shlex.split(command)
    assert program == "fleetsieve"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        assert main(arguments) == 0
    return printed.getvalue()


def missing(command: str, lines: list[str], printed: str) -> list[str]:
    """Words that the page shows and the command does not print."""
    words = " ".join(lines).replace("─", " ").replace("…", " ").split()
    if any(option in command for option in DEPENDS_ON_ROUNDING):
        words = [word for word in words if not re.search(r"\d", word)]
    return [word for word in words if word not in printed.split()]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def test_the_tutorial_runs_and_prints_what_it_shows(workplace):
    shown = 0
    for language, title, text in blocks("tutorial.md"):
        if title:
            (workplace / title).write_text(text)
        for command, lines in commands(text) if language == "console" else ():
            assert missing(command, lines, run(command)) == [], command
            shown += 1
    assert shown == text_of("tutorial.md").count("\n$ ")


def test_the_python_of_the_embedding_page_runs(workplace, capsys):
    namespace: dict[str, Any] = {}
    for language, _, text in blocks("embedding.md"):
        assert language == "python"
        exec(compile(text, "embedding.md", "exec"), namespace)
    assert "gap" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["tutorial.md", "vllm.md"])
def test_fleet_files_on_pages_are_fleet_files(page, workplace):
    files = [(title, text) for language, title, text in blocks(page) if language == "yaml"]
    assert files
    for title, text in files:
        (workplace / title).write_text(text)
        assert Fleet.load(title).configs


def test_the_vllm_page_says_how_many_cells_its_fleet_has():
    ((_, title, text),) = [block for block in blocks("vllm.md") if block[0] == "yaml"]
    fleet = Fleet.parse(text, source=title)
    cells = sum(
        len(workload.loads.of(config.gpus))
        for workload in fleet.workloads
        for config in fleet.configs
        if workload.loads is not None
    )
    assert f"measuring all {cells} cells" in text_of("vllm.md")


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: str(p.name))
def test_links_lead_to_files_and_headings_that_exist(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", outside_blocks(page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page if not path else Path(os.path.normpath(page.parent / path))
        assert target.exists(), link
        assert target.suffix != ".md" or not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_pages_link_to_nothing_that_the_site_lacks(page):
    for link in re.findall(r"\]\(([^)\s#]+)", outside_blocks(page.read_text())):
        if "://" not in link:
            assert Path(os.path.normpath(page.parent / link)).is_relative_to(DOCS), link


def test_the_site_has_every_page_once():
    listed = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


def text_of(page: str) -> str:
    return NOT_RUN.sub("", (DOCS / page).read_text())


def outside_blocks(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", outside_blocks(page.read_text()), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading) for heading in headings)
    return {heading.strip().lower().replace(" ", "-") for heading in plain}


def leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for child in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(child)
