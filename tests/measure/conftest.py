"""Sample data, and servers that say over a real socket just what a test scripts."""

import asyncio
import contextlib
import selectors
from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def data():
    """The folder of measured and recorded data."""
    if not DATA.is_dir():
        pytest.skip("the data folder is not here")
    return DATA


class Script:
    """A server that reads one request a connection and then runs `play(reader, writer)`."""

    def __init__(self, play):
        self._play = play
        self._serving = set()
        self.requests = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        self._serving.add(asyncio.current_task())
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-l")]
            body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
            self.requests.append((head, body))
            await self._play(reader, writer)


@pytest.fixture
def script():
    """Makes a `Script`."""
    return Script


def chunked(data):
    """One chunk of an HTTP body."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


def head(status=200, kind="text/event-stream"):
    """The head of a chunked HTTP answer."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", "Transfer-Encoding: chunked", "", ""]
    return "\r\n".join(lines).encode()


@pytest.fixture
def stream():
    """Makes the play of a stream: `(delay, bytes)` writes, then a proper end or an abort."""

    def play_of(writes, status=200, kind="text/event-stream", abort=False):
        async def play(reader, writer):
            writer.write(head(status, kind))
            for delay, data in writes:
                await asyncio.sleep(delay)
                writer.write(chunked(data))
                await writer.drain()
            if abort:
                writer.transport.abort()
                return
            writer.write(b"0\r\n\r\n")
            await writer.drain()

        return play

    return play_of


class Jumping(selectors.DefaultSelector):
    """A selector that jumps to its timeout instead of waiting for it."""

    now = 1000.0

    def select(self, timeout=None):
        events = super().select(0)
        if not events and timeout:
            self.now += timeout
        return events


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer."""

    def __init__(self):
        self._jumping = Jumping()
        super().__init__(self._jumping)

    def time(self):
        return self._jumping.now


@pytest.fixture
def jumping(monkeypatch):
    """Runs a coroutine in time that jumps, as the modules named so far see it too."""
    loop = JumpingLoop()
    for module in ("load", "trial", "self_check", "client"):
        monkeypatch.setattr(f"fleetsieve_measure.{module}.monotonic", loop.time)
    with contextlib.closing(loop):
        yield loop
