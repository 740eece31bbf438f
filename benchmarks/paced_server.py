"""A streaming server of completions that costs little: every reply is bytes made before.

    python benchmarks/paced_server.py --tokens 16 --pace 0.01

Like an engine that batches it works in steps, and every step sends one token, an event of its own,
to each stream, whatever its request asks for. It prints its address, serves until it is terminated,
and then prints as JSON the 99th percentile of how late the last token of a step was, in seconds.
"""

import argparse
import asyncio
import json
import signal
from array import array
from collections.abc import Iterator
from time import monotonic

import numpy as np

# What clients are told to ask for; the server answers to anything.
MODEL, PROMPT_TOKENS = "paced", 128
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def main() -> None:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16, help="tokens, and events, per reply")
    parser.add_argument("--pace", type=float, default=0.01, help="seconds of a step")
    arguments = parser.parse_args()
    asyncio.run(_serve(Served(arguments.tokens, arguments.pace)))


class Served:
    """What is sent to whom, and what was."""

    def __init__(self, tokens: int, pace: float) -> None:
        self._pace = pace
        self._writes = _reply(tokens)
        self._streams: list[tuple[Connection, Iterator[list[bytes]]]] = []
        self.late = array("d")

    def begin(self, connection: "Connection") -> None:
        """Answer from the next step on."""
        connection.transport.write(_HEAD)
        self._streams.append((connection, iter(self._writes)))

    async def work(self) -> None:
        """Step after step, on a schedule of absolute times."""
        due = monotonic()
        while True:
            due += self._pace
            await asyncio.sleep(max(0.0, due - monotonic()))
            streams, self._streams = self._streams, []
            for connection, writes in streams:
                parts = next(writes, None)
                if parts is not None and connection.open:
                    for part in parts:
                        connection.transport.write(part)
                    self._streams.append((connection, writes))
            if streams:
                self.late.append(monotonic() - due)


def _reply(tokens: int) -> list[list[bytes]]:
    """The writes of each token, framed as chunks of HTTP; with the last come usage and end."""

    def event(choices, **more):
        named = {"id": "cmpl-b92e4a456c82b815", "object": "text_completion", "created": 1796053803}
        body = named | {"model": MODEL, "choices": choices} | more
        return _chunk(b"data: %s\n\n" % json.dumps(body, separators=(",", ":")).encode())

    def choice(number):
        reason = "length" if number == tokens - 1 else None
        return {"index": 0, "text": f" word{number}", "logprobs": None, "finish_reason": reason}

    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}
    usage["total_tokens"] = PROMPT_TOKENS + tokens
    writes = [[event([choice(number)])] for number in range(tokens)]
    writes[-1] += [event([], usage=usage), _chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"]
    return writes


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """One keep-alive connection; a request at a time, as HTTP/1.1 clients do."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._got = b""
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tokens go out as they are written: asyncio has switched Nagle's algorithm off."""
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone; its stream ends with the next step."""
        self.open = False

    def data_received(self, data: bytes) -> None:
        """Answer once the request is whole."""
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        place = lower.find(b"content-length:")
        length = int(lower[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
        if len(body) >= length:
            self._got = body[length:]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        if head.startswith(b"POST"):
            self._served.begin(self)
            return
        body = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )


async def _serve(served: Served) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(served), "127.0.0.1", 0, backlog=4096)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    work = asyncio.ensure_future(served.work())
    await stop.wait()
    work.cancel()
    late = float(np.quantile(served.late, 0.99)) if served.late else 0.0
    print(json.dumps({"late_p99": late}))
    server.close()


if __name__ == "__main__":
    main()
