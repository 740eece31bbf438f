"""Server-sent events, parsed by the rules of the WHATWG HTML standard, section 9.2.6."""

import re
from typing import NamedTuple

# CR, LF and CRLF end a line; U+2028, U+0085 and others that str.splitlines() knows do not.
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
# An event may have so many bytes; one that never ends would take all memory.
_LONGEST = 16 << 20


class Event(NamedTuple):
    """An event: its type, "message" unless the stream says otherwise, and its data."""

    kind: str
    data: str


class EventStream:
    """The events of one stream, whose bytes may be cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._started = False
        self._kind = ""
        self._data: list[bytes] = []
        self._pending = 0

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes; one that the stream's end cuts off never is one.

        Raises:
            ValueError: an event is longer than any that means something.
        """
        self._pending += len(chunk)
        if self._pending > _LONGEST:
            raise ValueError(f"an event is longer than {_LONGEST >> 20} MiB")
        if self._started and not self._rest.endswith(b"\r") and not _LINE_END.search(chunk):
            self._rest += chunk
            return []
        text = self._rest + chunk
        if not self._started:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                self._rest = text
                return []
            self._started, text = True, text.removeprefix(_BOM)
        if not (self._data or self._kind) and text.endswith(b"\n\n") and b"\r" not in text:
            whole = self._plain(text)
            if whole is not None:
                self._rest, self._pending = b"", 0
                return whole
        return self._lines(text)

    @staticmethod
    def _plain(text: bytes) -> list[Event] | None:
        """Events of one `data: ` line each, which nearly all are; None where one is not."""
        found = []
        for block in text[:-2].split(b"\n\n"):
            if not block.startswith(b"data: ") or b"\n" in block:
                return None
            found.append(Event("message", block[6:].decode("utf-8", "replace")))
        return found

    def _lines(self, text: bytes) -> list[Event]:
        # A CR at the end may be half of a CRLF: its line ends with what comes next.
        cut = len(text) - text.endswith(b"\r")
        *lines, last = _LINE_END.split(text[:cut])
        self._rest = last + text[cut:]
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> Event | None:
        kind, data = self._kind or "message", self._data
        self._kind, self._data, self._pending = "", [], 0
        return Event(kind, b"\n".join(data).decode("utf-8", "replace")) if data else None
