"""An HTTP client of the OpenAI dialect that streams completions and keeps when tokens came."""

import asyncio
import contextlib
import itertools
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Any, Self

import aiohttp

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.record import Record
from fleetsieve_measure.reply import Reply
from fleetsieve_measure.sse import EventStream

# Of an answer that is no stream, this much is read to say what it was.
_EXCERPT = 4096
# After [DONE], how long the end of the stream may take.
_LINGER = 1.0
# The error of a request that was cancelled.
ABORTED = "aborted by the client"
# How the error of a request begins to which the server said nothing for too long.
SILENT = ("nothing came for", "no connection within")
Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Body:
    """A request that is ready to be sent; building it must not delay the sending."""

    path: str
    data: bytes
    prompt_tokens: int | None
    output_tokens: int | None


def completion(
    model: str,
    prompt: Prompt,
    *,
    max_tokens: int | None = None,
    chat: bool = False,
    exact: bool = False,
    prompt_tokens: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Body:
    """A streaming request for a completion.

    Args:
        model: what the server calls the model.
        prompt: text, or token ids, which the chat dialect does not take.
        max_tokens: the most output tokens.
        chat: use the chat dialect.
        exact: ask for exactly `max_tokens` output tokens, where the server can.
        prompt_tokens: how many tokens the prompt is meant to have.
        extra: further fields of the request.
    """
    asked: dict[str, Any] = {"model": model, "stream": True}
    asked["stream_options"] = {"include_usage": True}
    if chat:
        asked["messages"] = [{"role": "user", "content": prompt}]
    else:
        asked["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    if max_tokens is not None:
        asked["max_tokens"] = max_tokens
        if exact:
            asked |= {"min_tokens": max_tokens, "ignore_eos": True}
    asked |= extra or {}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    return Body(path, json.dumps(asked).encode(), prompt_tokens, max_tokens)


def headers_of(api_key: str | None) -> dict[str, str]:
    """The headers of every request to a server, its readiness included."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


class Client:
    """Sends requests to one server; an asynchronous context manager.

    Attributes:
        in_flight: requests that were sent and have not ended.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        stall_seconds: float = 60.0,
        connect_seconds: float = 10.0,
    ) -> None:
        """A request that hears nothing for `stall_seconds` has failed.

        Raises:
            InputError: `url` is no HTTP address.
        """
        self._base = base_of(url)
        self._headers = {"Content-Type": "application/json", **headers_of(api_key)}
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_seconds, sock_read=stall_seconds
        )
        self._session: aiohttp.ClientSession | None = None
        self._name, self._numbers = secrets.token_hex(4), itertools.count()
        self.in_flight = 0

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=self._timeout,
            headers=self._headers,
            # A stream that is compressed on its way tells less of when its tokens came.
            skip_auto_headers=["Accept-Encoding"],
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, body: Body, record: Record | None = None) -> Record:
        """Send `body` and read the stream to its end; a failure is in the record.

        `record` says when it was due, on the clock of `time.monotonic`, by default now. It is
        filled in also when this is cancelled.
        """
        record = record or Record(monotonic())
        record.prompt_tokens, record.output_tokens = body.prompt_tokens, body.output_tokens
        record.id = f"{self._name}-{next(self._numbers)}"
        reply = Reply()
        record.times, record.counts = reply.times, reply.counts  # to be seen as they grow
        self.in_flight += 1
        try:
            await self._exchange(body, record, reply)
        except asyncio.CancelledError:
            if not reply.ended:
                record.error = ABORTED
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if not reply.ended:
                record.error = _reason(error, self._timeout)
        finally:
            self.in_flight -= 1
            if record.end is None:
                _close(record, reply)
        return record

    async def _exchange(self, body: Body, record: Record, reply: Reply) -> None:
        assert self._session is not None  # `send` is called inside the context
        record.sent = monotonic()
        async with self._session.post(
            self._base + body.path,
            data=body.data,
            headers={"X-Request-Id": record.id},
            allow_redirects=False,
        ) as response:
            record.status = response.status
            if response.status != 200 or "event-stream" not in response.content_type:
                record.error = await _unexpected(response)
                return
            events = EventStream()
            while not reply.done and (chunk := await response.content.readany()):
                now = monotonic()
                record.reads += 1
                for event in events.feed(chunk):
                    reply.take(event, now)
            # Nothing more is to come, but a connection can be used again only at its end.
            _close(record, reply)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LINGER):
                    await response.content.readany()


def base_of(url: str) -> str:
    """The address without a trailing slash or `/v1`.

    Raises:
        InputError: it is no HTTP address.
    """
    base = url.rstrip("/").removesuffix("/v1").rstrip("/")
    if not base.startswith(("http://", "https://")) or base.endswith("/"):
        raise InputError(f"address {url!r} is none of a server; give http://HOST:PORT")
    return base


def _close(record: Record, reply: Reply) -> None:
    """What the reply amounts to now that nothing more comes."""
    record.end = monotonic()
    record.first, record.last = reply.first, reply.last
    record.prompt_reported = reply.prompt_tokens
    record.error = record.error or reply.error
    if record.error is None and not reply.ended:
        record.error = "the stream ended without a finish reason or [DONE]"
    record.ok = record.error is None
    record.tokens, record.source = reply.output_tokens, reply.token_source


async def _unexpected(response: aiohttp.ClientResponse) -> str:
    if 300 <= response.status < 400:
        return f"HTTP {response.status}: a redirect, which is not followed"
    body = await response.content.read(_EXCERPT)
    lines = body.decode("utf-8", "replace").strip().splitlines()
    first = " ".join(lines[0].split())[:200] if lines else "no body"
    if response.status == 200:
        return f"the answer is {response.content_type}, no event stream: {first}"
    return f"HTTP {response.status}: {first}"


def _reason(error: Exception, timeout: aiohttp.ClientTimeout) -> str:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"{SILENT[1]} {timeout.sock_connect:g} s"
    if isinstance(error, TimeoutError):
        return f"{SILENT[0]} {timeout.sock_read:g} s"
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
