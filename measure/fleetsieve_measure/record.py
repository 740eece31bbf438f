"""One request as the client saw it."""

from array import array
from dataclasses import dataclass, field
from typing import Any

from fleetsieve_measure.reply import TokenSource


@dataclass(slots=True)
class Record:
    """One request; times are seconds of one monotonic clock, None for what never happened.

    Attributes:
        id: what the server was told the request is called.
        due: when the request should have been sent; latencies count from here.
        sent: when it was sent.
        first, last: when the first and the last tokens arrived.
        end: when the exchange ended, well or not.
        prompt_tokens, output_tokens: what was asked for.
        prompt_reported: what the server says the prompt had.
        tokens: output tokens received; `source` says who counted.
        ok: the protocol completed: a finish reason or [DONE], and no error.
        error: why not, in a line; for an HTTP error the first line of the body.
        times, counts: of the events with tokens: arrival and, where known, tokens; see `Reply`.
        reads: how often bytes of the body arrived.
    """

    due: float
    id: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    sent: float | None = None
    first: float | None = None
    last: float | None = None
    end: float | None = None
    prompt_reported: int | None = None
    tokens: int | None = None
    source: TokenSource | None = None
    ok: bool = False
    status: int | None = None
    error: str | None = None
    reads: int = 0
    times: "array[float]" = field(default_factory=lambda: array("d"))
    counts: "array[int]" = field(default_factory=lambda: array("L"))

    @property
    def e2e(self) -> float | None:
        """Seconds from due to the last token, or to the end without one; None if it failed."""
        last = self.end if self.last is None else self.last
        return last - self.due if self.ok and last is not None else None

    @property
    def ttft(self) -> float | None:
        """Seconds from due to the first token; None if it failed or there was none."""
        return self.first - self.due if self.ok and self.first is not None else None

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None also for less than two tokens."""
        if not self.ok or self.first is None or self.last is None or (self.tokens or 0) < 2:
            return None
        return (self.last - self.first) / ((self.tokens or 0) - 1)

    @property
    def itl(self) -> list[float] | None:
        """Gaps between tokens in seconds; None where it is not known how chunks hold tokens.

        Tokens that arrive in one event are 0 apart.
        """
        if not self.ok or not self.times:
            return None
        single = self.tokens == len(self.times)
        if not single and not all(self.counts):
            return None
        gaps = [b - a for a, b in zip(self.times, self.times[1:], strict=False)]
        return gaps if single else gaps + [0.0] * (sum(self.counts) - len(self.times))

    def probe(self) -> dict[str, Any]:
        """The form that `fleetsieve probe` prints, times from `sent`."""
        start = self.due if self.sent is None else self.sent
        return {
            "ok": self.ok,
            "status": self.status,
            "error": self.error,
            "ttft_s": None if self.first is None else self.first - start,
            "last_token_s": self.last - start if self.ok and self.last is not None else None,
            "output_tokens": self.tokens if self.ok else None,
            "token_source": self.source if self.ok else None,
            "chunks": len(self.times),
        }
