"""Pages in a real browser: nothing overflows, nothing complains, keys and pointers work."""

import asyncio
import json
import shutil
import tempfile
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from fleetsieve.cell import Cell
from fleetsieve.report.findings import (
    Benchmark,
    Bound,
    Column,
    Environment,
    Findings,
    History,
    Level,
)
from fleetsieve.report.of_replay import replay_page
from fleetsieve.report.page import page
from fleetsieve.standing import Standing
from fleetsieve.watch.follower import Follower, State
from fleetsieve.watch.gate import Gate
from fleetsieve.watch.server import application

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-port=0",
)  # fmt: skip
HOSTILE = ["<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "שלום עולם", "x" * 400]
WIDTHS = (1200, 360)


class Browser:
    """A tab, over the DevTools protocol; `complaints` are what its console would show."""

    def __init__(self, socket):
        self._socket, self._number, self.complaints = socket, 0, []

    async def call(self, method, **params):
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            message = json.loads((await self._socket.receive()).data)
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            kind = message["method"]
            if kind in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled",
                        "Page.javascriptDialogOpening"):  # fmt: skip
                self.complaints.append(message)

    async def evaluate(self, expression):
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression):
        for _ in range(500):
            if await self.evaluate(expression):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within 10 s: {expression}")

    async def show(self, url, width):
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                        deviceScaleFactor=1, mobile=width < 500)  # fmt: skip
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href == {url!r} && document.readyState == 'complete'")

    async def key(self, key):
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


async def port_of(folder):
    """Where a browser that starts will listen."""
    for _ in range(600):
        if (folder / "DevToolsActivePort").exists():
            lines = (folder / "DevToolsActivePort").read_text().splitlines()
            if len(lines) > 1:
                return lines[0]
        await asyncio.sleep(0.05)
    raise AssertionError("chromium did not start within 30 s")


