"""The simulated engine behind HTTP, in vLLM's dialect."""

import hmac
import time
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from fleetsieve_measure.simulated.batching import Batching
from fleetsieve_measure.simulated.metrics import prometheus_text
from fleetsieve_measure.simulated.pacer import Generation, Pacer
from fleetsieve_measure.simulated.replica import Replica
from fleetsieve_measure.simulated.request import ApiError, read_request
from fleetsieve_measure.simulated.response import EventStream, Head, whole_response
from fleetsieve_measure.simulated.truth import Record, Truth

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# A prompt of token ids takes some eight bytes per token.
_MAX_BODY_BYTES = 64 * 2**20


class Server:
    """One replica's endpoints; `run` is its engine, `application` what aiohttp serves.

    Args:
        name: the model's name in requests and responses.
        api_key: what requests to /v1 must bear, if anything.
    """

    def __init__(self, replica: Replica, name: str, api_key: str | None = None) -> None:
        self._replica = replica
        self._name = name
        self._api_key = api_key
        self._pacer = Pacer(Batching(replica.limits), replica.step_time)
        self._truth = Truth()
        self._created = int(time.time())

    async def run(self) -> None:
        """Let the engine run until cancelled."""
        await self._pacer.run()

    def application(self) -> web.Application:
        """The endpoints; requests wait while `run` does not."""
        application = web.Application(middlewares=[self._refuse], client_max_size=_MAX_BODY_BYTES)
        application.add_routes(
            [
                web.get("/health", self._ok),
                web.get("/metrics", self._metrics),
                web.get("/truth", self._show_truth),
                web.get("/v1/models", self._models),
                web.post("/reset_prefix_cache", self._ok),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
            ]
        )
        return application

    @web.middleware
    async def _refuse(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if self._api_key is not None and request.path.startswith("/v1/"):
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._api_key}".encode()):
                return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except ApiError as error:
            return web.json_response(error.body, status=error.status)

    async def _ok(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=prometheus_text(self._name, self._pacer))

    async def _show_truth(self, _: web.Request) -> web.Response:
        return web.json_response(self._truth.to_json())

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "fleetsieve",
            "root": self._replica.model,
            "max_model_len": self._replica.longest,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _generate(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        arrival = time.monotonic()
        request = read_request(
            await http.read(), chat=chat, model=self._name, max_model_len=self._replica.longest
        )
        request_id = http.headers.get("X-Request-Id") or uuid.uuid4().hex
        record = Record(arrival=arrival, prompt_tokens=request.prompt_tokens)
        self._truth.add(request_id, record)
        head = Head(request_id=request_id, chat=chat, model=self._name, created=int(time.time()))
        generation = self._pacer.submit(request.prompt_tokens, request.max_tokens)
        try:
            if request.stream:
                return await _stream(http, EventStream(head, request), generation, record)
            for _ in range(request.max_tokens):
                await generation.token()
                record.token(time.monotonic())
            return web.json_response(whole_response(head, request))
        finally:
            # A client that goes away cancels this handler.
            self._pacer.abort(generation)
            record.finish = "length" if record.output_tokens == request.max_tokens else "abort"


async def _stream(
    http: web.Request, events: EventStream, generation: Generation, record: Record
) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    for index in range(events.tokens):
        await generation.token()
        event = events.token(index)
        record.token(time.monotonic())
        if index == 0:
            await stream.prepare(http)
        if index + 1 < events.tokens:
            await stream.write(event)
        else:
            await stream.write_eof(event)
    return stream
