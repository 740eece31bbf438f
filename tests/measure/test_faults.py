"""Whatever a server does, a cell ends within its deadline: with numbers that hold, or a reason."""

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fleetsieve_measure import outcome
from fleetsieve_measure.arrivals import constant
from fleetsieve_measure.bench import Bench, CellPlan
from fleetsieve_measure.engines import Launch
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.lengths import Constant, Independent
from fleetsieve_measure.load import ClosedLoop, OpenLoop
from fleetsieve_measure.node import Node
from fleetsieve_measure.process import Process
from fleetsieve_measure.results import Failed, Measured
from fleetsieve_measure.slots import Slots
from fleetsieve_measure.trial import Rules

SERVER = Path(__file__).with_name("fault_server.py")
KEY = "FAULT_SERVER_KEY"
SILENT = {"fault": "silence"}


def every(rate):
    """An open loop of one request each 1/rate seconds."""
    return OpenLoop(rate, partial(constant, rate))


@pytest.fixture(autouse=True, scope="module")
def _any_machine():
    """How busy this machine is spoils no run here: tests of their own are about that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.setattr(outcome, "_MOST_LATE", 1000.0)
        yield


class Bed:
    """A node with fault servers on it, as an asynchronous context manager."""

    def __init__(self, folder, **options):
        options = {"deadline": 60.0, "grace": 1.0, "patience": 2.0, "back_off": 0.01, **options}
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.node = Node(
            Slots(8),
            folder,
            memory=lambda devices: tuple(0.0 for _ in devices),
            settle=0.001,
            **options,
        )
        self.bench = Bench(self.node, tries=2, back_off=0.01)

    async def __aenter__(self):
        await self.node.__aenter__()
        return self

    async def __aexit__(self, *how):
        await self.node.__aexit__(*how)

    async def measure(self, name, wish, load=None, stall=1.0, tokens=4, **rules):
        """What is found at the server of `name`, and the seconds it took."""
        launch = Launch(
            kind="vllm",
            model="tiny",
            command=(sys.executable, str(SERVER)),
            env={"FAULT": json.dumps(wish | {"spy": str(self.folder / f"{name}.spy")})},
            api_key_env=wish.get("key", ""),
        )
        rules = {"slo": {}, "warmup": 0.2, "seconds": 1.0, "longest": 1.0, "drain": 1.5, **rules}
        plan = CellPlan(
            key=name,
            launch=launch,
            gpus=1,
            lengths=Independent(Constant(8), Constant(tokens)),
            load=load or every(30.0),
            rules=Rules(**rules),
            stall_seconds=stall,
            seed=(1,),
        )
        begin = time.monotonic()
        return await self.bench.measure(plan), time.monotonic() - begin

    def spied(self, name):
        """What the server of `name` saw, as (what, time, streams in flight)."""
        lines = (self.folder / f"{name}.spy").read_text().splitlines()
        return [(e["what"], e["time"], e["in_flight"]) for e in map(json.loads, lines)]


def measured(folder, wish, load=None, **rules):
    """The finding at one server, and what that saw."""

    async def inside():
        async with Bed(folder) as bed:
            return (await bed.measure("a", wish, load, stall=30.0, **rules))[0], bed.spied("a")

    return asyncio.run(inside())


# What is wished, the kind of failure, and what its reason has to say.
FAULTS = {
    "silent": (SILENT, "timeout", "nothing came for 1 s"),
    "out of connections": ({"fault": "no_accept"}, "timeout", "vllm still runs"),
    "silent after a token": ({"fault": "hang"}, "timeout", "nothing came for 1 s"),
    "a token now and then": ({"fault": "drip"}, "timeout", "none ended within 1.5 s"),
    "a byte now and then": ({"fault": "drip_bytes"}, "timeout", "none ended within 1.5 s"),
    "a reply without end": ({"fault": "endless"}, "timeout", "none ended within 1.5 s"),
    "engine dead": (SILENT | {"readiness": "silence"}, "unhealthy", "vllm still runs"),
    "stopped": ({"fault": "stop"}, "timeout", "vllm still runs"),
    "500": ({"fault": "status", "status": 500}, "error", "HTTP 500"),
    "unknown model": ({"fault": "status", "status": 404, "message": "no tiny"}, "error", "no tiny"),
    "redirect": ({"fault": "redirect"}, "error", "HTTP 307: a redirect"),
    "no HTTP": ({"fault": "garbage"}, "error", "Bad status line"),
    "thousands of headers": ({"fault": "headers"}, "error", "headers"),
    "no events": ({"fault": "garbage_events"}, "error", "an event is no JSON"),
    "nested events": ({"fault": "events", "events": ["[" * 10**5]}, "error", "is no JSON"),
    "half a character": ({"fault": "events", "events": ['{"error": "\\ud800!"}']}, "error", "?!"),
    "cut off": ({"fault": "cut"}, "error", "ClientPayloadError"),
    "no finish": ({"fault": "no_finish"}, "error", "without a finish reason"),
    "error event": ({"fault": "error_event"}, "error", "EngineCore died"),
    "dead after some": (
        {"fault": "status", "status": 500, "readiness": "status", "after": 12},
        "unhealthy",
        "every request fails: HTTP 500",
    ),
    "exit": ({"fault": "exit", "after": 12, "last_words": ["bye"]}, "error", "exit code 1: bye"),
    "exit for memory": (
        {"fault": "exit", "after": 12, "last_words": ["CUDA out of memory. Tried to"]},
        "oom",
        "CUDA out of memory",
    ),
    "killed": ({"fault": "kill", "after": 12}, "error", "by SIGKILL"),
}


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    """The finding of each fault with its seconds, six at a time on one node."""
    few = asyncio.Semaphore(6)

    async def one(bed, name):
        async with few:
            return await bed.measure(name.replace(" ", "-"), FAULTS[name][0], seconds=2.0)

    async def inside():
        async with Bed(tmp_path_factory.mktemp("faults")) as bed:
            found = await asyncio.gather(*(one(bed, name) for name in FAULTS))
        return dict(zip(FAULTS, found, strict=True))

    return asyncio.run(inside())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_the_cell_in_its_kind_and_with_its_reason(findings, name):
    found, _ = findings[name]
    _, kind, words = FAULTS[name]
    assert isinstance(found.outcome, Failed)
    assert found.outcome.kind == kind, found.outcome.reason
    assert words in found.outcome.reason
    found.outcome.reason.encode()  # it can be written down
    assert found.outcome.reason.isprintable()


def test_every_fault_ends_within_the_seconds_that_its_rules_allow(findings):
    """0.2 s of warm-up, 2 of window, 1.5 of drain, twice 2 of patience, twice with a launch."""
    assert max(seconds for _, seconds in findings.values()) < 60
    for finding, _ in findings.values():
        spent = finding.outcome.summary.get("window_seconds", 0.0)
        assert spent <= 2.1


def test_only_what_another_try_may_cure_is_tried_again(findings):
    again = {name for name, (f, _) in findings.items() if f.outcome.summary["attempts"] > 1}
    assert again == {"killed"}


def test_a_server_that_never_gets_ready_is_a_failure(tmp_path):
    """Silent, refusing, or endless in the first reply, while the list of models is fine."""

    async def inside():
        async with Bed(tmp_path, deadline=1.5, patience=0.7, tries=1) as bed:
            wishes = {
                how: {"broken": True, "readiness": how, "status": 500}
                for how in ("silence", "status", "endless_body", "garbage")
            }
            return await asyncio.gather(*(bed.measure(how, w) for how, w in wishes.items()))

    for finding, seconds in asyncio.run(inside()):
        assert isinstance(finding.outcome, Failed)
        assert finding.outcome.kind == "unhealthy"
        assert "vllm was not ready after 1.5 s" in finding.outcome.reason
        assert finding.sample is None
        assert seconds < 30


def test_a_share_of_failures_leaves_a_median_and_takes_the_tail_and_the_throughput(tmp_path):
    wish = {"fault": "status", "status": 429, "share": 0.1}
    finding, _ = measured(tmp_path, wish, every(50.0), seconds=3.0, longest=3.0)
    found, records = finding.outcome, finding.sample.measured
    assert isinstance(found, Measured)
    good = np.array([r.status == 200 for r in records])
    assert 0.8 < good.mean() < 0.97
    assert found.values["throughput"] == pytest.approx(50.0 * good.mean())
    late = np.sort([(r.last or 0) - r.due if r.status == 200 else math.inf for r in records])
    assert found.values["e2e_p50"] == late[math.ceil(len(late) / 2) - 1] < math.inf
    assert found.values["e2e_p99"] == math.inf
    assert found.summary["first_error"].startswith("HTTP 429")


def test_quick_failures_are_not_all_that_there_is(tmp_path):
    """A third is refused at once; the others take longer than it takes 20 to be refused."""
    wish = {"fault": "status", "status": 429, "share": 0.33, "service": 0.8}
    finding, _ = measured(tmp_path, wish, every(100.0), seconds=2.0, longest=2.0, drain=30.0)
    found = finding.outcome
    assert isinstance(found, Measured), found
    assert found.values["e2e_p50"] < math.inf


def test_a_stream_that_stays_open_after_done_has_ended(tmp_path):
    finding, _ = measured(tmp_path, {"fault": "linger"}, seconds=2.0, longest=2.0)
    found = finding.outcome
    assert isinstance(found, Measured), found
    assert found.summary["failed"] == 0
    assert found.values["e2e_p50"] < 0.5


def test_large_events_and_absurd_numbers_are_read_as_what_they_are(tmp_path):
    wish = {"fault": "large_events", "bytes": 10**7}
    finding, _ = measured(tmp_path / "large", wish, every(2.0), drain=30.0)
    assert isinstance(finding.outcome, Measured), finding.outcome
    assert {r.tokens for r in finding.sample.measured} == {4}
    usage = {"prompt_tokens": 10**30, "completion_tokens": -1}
    event = json.dumps({"choices": [{"text": "x"}], "usage": usage})
    wish = {"fault": "events", "events": [event] * 4}
    finding, _ = measured(tmp_path / "absurd", wish)
    assert isinstance(finding.outcome, Measured), finding.outcome
    assert {(r.tokens, r.prompt_reported) for r in finding.sample.measured} == {(4, None)}


def test_an_event_that_never_ends_takes_no_memory_without_bound(tmp_path):
    finding, _ = measured(tmp_path, {"fault": "endless_line"}, every(2.0), drain=60.0)
    assert isinstance(finding.outcome, Failed)
    assert "an event is longer than 16 MiB" in finding.outcome.reason


def test_a_run_that_is_decided_early_serves_what_it_was_offered(tmp_path):
    """Half a second each at 40 requests/s: some 20 are in flight when the run ends."""
    finding, _ = measured(
        tmp_path, {"service": 0.5}, every(40.0), slo={"e2e_p50": 10.0}, seconds=30.0, longest=30.0
    )
    found = finding.outcome
    assert isinstance(found, Measured)
    assert found.summary["ended_early"] == "every SLO is surely met"
    assert sum(r.error is not None for r in finding.sample.measured) > 5
    assert found.values["throughput"] == 40.0


def test_a_first_token_is_in_time_while_the_rest_of_the_reply_is_not_there(tmp_path):
    finding, _ = measured(
        tmp_path,
        {"decode": 2.5},
        every(20.0),
        slo={"ttft_p50": 0.5},
        seconds=2.0,
        longest=2.0,
        drain=30.0,
    )
    found = finding.outcome
    assert isinstance(found, Measured)
    assert found.summary["ended_early"] in (None, "every SLO is surely met")
    assert found.values["ttft_p50"] < 0.5


def test_a_load_process_that_is_killed_spoils_one_attempt(tmp_path):
    async def inside():
        async with Bed(tmp_path) as bed:
            task = asyncio.ensure_future(bed.measure("a", {}, seconds=2.0, longest=2.0, stall=30.0))
            for _ in range(3000):
                await asyncio.sleep(0.02)
                if pid := child("fleetsieve_measure.worker"):
                    os.kill(pid, signal.SIGKILL)
                    break
            return (await task)[0].outcome

    found = asyncio.run(inside())
    assert isinstance(found, Measured)
    assert found.summary["attempts"] == 2


def child(words):
    """The process of ours whose command line has `words`."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == os.getpid() and words in (process / "cmdline").read_text():
                    return int(process.name)
    return None


