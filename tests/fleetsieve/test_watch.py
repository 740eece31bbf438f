"""Live pages: they follow the study whatever becomes of it, and show it to those who may see it."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from fleetsieve.cell import Cell
from fleetsieve.cli import main
from fleetsieve.errors import InputError
from fleetsieve.events import Asked
from fleetsieve.fleet import Fleet
from fleetsieve.study import Study
from fleetsieve.watch.follower import Follower
from fleetsieve.watch.gate import Gate
from fleetsieve.watch.renderer import Renderer
from fleetsieve.watch.server import application

ROOTS = [str(Path(__file__).parents[2] / name) for name in ("fleetsieve", "kernels", "measure")]
TEXT = """\
fleet: {gpus: 2}
engine: {kind: vllm, model: m}
configs: [{name: tp1, gpus: 1, features: {tp: 1}}]
workloads: [{name: chat, demand: 2, slo: {e2e_p99: 10}, loads: [1, 2]}]
"""
TOKEN = "a-token-of-enough-characters"


class Time:
    """A clock that sleeping moves; `then` is what happens during each sleep, by its number."""

    def __init__(self, then=()):
        self.now, self.slept, self.then = 0.0, [], list(then)

    async def sleep(self, seconds):
        self.now += seconds
        self.slept.append(seconds)
        if not self.then:
            raise asyncio.CancelledError
        self.then.pop(0)()
        await asyncio.sleep(0)


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "s.study.db"
    Study.open(path, Fleet.parse(TEXT), 0).close()
    return path


def grow(path, ticket=0):
    with Study.open(path, Fleet.parse(TEXT)) as file:
        file.append(Asked(ticket, Cell("chat", "tp1", 1.0, "rate"), 1.0, 0.0, 0.0))


def follow(path, then, *, takes=0.0):
    """The states of a follower through what happens, and how long it slept each time."""
    clock, states = Time(), []

    async def render():
        clock.now += takes
        return f"page {len(states)}"

    follower = Follower(path, render, "first", sleep=clock.sleep, clock=lambda: clock.now)

    def step(what):
        return lambda: (states.append(follower.state), what())

    clock.then = [step(what) for what in then]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(follower.run())
    return [*states, follower.state], clock.slept


def nothing():
    pass


def test_a_study_is_rendered_once_until_it_grows(study):
    states, slept = follow(study, [nothing, nothing, lambda: grow(study), nothing])
    assert [state.version for state in states] == [1, 1, 1, 2, 2]
    assert slept[0] == 3
    assert slept[1:3] == [1, 1]


def test_rendering_takes_at_most_a_fifth_of_the_time(study):
    _, slept = follow(study, [lambda: grow(study), lambda: grow(study, 1)], takes=30.0)
    assert slept == [3, 120, 120]  # the first one starts a process, and says little of the others


def test_another_fleet_in_the_study_is_seen(study):
    other = Fleet.parse(TEXT.replace("gpus: 2", "gpus: 4"))
    states, _ = follow(study, [lambda: Study.open(study, other).close()])
    assert [state.version for state in states] == [1, 2]


def test_the_page_outlives_the_study_and_goes_on_when_it_is_back(study):
    kept = study.read_bytes()
    states, _ = follow(
        study,
        [
            study.unlink,
            nothing,
            lambda: study.write_text("no database"),
            lambda: study.write_bytes(kept),
            nothing,
        ],
    )
    assert [state.version for state in states] == [1, 1, 1, 1, 2, 2]
    assert [bool(state.error) for state in states] == [False, True, True, True, False, False]
    assert all(re.fullmatch(r"[^\n]+; [^\n]+\.", s.error) for s in states if s.error)


def test_a_page_that_cannot_be_made_is_not_tried_again_until_the_study_grows(study):
    tries = []

    async def render():
        tries.append(1)
        raise InputError("it is out of order; mend it")

    clock = Time([nothing, nothing, lambda: grow(study)])
    follower = Follower(study, render, "first", sleep=clock.sleep, clock=lambda: clock.now)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(follower.run())
    assert len(tries) == 2
    assert follower.state.error == "it is out of order; mend it."
    assert follower.state.page == "first"


def serve(check, study, gate=None, render=None):
    """Run `check(client, follower)` with a server of a follower that renders when told to."""

    async def page():
        return "<p>a page</p>"

    async def session():
        ending = asyncio.Event()
        follower = Follower(study, render or page, "<p>first</p>")
        app = application(follower, gate or Gate("127.0.0.1", None), ending)
        async with TestClient(TestServer(app), cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            try:
                return await check(client, follower)
            finally:
                ending.set()

    return asyncio.run(session())


async def event(stream):
    text = (await stream.content.readuntil(b"\n\n")).decode()
    return json.loads(text.partition("data: ")[2])


def test_whoever_listens_is_told_of_each_new_page(study):
    async def check(client, follower):
        following = asyncio.create_task(follower.run())
        async with client.get("/events") as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            while (await event(stream))["version"] == 0:
                pass
            answer = await client.get("/")
            assert await answer.text() == "<p>a page</p>"
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    serve(check, study)


def test_streams_end_with_the_server(study):
    async def check(client, follower):
        ended = asyncio.Event()
        app = application(follower, Gate("127.0.0.1", None), ended)
        async with TestClient(TestServer(app)) as other, other.get("/events") as stream:
            assert (await event(stream))["version"] == 0
            ended.set()
            assert await stream.content.read() == b""

    serve(check, study)


HOSTS = {
    "127.0.0.1": 200, "127.0.0.1:8321": 200, "localhost:1": 200, "LOCALHOST": 200,
    "[::1]:8321": 200,
    "evil.example": 403, "evil.example:8321": 403, "127.0.0.1.evil.example": 403, "[::1": 403,
    "localhost.evil.example": 403, "127.0.0.1@evil.example": 403, "0.0.0.0": 403, "": 403,
    "xn--<script>": 403,
}  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/events", "/none"])
def test_a_page_of_another_name_that_leads_here_gets_nothing(study, path):
    async def check(client, follower):
        for host, status in HOSTS.items():
            if status == 200 and path != "/":
                continue
            answer = await client.get(path, headers={"Host": host})
            assert (answer.status, host) == (status, host)
            text = await answer.text()
            assert ("first" in text) == (status == 200)

    serve(check, study)


def test_every_answer_is_kept_from_other_sites(study):
    async def check(client, follower):
        for path in ("/", "/none"):
            headers = (await client.get(path)).headers
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "Access-Control-Allow-Origin" not in headers
        for method in ("POST", "PUT", "DELETE"):
            assert (await client.request(method, "/")).status == 405

    serve(check, study)


def test_with_a_token_it_is_needed_once_and_then_a_cookie_stands_for_it(study):
    async def check(client, follower):
        elsewhere = {"Host": "node7.example:8321"}
        for path in ("/", "/?token=", "/?token=wrong", "/?token=ä", "/events"):
            assert (await client.get(path, headers=elsewhere)).status == 401
        wrong = {"Authorization": f"Bearer {TOKEN}x"}
        assert (await client.get("/", headers=wrong)).status == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/", headers=right)).status == 200
        first = await client.get(f"/?token={TOKEN}", allow_redirects=False)
        assert (first.status, first.headers["Location"]) == (303, "/")
        cookie = first.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert TOKEN not in cookie
        assert (await client.get("/")).status == 200

    serve(check, study, Gate("0.0.0.0", TOKEN))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "node7", "<script>\n", ""])
def test_others_are_not_let_in_without_a_token(study, capsys, monkeypatch, host):
    monkeypatch.delenv("FLEETSIEVE_WATCH_TOKEN", raising=False)
    assert main(["watch", str(study), "--host", host]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: --host is [^\n]+--token[^\n]+\n", error)


def test_a_token_that_could_be_guessed_is_refused(study, capsys, monkeypatch):
    for token in ("", "short", "ä" * 15):
        assert main(["watch", str(study), "--token", token]) == 2
    monkeypatch.setenv("FLEETSIEVE_WATCH_TOKEN", "short")
    assert main(["watch", str(study)]) == 2
    assert capsys.readouterr().err.count("at least 16") == 4


def test_what_cannot_be_watched_is_refused_in_one_sentence(study, tmp_path, capsys):
    (tmp_path / "x.db").write_text("no database")
    for argv in ([str(tmp_path / "none.db")], [str(tmp_path / "x.db")], [str(tmp_path)],
                 [str(study), "--host", "localhost", "--port", "70000"]):  # fmt: skip
        assert main(["watch", *argv]) == 2
        assert re.fullmatch(r"error: [^\n]+\n", capsys.readouterr().err)


def test_a_taken_port_is_named(study, capsys):
    async def check(client, follower):
        return await asyncio.to_thread(main, ["watch", str(study), "--port", str(client.port)])

    assert serve(check, study) == 2
    assert "which is taken" in capsys.readouterr().err


def test_a_run_can_be_watched_until_ctrl_c(study):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS)}
    command = [sys.executable, "-m", "fleetsieve", "watch", str(study), "--port", "0"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        (address,) = re.findall(r"http://\S+/", process.stdout.readline())

        async def first_page():
            async with (
                aiohttp.ClientSession() as session,
                session.get(address + "events") as stream,
            ):
                while (await event(stream))["version"] == 0:
                    pass
                async with session.get(address) as answer:
                    return await answer.text()

        assert "Not certified" in asyncio.run(asyncio.wait_for(first_page(), 60))
        worker = children(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert worker
    end = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in worker) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in worker)


def test_a_process_that_ends_is_replaced(tmp_path):
    others = set(children(os.getpid()))

    async def renders():
        async with Renderer(tmp_path / "none.db", None) as renderer:
            said = []
            for kill in (False, True, False):
                if kill:
                    (worker,) = set(children(os.getpid())) - others
                    os.kill(worker, signal.SIGKILL)
                with pytest.raises(InputError) as caught:
                    await renderer.render()
                said.append(str(caught.value))
            return said

    first, then, last = asyncio.run(renders())
    assert first == last
    assert "does not exist" in first
    assert "tried again" in then
    assert set(children(os.getpid())) <= others


def children(pid):
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