@asynccontextmanager
async def browser():
    assert CHROMIUM
    folder = Path(tempfile.mkdtemp())
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{await port_of(folder)}/json"
        async with aiohttp.ClientSession() as session:
            async with session.get(address) as answer:
                (tab,) = [tab for tab in await answer.json() if tab["type"] == "page"]
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                found = Browser(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await found.call(f"{domain}.enable")
                yield found
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def column(workload, config, replicas):
    cells = [Cell(workload, config, load, "rate") for load in (1.0, 2.0, 4.0)]
    states = ("held", "broke", "failed")
    values = [{"throughput": cell.load, "e2e_p99": 3.0 * cell.load} for cell in cells]
    runs = [
        Benchmark(
            at + 1, cell, False, state, value if state != "failed" else {}, "<i>?</i>", 1e6, 5, True
        )
        for at, (cell, state, value) in enumerate(zip(cells, states, values, strict=True))
    ]
    bounds = {"throughput": Bound(0.5, 1.0, 2.0), "e2e_p99": Bound(1e-9, 3.0, 1e9)}
    levels = [Level(cell.load, True, bounds if at < 2 else {}) for at, cell in enumerate(cells)]
    levels.append(Level(8.0, False, bounds))
    return Column(workload, config, "rate", replicas, (0.5, 1e9), {"e2e_p99": 5.0}, levels, runs)


def findings(names):
    columns = [
        column(w, c, at % 2) for at, (w, c) in enumerate((w, c) for w in names for c in names)
    ]
    ends = {"conservative": 0.25, "expected": 0.5, "optimistic": 1.0}
    decision = {
        "objective": "max-min", "gap": 0.75, "tolerance": 0.02, "confidence": 0.95,
        "certified": False, "stop_reason": "budget", "measurements": 3, "gpu_seconds": 3e6,
        "gpus": 20, "gpus_used": 6, "value": ends, "within_noise": [], "unusable": {names[0]: "?"},
        "workloads": [{"name": name, "demand": 1e6, "feasible": True, "fulfillment": ends,
                       "served": ends} for name in names],
        "allocation": [{"workload": c.workload, "config": c.config, "replicas": 1, "gpus": 1,
                        "load": 1.0, "measured": True,
                        "capacity": {"lower": 0.5, "mean": 1.0, "upper": 1e9}}
                       for c in columns if c.replicas],
        "next": [{"workload": names[0], "config": names[1], "load": 8.0, "gpu_seconds": 9e9,
                  "expected_gap_reduction": 0.1, "score": 1.0}],
        "unmeasured": {"cells": 4, "gpu_seconds": 9e12, "columns": [
            {"workload": c.workload, "config": c.config, "cells": 1, "capacity_upper": 1e9,
             "could_add": 0.5} for c in columns]},
        "notes": [f"about {name}" for name in names], "price": 1e9,
    }  # fmt: skip
    return Findings(
        title=names[-1],
        decision=decision,
        gpus_per_node=8,
        kinds=dict.fromkeys(names, "rate"),
        cells=4 * len(columns),
        exhaustive=9e12,
        columns=columns,
        benchmarks=[run for one in columns for run in one.benchmarks],
        pending=[columns[0].benchmarks[0].cell],
        history=History([Standing(n, 1e6 * n, n / 12, 1.0) for n in range(4)]),
        environment=Environment([("seed", "0")], {name: [("engine", name)] for name in names}),
    )


def study_text(names, *, live=False):
    # Imported here: it brings JAX along, which a skipped test should not.
    from fleetsieve.report.of_study import sections

    return page(names[-1], "a study", sections(findings(names)), live=live)


def replay_text(folder, names):
    run = {"order": 0, "gpu_seconds_to_oracle": 3e9, "gpu_seconds_to_certificate": None,
           "measurements": 3, "certified": True, "valid": False, "regret": 0.0, "violations": 0,
           "allocation": []}  # fmt: skip
    saving = {"mean": -3.0, "ci95": [-9.0, 0.5], "ratio": 0.1}
    data = {
        "schema": "fleetsieve.replay/1", "cells": 9, "grid_gpu_seconds": 9e12, "tolerance": 0.02,
        "oracle": {"value": 0.5, "allocation": [
            {"workload": name, "config": name, "replicas": 10**9} for name in names]},
        "policies": {name: {"runs": [run]} for name in names},
        "savings": {f"sieve_vs_{name}": {"to_oracle": saving, "to_certificate": saving}
                    for name in names},
    }  # fmt: skip
    (folder / "r.json").write_text(json.dumps(data))
    return replay_page(folder / "r.json")


# What reaches out of the page, beside what scrolls by itself.
OVERFLOW = """
(() => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  const root = document.documentElement;
  const out = [...document.querySelectorAll("body *:not(.scroll *, .skip, #tip)")].filter(
    (one) => one.getBoundingClientRect().right > root.clientWidth + 1);
  return [root.scrollWidth - root.clientWidth, out.map((one) => one.outerHTML.slice(0, 80))];
})()
"""


def test_nothing_overflows_complains_or_runs_that_is_not_ours(tmp_path):
    pages = {
        "plain": study_text(["chat", "code"]),
        "hostile": study_text(HOSTILE),
        "replay": replay_text(tmp_path, HOSTILE),
    }

    async def look():
        async with browser() as tab:
            for name, text in pages.items():
                (tmp_path / f"{name}.html").write_text(text)
                for width in WIDTHS:
                    await tab.show(f"file://{tmp_path}/{name}.html", width)
                    assert await tab.evaluate(OVERFLOW) == [0, []], (name, width)
            assert tab.complaints == []
            for name in HOSTILE:
                assert name in await tab.evaluate("document.body.innerText")

    asyncio.run(look())


def test_arrow_keys_read_the_marks_of_a_chart_and_a_choice_leaves_one_workload(tmp_path):
    (tmp_path / "p.html").write_text(study_text(["chat", "code"]))

    async def look():
        async with browser() as tab:
            await tab.show(f"file://{tmp_path}/p.html", 1200)
            await tab.evaluate("document.querySelector('.card .chart').focus()")
            read = []
            for _ in range(3):
                await tab.key("ArrowRight")
                read.append(await tab.evaluate("document.getElementById('tip').textContent"))
            assert len(set(read)) == 3
            assert read[1].startswith("1 req/s: throughput 1 requests/s, held")
            await tab.key("Escape")
            assert await tab.evaluate("document.getElementById('tip').hidden")
            await tab.evaluate(
                "{const s = document.querySelector('.chooser select'); s.value = 'code';"
                "s.dispatchEvent(new Event('change'))}"
            )
            shown = "[...document.querySelectorAll('.workload')].map((one) => one.hidden)"
            assert await tab.evaluate(shown) == [True, False]
            assert tab.complaints == []

    asyncio.run(look())


def test_a_page_is_read_without_its_script(tmp_path):
    (tmp_path / "p.html").write_text(study_text(["chat", "code"]))

    async def look():
        async with browser() as tab:
            await tab.call("Emulation.setScriptExecutionDisabled", value=True)
            await tab.show(f"file://{tmp_path}/p.html", 360)
            text = await tab.evaluate("document.body.innerText")
            for part in ("Not certified", "The worst-served workload", "What to run", "code"):
                assert part in text
            hidden = "[...document.querySelectorAll('main *')].filter((one) => one.hidden).length"
            assert await tab.evaluate(hidden) == 0

    asyncio.run(look())


def test_a_script_that_got_in_would_not_run(tmp_path):
    text = study_text(["chat", "code"])
    evil = "<script>document.title = 'evil'</script><img src=x onerror=\"document.title='evil'\">"
    (tmp_path / "p.html").write_text(text.replace("</main>", f"{evil}</main>"))

    async def look():
        async with browser() as tab:
            await tab.show(f"file://{tmp_path}/p.html", 360)
            assert await tab.evaluate("document.title") != "evil"
            assert any("Content Security Policy" in json.dumps(c) for c in tab.complaints)

    asyncio.run(look())


def test_a_live_page_takes_in_what_is_new_and_keeps_what_the_reader_did(tmp_path):
    first = study_text(["chat", "code"], live=True)
    second = first.replace("! Not certified", "! Not yet certified")
    assert first != second

    async def render():
        raise AssertionError

    async def look():
        ending = asyncio.Event()
        follower = Follower(tmp_path, render, first)
        server = TestServer(application(follower, Gate("127.0.0.1", None), ending))
        async with server, browser() as tab:
            await tab.show(str(server.make_url("/")), 1200)
            await tab.until("document.getElementById('live').textContent.startsWith('Live: as of')")
            await tab.evaluate("document.getElementById('log-values').open = true")
            await tab.evaluate("document.querySelector('.card .chart').focus()")
            await follower.publish(State(1, second))
            await tab.until("document.body.innerText.includes('Not yet certified')")
            assert await tab.evaluate("document.getElementById('log-values').open")
            assert await tab.evaluate("document.activeElement.matches('.card .chart')")
            assert await tab.evaluate("document.querySelectorAll('.chooser').length") == 1
            await follower.publish(replace(follower.state, error="It is gone; put it back."))
            await tab.until("document.getElementById('live').classList.contains('lost')")
            assert "It is gone; put it back." in await tab.evaluate("document.body.innerText")
            assert "Not yet certified" in await tab.evaluate("document.body.innerText")
            assert tab.complaints == []
            ending.set()

    asyncio.run(look())