def test_a_disk_that_takes_no_log_is_wrong_input(tmp_path):
    (tmp_path / "file").touch()
    starting = Process.start(["true"], log=tmp_path / "file" / "log", env={})
    with pytest.raises(InputError, match="cannot be written: File exists; make room"):
        asyncio.run(starting)


def test_twice_the_load_that_a_server_can_bear_saturates_it(tmp_path):
    """One stream at a time, 0.05 s each, at 40 requests/s."""
    rules = {"seconds": 8.0, "longest": 8.0, "drain": 60.0}
    finding, seen = measured(tmp_path, {"slots": 1, "service": 0.05}, every(40.0), **rules)
    found, sample = finding.outcome, finding.sample
    assert isinstance(found, Measured)
    assert found.saturated
    ends = np.array([at for what, at, _ in seen if what == "end"])
    served = np.sum((ends >= sample.opens) & (ends < sample.closes))
    rate = served / (sample.closes - sample.opens)
    assert found.values["throughput"] == pytest.approx(rate, abs=1.0)
    assert found.values["throughput"] <= 20.5


def test_latency_in_overload_counts_from_when_each_request_was_due(tmp_path):
    """One stream at a time, 0.1 s each, at 20 requests/s: request k waits for k before it."""
    rules = {"warmup": 0.0, "seconds": 2.0, "longest": 2.0, "drain": 60.0}
    finding, seen = measured(tmp_path, {"slots": 1, "service": 0.1}, every(20.0), **rules)
    records, start = finding.sample.measured, finding.sample.start
    assert len(records) in (40, 41)
    assert [r.due for r in records] == pytest.approx(start + np.arange(len(records)) / 20)
    e2e = np.array([(r.last or 0) - r.due for r in records])
    # A service never takes less than it should, and all end in the order in which they came.
    k = np.arange(len(records))
    assert (e2e >= 0.1 * (k + 1) - k / 20 - 0.005).all()
    ends = np.sort([at for what, at, _ in seen if what == "end"])[: len(records)]
    assert np.median(np.abs(e2e - (ends - [r.due for r in records]))) < 0.05
    assert isinstance(finding.outcome, Measured)
    assert finding.outcome.values["e2e_p50"] == np.sort(e2e)[math.ceil(len(e2e) / 2) - 1] >= 1.0


