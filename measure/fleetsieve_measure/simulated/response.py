"""A response in vLLM's dialect of the OpenAI API: what is streamed, and what is not."""

import json
from dataclasses import dataclass
from typing import Any

from fleetsieve_measure.simulated.request import GenerationRequest

# One token each; none needs escaping in JSON.
_WORDS = (" time", " year", " way", " day", " thing", " world", " life", " hand", " part", " eye")
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, kw_only=True)
class Head:
    """What every part of a response repeats; `created` is in seconds since 1970."""

    request_id: str
    chat: bool
    model: str
    created: int

    def fields(self, *, streamed: bool) -> dict[str, Any]:
        """The leading fields of the response, or of one event."""
        chat = "chat.completion.chunk" if streamed else "chat.completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.request_id}",
            "object": chat if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
        }


class EventStream:
    """The server-sent events of a streamed response, by output token.

    A token is one event. In a chat an event with the role goes before the first one; usage, if
    asked for, and [DONE] follow the last one. All but the word and the counts is built beforehand.
    """

    def __init__(self, head: Head, request: GenerationRequest) -> None:
        self._request = request
        start = f"data: {_compact(head.fields(streamed=True))[:-1]}"
        before, after = ('"delta":{"content":"', '"}') if head.chat else ('"text":"', '"')
        role = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        self._before = f'{start},"choices":[{{"index":0,{before}'
        self._after = f'{after},"logprobs":null,"finish_reason":null}}]'
        self._after_last = f'{after},"logprobs":null,"finish_reason":"length"}}]'
        self._role = f'{start},"choices":[{{"index":0,{role}}}]' if head.chat else ""
        self._end = f'{start},"choices":[]'

    @property
    def tokens(self) -> int:
        """How many output tokens there are."""
        return self._request.max_tokens

    def token(self, index: int) -> bytes:
        """What is written at once for output token `index`, counted from 0."""
        request = self._request
        count = index + 1
        last = count == request.max_tokens
        after = self._after_last if last else self._after
        text = f"{self._before}{_WORDS[index % len(_WORDS)]}{after}{self._usage(count)}}}\n\n"
        if index == 0 and self._role:
            text = f"{self._role}{self._usage(0)}}}\n\n{text}"
        if not last:
            return text.encode()
        if request.include_usage:
            text += f'{self._end},"usage":{_compact(_usage(request, count))}}}\n\n'
        return text.encode() + _DONE

    def _usage(self, output_tokens: int) -> str:
        if not self._request.continuous_usage:
            return ""
        return f',"usage":{_compact(_usage(self._request, output_tokens))}'


def whole_response(head: Head, request: GenerationRequest) -> dict[str, Any]:
    """The response that is not streamed."""
    text = "".join(_WORDS[index % len(_WORDS)] for index in range(request.max_tokens))
    says = {"message": {"role": "assistant", "content": text}} if head.chat else {"text": text}
    choice = {"index": 0, **says, "logprobs": None, "finish_reason": "length"}
    usage = _usage(request, request.max_tokens)
    return {**head.fields(streamed=False), "choices": [choice], "usage": usage}


def _usage(request: GenerationRequest, output_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }


def _compact(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
