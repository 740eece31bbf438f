"""What the client reports of real engines, also of their errors and of their sudden end."""

import asyncio
import json
import os
import signal
import urllib.request
from dataclasses import replace
from time import monotonic

import pytest

from fleetsieve_measure.client import Client, completion
from fleetsieve_measure.record import Record
from fleetsieve_measure.server import LaunchFailed, Server

TOKENS = 32
# Exactly `TOKENS` of them: greedy decoding of the tiny model never ends early.
GREEDY = {"temperature": 0.0}
IDS = list(range(100, 164))
PROMPTS = {
    "text": {"prompt": "Describe the for statement."},
    "ids": {"prompt": IDS},
    "chat": {"prompt": "Describe the for statement.", "chat": True},
}


def body_for(engine, kind="text", max_tokens=TOKENS):
    if kind == "ids" and not engine.server.takes_ids:
        pytest.skip("the engine takes no token ids")
    return completion(
        engine.server.model, **PROMPTS[kind], max_tokens=max_tokens, exact=True, extra=GREEDY
    )


def post(url, body):
    """An answer in one piece, read without any code of ours."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize("kind", PROMPTS)
def test_streams_at_the_same_time_are_counted_and_timed(served, kind):
    runner, engine = served
    body = body_for(engine, kind)

    async def scenario():
        async with Client(engine.server.url) as client:
            return await asyncio.gather(*(client.send(body) for _ in range(4)))

    for record in runner.run(scenario()):
        assert record.ok, record.error
        assert (record.tokens, record.source) == (TOKENS, "usage")
        assert record.prompt_reported == (len(IDS) if kind == "ids" else record.prompt_reported)
        assert record.due <= record.sent < record.first < record.last <= record.end
        assert 0 < record.ttft < record.e2e
        # A token that ends within a character brings no text.
        assert TOKENS / 2 < len(record.times) <= TOKENS
        assert record.reads > TOKENS / 4


@pytest.mark.parametrize("kind", PROMPTS)
def test_counts_are_those_of_the_same_request_answered_in_one_piece(served, kind):
    runner, engine = served
    body = body_for(engine, kind)

    async def scenario():
        async with Client(engine.server.url) as client:
            return await client.send(body)

    streamed = runner.run(scenario())
    asked = json.loads(body.data)
    del asked["stream"], asked["stream_options"]
    usage = post(engine.server.url + body.path, asked)["usage"]
    assert streamed.prompt_reported == usage["prompt_tokens"]
    assert streamed.tokens == usage["completion_tokens"]


@pytest.mark.parametrize("chat", [False, True])
def test_a_model_that_is_not_served_is_a_failure_with_its_reason(served, chat):
    runner, engine = served

    async def scenario():
        async with Client(engine.server.url) as client:
            return await client.send(completion("nobody/nothing", "Hello", max_tokens=4, chat=chat))

    record = runner.run(scenario())
    assert not record.ok
    assert record.status == 404
    assert record.error.startswith("HTTP 404")
    assert record.ttft is record.e2e is None


@pytest.mark.parametrize("name", ["mlx", "dynamo", "dynamo-trtllm", "vllm"])
def test_a_reply_whose_engine_is_killed_is_no_success(start, name):
    async def scenario():
        async with start(name) as engine, Client(engine.server.url, stall_seconds=10) as client:
            record = Record(monotonic())
            reply = asyncio.ensure_future(client.send(body_for(engine, max_tokens=1900), record))
            while record.reads < 5:
                ended, _ = await asyncio.wait({reply}, timeout=0.005)
                assert not ended
            os.killpg(engine.group, signal.SIGKILL)
            killed = monotonic()
            return await reply, killed

    record, killed = asyncio.run(scenario())
    assert not record.ok
    assert record.error
    assert record.times
    assert record.end
    assert killed < record.end
    assert record.e2e is None


@pytest.mark.parametrize("served", ["vllm"], indirect=True)
def test_vllm_counts_the_tokens_that_the_client_counts(served):
    runner, engine = served
    body = body_for(engine, "ids")

    async def scenario():
        async with Client(engine.server.url) as client:
            await client.send(body)
            before = counters(engine.server.url)
            records = [await client.send(body) for _ in range(10)]
            return records, before, counters(engine.server.url)

    records, before, after = runner.run(scenario())
    generated, prompts, ttft = (b - a for a, b in zip(before, after, strict=True))
    assert sum(record.tokens for record in records) == generated == 10 * TOKENS
    assert sum(record.prompt_reported for record in records) == prompts == 10 * len(IDS)
    # The client sees a token after the engine has it, by what HTTP costs.
    assert ttft < sum(record.ttft for record in records) < ttft + 10 * 0.05


def counters(url):
    """Tokens generated and prefilled and the seconds of TTFT, in all so far, as vLLM counts."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    names = ("generation_tokens_total", "prompt_tokens_total", "time_to_first_token_seconds_sum")
    return [
        sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}{{"))
        for name in names
    ]


@pytest.mark.parametrize("served", ["vllm"], indirect=True)
def test_the_launcher_understands_vllm(served):
    runner, engine = served
    server = engine.server
    assert server.alive
    assert runner.run(server.healthy())
    assert runner.run(server.reset_cache())
    assert server.takes_ids
    assert server.model == "tiny"
    # 1 GiB for 2 layers of 2 heads, a key and a value each of 32 floats.
    assert server.kv_cache_tokens == pytest.approx(2**30 / (2 * 2 * 2 * 32 * 4), rel=0.01)


def test_vllm_that_does_not_start_says_why(vllm):
    wrong = replace(vllm, args={**vllm.args, "max-model-len": 100_000})
    with pytest.raises(LaunchFailed) as failure:
        asyncio.run(Server(wrong, deadline=300).start())
    assert failure.value.kind == "error"
    assert not failure.value.infrastructure
    assert "max_model_len (100000) is greater" in failure.value.reason