@pytest.mark.parametrize("wish", [{}, {"fault": "status", "status": 500, "share": 0.3}])
def test_a_closed_loop_never_exceeds_its_concurrency_at_the_server(tmp_path, wish):
    load = ClosedLoop(5, stagger=0.2)
    finding, seen = measured(tmp_path, {"service": 0.2, **wish}, load)
    assert isinstance(finding.outcome, Measured)
    assert 3 <= max(in_flight for *_, in_flight in seen) <= 5
    assert finding.sample.most_in_flight == 5


def test_a_window_holds_what_was_due_in_it_also_when_that_ends_after_it(tmp_path):
    """Due at k/20 s: from 1.02 to 2.02 s k is 21 to 40, and each takes 0.8 s."""
    rules = {"warmup": 1.02, "seconds": 1.0, "longest": 1.0, "drain": 60.0}
    finding, seen = measured(tmp_path, {"service": 0.8}, every(20.0), **rules)
    sample = finding.sample
    due = np.round([20 * (r.due - sample.start) for r in sample.measured])
    assert due.tolist() == list(range(21, 41))
    assert isinstance(finding.outcome, Measured)
    assert finding.outcome.requests == 20
    assert sum((r.end or 0.0) >= sample.closes for r in sample.measured) >= 15
    assert sum(what == "begin" for what, *_ in seen) > 50, "load goes on until they have ended"


