"""A request in vLLM's dialect of the OpenAI API: read, checked, refused with vLLM's status."""

import json
from dataclasses import dataclass
from typing import Any

_DEFAULT_MAX_TOKENS = 16


class ApiError(Exception):
    """A request that is refused; the arguments are what the response says."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """What of a request matters to the engine."""

    prompt_tokens: int
    max_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool


def read_request(body: bytes, *, chat: bool, model: str, max_model_len: int) -> GenerationRequest:
    """Read a completion request, or a chat request.

    A prompt of token ids has as many tokens as ids; text has one per word between white space,
    there being no tokenizer. The simulation never samples an end of sequence, so that `min_tokens`
    and `ignore_eos` are accepted and change nothing: `max_tokens` is what comes out.

    Raises:
        ApiError: with vLLM's status and wording.
    """
    fields = _fields(body)
    if fields.get("model", model) != model:
        raise ApiError(
            404,
            "NotFoundError",
            f"The model `{fields['model']}` does not exist. Valid aliases: {model}.",
            "model",
        )
    if fields.get("n", 1) != 1:
        raise _bad("n", fields["n"], "n must be 1, as only one choice is simulated")
    prompt_tokens = _chat_tokens(fields) if chat else _prompt_tokens(fields)
    if prompt_tokens >= max_model_len:
        raise _bad(
            "input_tokens",
            prompt_tokens,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {prompt_tokens} input tokens. Please reduce the length of the input prompt.",
        )
    stream = fields.get("stream") is True
    options = fields.get("stream_options") or {}
    if options and not stream:
        raise _bad("stream_options", None, "Stream options can only be defined when `stream=True`.")
    if not isinstance(options, dict):
        raise _bad("stream_options", options, "stream_options must be an object")
    include_usage = options.get("include_usage") is True
    return GenerationRequest(
        prompt_tokens=prompt_tokens,
        max_tokens=_max_tokens(fields, prompt_tokens, max_model_len, chat=chat),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and options.get("continuous_usage_stats") is True,
    )


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise ApiError(400, "Bad Request", f"JSON decode error: {error}", "body") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "Bad Request", "The body must be a JSON object", "body")
    return fields


def _bad(param: str, value: object, message: str) -> ApiError:
    shown = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
    return ApiError(400, "BadRequestError", f"{message} ({shown})", param)


def _prompt_tokens(fields: dict[str, Any]) -> int:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list | str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        tokens = len(prompt.split())
    elif isinstance(prompt, list) and all(type(token) is int for token in prompt):
        tokens = len(prompt)
    elif prompt is None:
        tokens = 0
    else:
        raise _bad("prompt", None, "prompt must be one text or one list of token ids")
    if not tokens:
        raise _bad("prompt", None, "A prompt must be provided and non-empty.")
    return tokens


def _chat_tokens(fields: dict[str, Any]) -> int:
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise _bad("messages", None, "messages must be a list")
    tokens = sum(_content_tokens(message) for message in messages)
    if not tokens:
        raise _bad("messages", None, "messages must be provided and non-empty.")
    return tokens


def _content_tokens(message: object) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return len(content.split())
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return sum(len(text.split()) for text in texts if isinstance(text, str))
    raise _bad("messages", None, "each message must have a content of text")


def _max_tokens(
    fields: dict[str, Any], prompt_tokens: int, max_model_len: int, *, chat: bool
) -> int:
    left = max_model_len - prompt_tokens
    name = "max_completion_tokens" if fields.get("max_completion_tokens") else "max_tokens"
    asked = fields.get(name)
    tokens = (left if chat else min(left, _DEFAULT_MAX_TOKENS)) if asked is None else asked
    if type(tokens) is not int:
        raise _bad(name, tokens, f"{name} must be a whole number")
    if tokens < 1:
        raise _bad(name, tokens, f"{name} must be at least 1, got {tokens}.")
    if tokens > left:
        raise _bad(
            name,
            tokens,
            f"This model's maximum context length is {max_model_len} tokens. However, you requested"
            f" {tokens} output tokens and your prompt contains {prompt_tokens} input tokens. Please"
            " reduce the length of the input prompt or the number of requested output tokens.",
        )
    least = fields.get("min_tokens") or 0
    if type(least) is not int or not 0 <= least <= tokens:
        raise _bad("min_tokens", least, f"min_tokens must be from 0 to max_tokens={tokens}.")
    return tokens
