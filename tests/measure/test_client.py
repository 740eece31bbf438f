"""What the client reports of streams that are scripted, recorded from servers, or broken."""

import asyncio
import json

import pytest

from fleetsieve_measure.client import Client, completion
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.record import Record

BODY = completion("m", "hello", max_tokens=16)
# Events of a loop on a busy machine come this much late, but hardly so several times in a row.
LATE, TRIES = 0.08, 4


def event(**delta):
    return sse({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def sse(body):
    return b"data: " + json.dumps(body).encode() + b"\n\n"


FINISH = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
DONE = b"data: [DONE]\n\n"


def usage(tokens):
    return sse({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": tokens}})


def ask(script, play, body=BODY, **options):
    """Send one request to a server that plays `play`."""

    async def scenario():
        async with script(play) as server, Client(server.url, **options) as client:
            record = await client.send(body)
            assert client.in_flight == 0
            return record, server.requests

    return asyncio.run(scenario())


def seen(script, play, **options):
    record, _ = ask(script, play, **options)
    return record, record.probe()


def punctual(script, play, expected):
    """What is seen, again where the machine was late."""
    found = {}
    for _ in range(TRIES):
        _, found = seen(script, play)
        if all((found[key] or 0) <= (expected[key] or 0) + LATE for key in TIMES):
            break
    return found


TIMES = ("ttft_s", "last_token_s")
STREAMS = (
    *("plain", "role_null", "role_only_no_content_key", "reasoning_content", "utf8_split"),
    *("usage_in_last_content_chunk", "no_usage_chunk", "midstream_error", "crlf", "data_no_space"),
    *("event_lines", "ping_comments", "multi_token_chunks", "empty_output", "tool_calls"),
    *("abort_mid_stream", "http_503"),
)


@pytest.mark.parametrize("name", STREAMS)
def test_a_scripted_stream_is_reported_as_its_script_expects(data, script, stream, name):
    given = json.loads((data / "samples" / "streams.json").read_text())[name]
    writes = [(w["delay_s"], w["bytes"].encode("latin-1")) for w in given["writes"]]
    kind = "text/event-stream" if given["status"] == 200 else "application/json"
    play = stream(writes, given["status"], kind, given["abort"])
    expected = given["expect"]
    found = punctual(script, play, expected)
    assert found["ok"] == expected["ok"]
    assert found["status"] == given["status"]
    assert found["output_tokens"] == expected["output_tokens"]
    assert (found["error"] is None) == expected["ok"]
    for key in TIMES:
        if expected[key] is None:
            assert found[key] is None
        else:
            assert expected[key] - 0.005 <= found[key] <= expected[key] + LATE


def test_every_scripted_stream_is_tested(data):
    assert set(STREAMS) == set(json.loads((data / "samples" / "streams.json").read_text()))


def test_token_counts_say_where_they_come_from(script, stream):
    tokens = event(content="a") + event(content="b")
    ids = sse({"choices": [{"text": "xyz", "token_ids": [4, 5, 6], "finish_reason": "length"}]})
    cases = [
        (tokens + FINISH + usage(7) + DONE, ("usage", 7, 2)),
        (tokens + FINISH + DONE, ("chunks", 2, 2)),
        (ids + DONE, ("token_ids", 3, 1)),
    ]
    for data, expected in cases:
        _, found = seen(script, stream([(0, data)]))
        assert (found["token_source"], found["output_tokens"], found["chunks"]) == expected


def test_gaps_are_between_tokens_or_unknown():
    def record(tokens, times, counts):
        found = Record(0.0, ok=True, tokens=tokens, first=times[0], last=times[-1])
        found.times.extend(times)
        found.counts.extend(counts)
        return found

    single = record(3, [1.0, 1.5, 2.5], [0, 0, 0])
    assert (single.itl, single.tpot) == ([0.5, 1.0], 0.75)
    bundled = record(5, [1.0, 2.0], [2, 3])
    assert (sorted(bundled.itl or ()), bundled.tpot) == ([0.0, 0.0, 0.0, 1.0], 0.25)
    assert record(5, [1.0, 2.0], [0, 0]).itl is None
    assert record(1, [1.0], [0]).tpot is None


@pytest.mark.parametrize(
    ("writes", "words"),
    [
        ([(0, b"data: {not json}\n\n"), (0, DONE)], "no JSON"),
        ([(0, b"data: 7\n\n"), (0, DONE)], "no JSON object"),
        ([(0, event(content="a"))], "without a finish reason"),
        ([(0, b"")], "without a finish reason"),
        ([(0, sse({"error": "overloaded"})), (0, DONE)], "overloaded"),
        ([(0, sse({"object": "error", "message": "bad", "code": 400})), (0, DONE)], "bad"),
        ([(0, b"event: error\ndata: {\"message\": \"gone\"}\n\n"), (0, DONE)], "gone"),
        ([(0, event(content="a")), (0, b"\xff\xfe\x00garbage\n\n")], "without a finish"),
    ],
)  # fmt: skip
def test_a_stream_that_breaks_the_protocol_is_not_ok(script, stream, writes, words):
    record, found = seen(script, stream(writes))
    assert not record.ok
    assert words in found["error"]
    assert (record.e2e, record.ttft, record.tpot) == (None, None, None)
    assert (found["output_tokens"], found["last_token_s"]) == (None, None)


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 429, 500, 503])
def test_an_http_error_keeps_the_first_line_of_its_body(script, stream, status):
    body = b'{"error": {"message": "no such thing"}}\nsecond line'
    record, found = seen(script, stream([(0, body)], status, "application/json"))
    assert (found["ok"], found["status"]) == (False, status)
    assert ("redirect" if status < 400 else "no such thing") in found["error"]
    assert "second" not in found["error"]
    assert record.first is None


def test_an_answer_that_is_no_stream_is_an_error(script, stream):
    body = b'{"choices": [{"text": "hello", "finish_reason": "stop"}]}'
    _, found = seen(script, stream([(0, body)], 200, "application/json"))
    assert not found["ok"]
    assert "no event stream" in found["error"]


def test_a_running_usage_counts_tokens_without_text(script, stream):
    def chunk(text, tokens, finish=None):
        choice = {"index": 0, "text": text, "finish_reason": finish}
        return sse(
            {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}}
        )

    play = stream([(0, chunk("", 1)), (0.1, chunk("ab", 3)), (0, chunk("", 3, "length") + DONE)])
    record, found = seen(script, play)
    assert (found["chunks"], found["output_tokens"]) == (2, 3)
    assert list(record.counts) == [1, 2]
    assert found["ttft_s"] < 0.1


def test_a_server_that_goes_silent_fails_its_request_in_time(script):
    async def connect_only(reader, writer):
        await asyncio.sleep(30)

    async def silent_mid_stream(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        writer.write(event(content="a"))
        await asyncio.sleep(30)

    for play in (connect_only, silent_mid_stream):
        _, found = seen(script, play, stall_seconds=0.2)
        assert not found["ok"]
        assert found["error"] == "nothing came for 0.2 s"


def test_a_stream_left_open_after_its_end_is_ok_and_does_not_wait(script):
    async def never_closes(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        writer.write(event(content="a") + FINISH + usage(1) + DONE)
        await asyncio.sleep(30)

    record, found = seen(script, never_closes)
    assert found["ok"]
    assert (record.end or 9) - (record.sent or 0) < 0.5


def test_nobody_there_is_an_error_of_the_request():
    async def scenario():
        async with Client("http://127.0.0.1:9") as client:
            return await client.send(BODY)

    record = asyncio.run(scenario())
    assert not record.ok
    assert record.status is None
    assert "ClientConnectorError" in str(record.error)


def test_a_cancelled_request_leaves_what_it_saw(script, stream):
    async def scenario():
        play = stream([(0, event(content="a")), (30, b"")])
        async with script(play) as server, Client(server.url) as client:
            record = Record(0.0)
            task = asyncio.ensure_future(client.send(BODY, record))
            await asyncio.sleep(0.2)
            assert client.in_flight == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert client.in_flight == 0
            return record

    record = asyncio.run(scenario())
    assert (record.ok, record.error, len(record.times)) == (False, "aborted by the client", 1)


def test_the_api_key_and_what_is_asked_for_are_sent(script, stream):
    body = completion("m", [5, 6], max_tokens=3, exact=True, extra={"seed": 1})
    _, requests = ask(script, stream([(0, FINISH + DONE)]), body, api_key="secret")
    head, sent = requests[0]
    assert b"POST /v1/completions " in head
    assert b"accept-encoding" not in head.lower()
    assert b"Authorization: Bearer secret" in head
    assert json.loads(sent) == {
        "model": "m", "stream": True, "stream_options": {"include_usage": True},
        "prompt": [5, 6], "max_tokens": 3, "min_tokens": 3, "ignore_eos": True, "seed": 1,
    }  # fmt: skip
    _, requests = ask(script, stream([(0, FINISH + DONE)]), completion("m", "hi", chat=True))
    assert b"POST /v1/chat/completions " in requests[0][0]
    assert json.loads(requests[0][1])["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "", "http://", "https:///v1"])
def test_an_address_of_no_server_is_refused(url):
    with pytest.raises(InputError, match="give http"):
        Client(url)


def test_recorded_answers_of_real_servers_are_understood(data, script):
    """Bytes of several engines as they were read; what should come out is in the case's name."""
    cases = sorted((data / "samples" / "http").glob("*/*stream*.http"))
    assert len(cases) >= 50
    for path in cases:
        raw = path.read_bytes()

        async def play(reader, writer, raw=raw):
            writer.write(raw)
            await writer.drain()

        record, found = seen(script, play)
        name = path.stem
        if "nostream" in name:
            assert not record.ok
        elif "midstream" in name:
            assert not record.ok, path
        elif record.status == 200:
            assert record.ok, (path, found)
            assert record.tokens is not None
        else:
            assert found["error"].startswith(f"HTTP {record.status}")