def test_the_api_key_is_nowhere_but_in_requests(tmp_path, monkeypatch):
    secret = "sk-0123456789abcdef"
    monkeypatch.setenv(KEY, secret)
    lines = set()

    async def inside():
        async with Bed(tmp_path) as bed:
            wish = {"fault": "refusal", "key": KEY, "readiness": "refusal"}
            task = asyncio.ensure_future(bed.measure("a", wish))
            while not task.done():
                lines.update(command_lines())
                await asyncio.sleep(0.05)
            return task.result()[0]

    finding = asyncio.run(inside())
    assert isinstance(finding.outcome, Failed)
    assert "Incorrect API key provided: ***" in finding.outcome.reason
    assert "refused ***" in finding.outcome.summary["log"]
    assert any("fleetsieve_measure.worker" in line for line in lines)
    for text in (*lines, repr(finding.outcome), repr(finding.sample)):
        assert secret not in text


def command_lines():
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                yield (process / "cmdline").read_text(errors="replace")


def test_no_server_outlives_its_node(tmp_path):
    """Not even one that is stopped, which hears no TERM."""
    measured(tmp_path, {"fault": "stop"}, drain=0.5)
    assert not any(str(SERVER) in line and os.fspath(tmp_path) in line for line in command_lines())
    spies = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _spies(p, tmp_path)]
    assert not spies


def _spies(process, folder):
    try:
        return os.fspath(folder) in (process / "environ").read_text(errors="replace")
    except OSError:
        return False
