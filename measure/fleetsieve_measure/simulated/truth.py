"""The truth: when the server itself saw each request, against which a client's view is checked."""

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(slots=True, kw_only=True)
class Record:
    """One request; times are of `time.monotonic()`, one clock for all processes of a machine.

    Attributes:
        arrival: when its headers had arrived.
        first_token, last_token: just before the first and the latest token were written; for a
            response that is not streamed, when they came out of the engine.
        output_tokens: how many were written.
        finish: how it ended; None while it runs.
    """

    arrival: float
    prompt_tokens: int
    first_token: float | None = None
    last_token: float | None = None
    output_tokens: int = 0
    finish: Literal["length", "abort"] | None = None

    def token(self, now: float) -> None:
        """A token was written at `now`."""
        if self.first_token is None:
            self.first_token = now
        self.last_token = now
        self.output_tokens += 1


class Truth:
    """The latest `capacity` records by request id; a repeated id replaces the older record."""

    def __init__(self, capacity: int = 65536) -> None:
        self._capacity = capacity
        self._records: dict[str, Record] = {}

    def add(self, request_id: str, record: Record) -> None:
        """Keep `record`, and forget the oldest one if there are too many."""
        self._records.pop(request_id, None)
        self._records[request_id] = record
        if len(self._records) > self._capacity:
            del self._records[next(iter(self._records))]

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Every record by request id, oldest first."""
        return {request_id: asdict(record) for request_id, record in self._records.items()}
