"""What one streamed completion says, event by event: tokens, usage, how it ended."""

import json
from array import array
from collections.abc import Mapping
from typing import Any, Literal

from fleetsieve_measure.sse import Event

TokenSource = Literal["usage", "token_ids", "chunks"]
_DONE = "[DONE]"
# More than any context holds, and less than overflows a column.
_MOST_TOKENS = 2**31
_CARRIERS = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal")


class Reply:
    """A reply as it arrives, of the completions or the chat dialect.

    An event carries tokens when it brings text, reasoning, a tool call or token ids, or when
    running usage says so; a role, a usage report or an empty text is no token.

    Attributes:
        first, last: when the first and the last event with tokens arrived; None without one.
        times: when each event with tokens arrived.
        counts: tokens of each such event where the stream says so, else 0.
        done: [DONE] was seen.
        ended: a finish reason or [DONE] was seen.
        error: the first error event, or event that is none; None while all is well.
        prompt_tokens, usage_tokens: what the server reports, None where it does not.
    """

    __slots__ = ("counts", "done", "ended", "error", "prompt_tokens", "times", "usage_tokens")

    def __init__(self) -> None:
        self.times = array("d")
        self.counts = array("L")
        self.done = False
        self.ended = False
        self.error: str | None = None
        self.prompt_tokens: int | None = None
        self.usage_tokens: int | None = None

    @property
    def first(self) -> float | None:
        """When the first event with tokens arrived."""
        return self.times[0] if self.times else None

    @property
    def last(self) -> float | None:
        """When the last event with tokens arrived."""
        return self.times[-1] if self.times else None

    @property
    def output_tokens(self) -> int:
        """As the server reports it, else by token ids, else one per event with tokens."""
        if self.usage_tokens is not None:
            return self.usage_tokens
        return sum(self.counts) if self._counted else len(self.times)

    @property
    def token_source(self) -> TokenSource:
        """Where `output_tokens` comes from; "chunks" is an estimate."""
        if self.usage_tokens is not None:
            return "usage"
        return "token_ids" if self._counted else "chunks"

    def take(self, event: Event, now: float) -> None:
        """Read one event that arrived at `now`."""
        if event.data == _DONE:
            self.done = self.ended = True
            return
        try:
            body = json.loads(event.data)
        except (ValueError, RecursionError):
            self._fail(f"an event is no JSON: {event.data[:80]!r}")
            return
        if not isinstance(body, dict):
            self._fail(f"an event is no JSON object: {event.data[:80]!r}")
            return
        wrong = _error_of(body, event.kind)
        if wrong is not None:
            self._fail(wrong)
            return
        self._read(body, now)

    def _read(self, body: Mapping[str, Any], now: float) -> None:
        before = self.usage_tokens
        usage = body.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
            self.usage_tokens = _count(usage.get("completion_tokens"), before)
        choices = body.get("choices")
        if not isinstance(choices, list):
            return
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            finished = choice.get("finish_reason") is not None
            ids = choice.get("token_ids")
            tokens = len(ids) if isinstance(ids, list) else 0
            if self.usage_tokens is not None and (before is not None or not finished):
                tokens = tokens or self.usage_tokens - (before or 0)
            if _carries(choice) or (tokens > 0 and not finished):
                self.times.append(now)
                self.counts.append(max(tokens, 0))
            self.ended = self.ended or finished

    @property
    def _counted(self) -> bool:
        return bool(self.counts) and all(self.counts)

    def _fail(self, reason: str) -> None:
        if self.error is None:
            self.error = reason


def _carries(choice: Mapping[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(delta.get(name) for name in _CARRIERS)


def _error_of(body: Mapping[str, Any], kind: str) -> str | None:
    """The message of an event that reports an error, in one of the forms that servers use."""
    error = body.get("error")
    if error:
        return _message(error)
    if kind == "error" or body.get("object") == "error":
        return _message(body)
    return None


def _message(error: object) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    # JSON can escape half a surrogate pair, which no file takes.
    whole = str(text or error).encode(errors="replace").decode()
    return " ".join(whole.split())[:200]


def _count(value: object, otherwise: int | None) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS:
        return value
    return otherwise
