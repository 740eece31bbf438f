"""Requests, refusals and streams are those that vLLM was recorded with."""

import json

import pytest

from fleetsieve_measure.simulated.request import ApiError, read_request
from fleetsieve_measure.simulated.response import EventStream, Head, whole_response

MODEL = "tiny"


def read(fields, *, chat=False):
    body = fields if isinstance(fields, str) else json.dumps(fields)
    return read_request(body.encode(), chat=chat, model=MODEL, max_model_len=2048)


def stream(fields, *, chat=False):
    """All that is written for a streamed request."""
    request = read(fields, chat=chat)
    events = EventStream(Head(request_id="7", chat=chat, model=MODEL, created=1), request)
    return b"".join(map(events.token, range(events.tokens)))


def whole(fields, *, chat=False):
    head = Head(request_id="7", chat=chat, model=MODEL, created=1)
    return whole_response(head, read(fields, chat=chat))


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("three little\twords\n", 3),
        (["three little words"], 3),
        ([7, 8, 9, 10], 4),
        ([[7, 8, 9, 10]], 4),
    ],
)
def test_a_prompt_is_text_or_token_ids(prompt, tokens):
    assert read({"prompt": prompt}).prompt_tokens == tokens


def test_a_chat_has_the_words_of_its_messages():
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "what is a GPU"}]},
    ]
    request = read({"model": MODEL, "messages": messages, "max_completion_tokens": 3}, chat=True)
    assert (request.prompt_tokens, request.max_tokens) == (6, 3)


def test_without_max_tokens_a_completion_has_16_and_a_chat_what_fits():
    assert read({"prompt": "x"}).max_tokens == 16
    assert read({"prompt": [1] * 2047}).max_tokens == 1
    assert read({"messages": [{"content": "x"}]}, chat=True).max_tokens == 2047


def test_a_response_that_is_not_streamed_has_every_token():
    answer = whole({"prompt": [1, 2, 3], "max_tokens": 30})
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["choices"][0]["text"].split()) == 30
    answer = whole({"messages": [{"content": "x"}], "max_tokens": 2}, chat=True)
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert len(answer["choices"][0]["message"]["content"].split()) == 2


def events(data):
    """The events of a stream, parsed, without the last one, which says that it is the last."""
    *parts, done, rest = data.split(b"\n\n")
    assert (done, rest.strip()) == (b"data: [DONE]", b"")
    return [json.loads(part.strip().removeprefix(b"data: ")) for part in parts]


def test_a_stream_and_a_whole_response_say_the_same():
    body = {"prompt": "x", "max_tokens": 15}
    text = "".join(event["choices"][0]["text"] for event in events(stream(body | {"stream": True})))
    assert text == whole(body)["choices"][0]["text"]


def outline(data):
    """What a client sees of a stream beyond its words."""
    seen = []
    for event in events(data):
        choice = event["choices"][0] if event["choices"] else {}
        seen.append(
            (
                event["object"],
                choice.get("delta", {}).get("role"),
                choice.get("finish_reason"),
                (event.get("usage") or {}).get("completion_tokens"),
            )
        )
    return seen


def recorded(data, case):
    """A request that vLLM was asked, and the status and body that it answered."""
    folder = data / "samples" / "http" / "vllm_0.32.0_cpu_quiet"
    request = json.loads((folder / f"{case}.request.json").read_text())
    head, _, body = (folder / f"{case}.http").read_bytes().partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = unchunked(body)
    return request, int(head.split()[1]), body


def unchunked(body):
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return whole


@pytest.mark.parametrize(
    "case",
    [
        "completions_stream",
        "completions_stream_usage",
        "completions_stream_token_ids_prompt",
        "completions_stream_ignore_eos_mintok",
        "chat_stream",
        "chat_stream_usage",
        "chat_stream_usage_continuous",
    ],
)
def test_streams_have_the_outline_of_vllm(data, case):
    request, _, body = recorded(data, case)
    assert outline(stream(request["body"], chat="chat" in request["path"])) == outline(body)


@pytest.mark.parametrize(
    "case",
    [
        "err_missing_prompt",
        "err_negative_max_tokens",
        "err_prompt_plus_max_tokens_too_long",
        "err_wrong_model",
        "err_bad_json",
    ],
)
def test_refusals_are_those_of_vllm(data, case):
    request, status, body = recorded(data, case)
    expected = json.loads(body)["error"]
    with pytest.raises(ApiError) as refusal:
        read(request["body"])
    error = refusal.value.body["error"]
    assert refusal.value.status == status
    assert (error["type"], error["code"]) == (expected["type"], expected["code"])
    assert (error["param"] or "").split(".")[0] == (expected["param"] or "").split(".")[0]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt": [1] * 2048}, "maximum context length is 2048 tokens"),
        ({"prompt": [1] * 2000, "max_tokens": 49}, "requested 49 output tokens and your prompt"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens must be a whole number"),
        ({"prompt": "x", "max_tokens": True}, "max_tokens must be a whole number"),
        ({"prompt": "x", "max_tokens": 4, "min_tokens": 5}, "min_tokens must be from 0 to"),
        ({"prompt": ["x", "y"]}, "one text or one list of token ids"),
        ({"prompt": " "}, "non-empty"),
        ({"prompt": [1.5]}, "one text or one list of token ids"),
        ({"prompt": "x", "n": 2}, "n must be 1"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "only be defined when"),
        ({"prompt": "x", "stream": True, "stream_options": [1]}, "must be an object"),
        ("[]", "must be a JSON object"),
    ],
)
def test_what_cannot_be_served_is_a_bad_request(fields, says):
    with pytest.raises(ApiError, match=says) as refusal:
        read(fields)
    assert refusal.value.status == 400


@pytest.mark.parametrize("messages", [None, [], ["x"], [{"role": "user"}], [{"content": ""}]])
def test_a_chat_without_text_is_a_bad_request(messages):
    with pytest.raises(ApiError, match="messages") as refusal:
        read({"messages": messages}, chat=True)
    assert refusal.value.status == 400
