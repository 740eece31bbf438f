"""A server with the command line of `vllm serve` that is ready and then breaks as FAULT tells.

Readiness asks for completions that are no streams, and gets them; the fault meets the streams. What
arrives is written to the file `spy` of FAULT, a line of JSON per event.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

WISH = json.loads(os.environ["FAULT"])
MODEL = sys.argv[2]
PORT = int(sys.argv[sys.argv.index("--port") + 1])
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CARD = json.dumps({"choices": [{"text": "x", "finish_reason": None}]})
DAWN = time.monotonic()


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(data):
    return chunk(f"data: {data}\n\n".encode())


def whole(status, body, *headers):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + text


def ending(asked):
    """A finish reason, the usage and [DONE]."""
    finish = {"choices": [{"text": "", "finish_reason": "length"}]}
    usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
    return [json.dumps(finish), json.dumps({"choices": [], "usage": usage}), "[DONE]"]


class FaultServer:
    """Serves `slots` streams at a time: a token after `service` s, the rest `decode` s later."""

    def __init__(self):
        self.listener = None
        self.streams = itertools.count(1)
        self.in_flight = 0
        self.broken = WISH.get("broken", False)
        self.slots = asyncio.Semaphore(WISH.get("slots", 1000))
        self.dice = random.Random(7)

    async def run(self):
        self.listener = await asyncio.start_server(self.connection, "127.0.0.1", PORT)
        await self.listener.serve_forever()

    async def connection(self, reader, writer):
        try:
            while await self.exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def exchange(self, reader, writer):
        """Answer one request; whether the connection is good for another."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        sizes = [line for line in head.splitlines() if line.lower().startswith("content-length")]
        body = await reader.readexactly(int(sizes[0].split(":")[1])) if sizes else b"{}"
        if head.startswith("GET"):
            writer.write(whole(200, {"data": [{"id": MODEL}]}))
            return True
        if head.startswith("POST /v1/completions"):
            return await self.completion(head, json.loads(body or b"{}"), writer)
        writer.write(whole(200, {}))
        return True

    async def completion(self, head, asked, writer):
        if asked.get("stream"):
            self.spy("begin", head)
            self.in_flight += 1
            try:
                return await self.stream(head, asked, writer)
            finally:
                self.in_flight -= 1
                self.spy("end", head)
        if self.broken:
            await self.fault(WISH["readiness"], asked, writer)
            return False
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": 1}
        writer.write(whole(200, {"choices": [{"text": "x"}], "usage": usage}))
        return True

    async def stream(self, head, asked, writer):
        number = next(self.streams)
        faulty = number > WISH.get("after", 0) and self.dice.random() < WISH.get("share", 1.0)
        if "fault" in WISH and faulty:
            self.broken = "readiness" in WISH
            await self.fault(WISH["fault"], asked, writer)
            return False
        async with self.slots:
            await asyncio.sleep(WISH.get("service", 0.01))
            writer.write(STREAM)
            writer.write(event(CARD))
            await asyncio.sleep(WISH.get("decode", 0.0))
            for data in [CARD] * (asked["max_tokens"] - 1) + ending(asked):
                writer.write(event(data))
            writer.write(chunk(b""))
            await writer.drain()
        return True

    async def fault(self, name, asked, writer):
        await getattr(self, f"fault_{name}")(asked, writer)

    async def fault_silence(self, asked, writer):
        await asyncio.sleep(600)

    async def fault_no_accept(self, asked, writer):
        """The queue of connections fills up, and further ones hang."""
        for sock in self.listener.sockets:
            asyncio.get_running_loop().remove_reader(sock.fileno())
            socket.socket(fileno=os.dup(sock.fileno())).listen(0)
        await asyncio.sleep(600)

    async def fault_hang(self, asked, writer):
        writer.write(STREAM + event(CARD))
        await asyncio.sleep(600)

    async def fault_status(self, asked, writer):
        writer.write(whole(WISH["status"], {"error": WISH.get("message", "it broke")}))

    async def fault_refusal(self, asked, writer):
        """As OpenAI does: what it refuses it repeats, here in its log too."""
        key = os.environ[WISH["key"]]
        print(f"refused {key}", flush=True)
        writer.write(whole(401, {"error": {"message": f"Incorrect API key provided: {key}"}}))

    async def fault_redirect(self, asked, writer):
        writer.write(whole(307, b"", f"Location: http://127.0.0.1:{PORT}/elsewhere"))

    async def fault_garbage(self, asked, writer):
        writer.write(self.dice.randbytes(5000))

    async def fault_garbage_events(self, asked, writer):
        writer.write(
            STREAM + chunk(self.dice.randbytes(2000) + b"\n\ndata: {\xff\n\n") + chunk(b"")
        )

    async def fault_drip(self, asked, writer):
        writer.write(STREAM)
        while True:
            writer.write(event(CARD))
            await asyncio.sleep(0.4)

    async def fault_drip_bytes(self, asked, writer):
        writer.write(STREAM)
        while True:
            writer.write(chunk(b":"))
            await asyncio.sleep(0.4)

    async def fault_endless(self, asked, writer):
        writer.write(STREAM)
        while not writer.is_closing():
            writer.write(event(CARD))
            await writer.drain()
            await asyncio.sleep(0.002)

    async def fault_endless_line(self, asked, writer):
        """Nothing but bytes: neither a line nor an event ever ends."""
        writer.write(STREAM)
        while not writer.is_closing():
            writer.write(chunk(b"x" * 65536))
            await writer.drain()

    async def fault_endless_body(self, asked, writer):
        writer.write(STREAM.replace(b"text/event-stream", b"application/json"))
        while not writer.is_closing():
            writer.write(chunk(b"x" * 65536))
            await writer.drain()

    async def fault_cut(self, asked, writer):
        writer.write(STREAM + event(CARD))
        await writer.drain()
        writer.transport.abort()

    async def fault_no_finish(self, asked, writer):
        writer.write(STREAM + event(CARD) + chunk(b""))

    async def fault_error_event(self, asked, writer):
        message = WISH.get("message", "EngineCore died")
        writer.write(STREAM + event(CARD) + event(json.dumps({"error": {"message": message}})))
        writer.write(event("[DONE]") + chunk(b""))

    async def fault_linger(self, asked, writer):
        writer.write(STREAM)
        for data in [CARD] * asked["max_tokens"] + ending(asked):
            writer.write(event(data))
        await asyncio.sleep(600)

    async def fault_events(self, asked, writer):
        """Events as the test gives them, then a proper end."""
        writer.write(STREAM)
        for data in WISH["events"] + ending(asked)[::2]:
            writer.write(event(data))
        writer.write(chunk(b""))
        await writer.drain()

    async def fault_large_events(self, asked, writer):
        text = json.dumps({"choices": [{"text": "x" * WISH["bytes"], "finish_reason": None}]})
        writer.write(STREAM + event(text))
        for data in ending(asked):
            writer.write(event(data))
        writer.write(chunk(b""))
        await writer.drain()

    async def fault_headers(self, asked, writer):
        lines = b"".join(b"X-%d: %d\r\n" % (n, n) for n in range(20_000))
        writer.write(STREAM.replace(b"\r\n\r\n", b"\r\n" + lines + b"\r\n"))
        writer.write(event(CARD) + event("[DONE]") + chunk(b""))

    async def fault_exit(self, asked, writer):
        print(*WISH.get("last_words", []), sep="\n", flush=True)
        os._exit(1)

    async def fault_kill(self, asked, writer):
        os.kill(os.getpid(), signal.SIGKILL)

    async def fault_stop(self, asked, writer):
        os.kill(os.getpid(), signal.SIGSTOP)

    def spy(self, what, head):
        if "spy" in WISH:
            found = {
                "what": what,
                "time": time.monotonic(),
                "in_flight": self.in_flight + (what == "begin"),
                "id": next(
                    v for k, _, v in map(partition, head.splitlines()) if k == "x-request-id"
                ),
            }
            with Path(WISH["spy"]).open("a") as file:
                file.write(json.dumps(found) + "\n")


def partition(line):
    name, colon, value = line.partition(":")
    return name.lower(), colon, value.strip()


if __name__ == "__main__":
    asyncio.run(FaultServer().run())
