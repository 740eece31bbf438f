"""The server of a live page: the page, and events that say when there is a newer one."""

import asyncio
import contextlib
import errno
import json
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from fleetsieve.errors import InputError
from fleetsieve.interrupt import Interrupt
from fleetsieve.report.markup import element
from fleetsieve.report.page import page
from fleetsieve.report.parts import section
from fleetsieve.watch.follower import Follower, State
from fleetsieve.watch.gate import Gate
from fleetsieve.watch.renderer import Renderer

# A connection that a proxy would take for dead gets a word in between.
_QUIET = 15.0
_MOST_WATCHERS = 100


async def watch(
    study: Path,
    grid: Path | None,
    host: str,
    port: int,
    gate: Gate,
    on_start: Callable[[str], None],
) -> None:
    """Serve the page of `study` until a signal; `on_start` is told the address.

    Raises:
        InputError: nothing can listen there.
    """
    with Interrupt() as interrupt:
        async with Renderer(study, grid) as renderer:
            follower = Follower(study, renderer.render, _first(study))
            app = application(follower, gate, interrupt.event)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            following = asyncio.create_task(follower.run())
            try:
                on_start(await _listening(runner, host, port))
                await asyncio.wait(
                    [asyncio.create_task(interrupt.event.wait()), following],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if following.done():
                    following.result()
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                await runner.cleanup()


def application(follower: Follower, gate: Gate, ending: asyncio.Event) -> web.Application:
    """What is served; streams of events end with `ending`."""
    watchers = 0

    async def whole(request: web.Request) -> web.Response:
        return web.Response(text=follower.state.page, content_type="text/html", charset="utf-8")

    async def events(request: web.Request) -> web.StreamResponse:
        nonlocal watchers
        if watchers >= _MOST_WATCHERS:
            raise web.HTTPServiceUnavailable(text="Too many watch already.\n")
        watchers += 1
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                await _stream(response, follower, ending)
            return response
        finally:
            watchers -= 1

    async def nothing(request: web.Request) -> web.Response:
        return web.Response(status=204)

    app = web.Application()
    gate.install(app)
    app.router.add_get("/", whole)
    app.router.add_get("/events", events, allow_head=False)
    app.router.add_get("/favicon.ico", nothing)
    return app


async def _stream(response: web.StreamResponse, follower: Follower, ending: asyncio.Event) -> None:
    state = follower.state
    await response.write(_event(state))
    end = asyncio.create_task(ending.wait())
    try:
        while not end.done():
            following = asyncio.create_task(follower.after(state, _QUIET))
            await asyncio.wait([end, following], return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                break
            new = following.result()
            await response.write(b": still here\n\n" if new is None else _event(new))
            state = new or state
    finally:
        end.cancel()


def _event(state: State) -> bytes:
    data = json.dumps({"version": state.version, "error": state.error})
    return f"event: state\ndata: {data}\n\n".encode()


def _first(study: Path) -> str:
    reading = section("reading", "Reading the study", element("p", "The page follows in a moment."))
    title = study.name.removesuffix(".db").removesuffix(".study")
    return page(title, "A study that is being read", [reading], live=True)


async def _listening(runner: web.AppRunner, host: str, port: int) -> str:
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"--port is {port}, which is taken; name another, or 0") from None
        reason = error.strerror or str(error)
        raise InputError(
            f"--host is {host[:60]!r}: {reason}; name an address of this machine"
        ) from None
    at = runner.addresses[0]
    shown = f"[{at[0]}]" if ":" in at[0] else at[0]
    return f"http://{shown}:{at[1]}/"
