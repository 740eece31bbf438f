"""Server-sent events against a plain reading of the standard, cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve_measure.sse import Event, EventStream


def by_the_book(raw):
    """The standard's algorithm on the whole stream, line by line."""
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    *lines, _ = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    found, data, kind = [], [], ""
    for line in lines:
        if not line:
            if data:
                found.append(Event(kind or "message", b"\n".join(data).decode("utf-8", "replace")))
            data, kind = [], ""
            continue
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
    return found


LINES = [
    b'data: {"a": 1}', b"data:x", b"data", b"data: ", b"data:  two", b": comment", b"event: error",
    b"id: 4", b"retry: 10", b"datum: 1", "data: \u4e2d\u2028\u0085x".encode(), b"", b"", b"",
]  # fmt: skip
ENDS = [b"\n", b"\r", b"\r\n"]
STREAM = st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(ENDS)), max_size=25)


@given(STREAM, st.booleans(), st.lists(st.integers(0, 400), max_size=12), st.sampled_from(LINES))
def test_events_are_those_of_the_standard_wherever_the_bytes_are_cut(lines, bom, cuts, tail):
    raw = b"\xef\xbb\xbf" * bom + b"".join(line + end for line, end in lines) + tail
    # A carriage return that ends the bytes may be half of a line end: its line is still open.
    whole = raw[:-1] if raw.endswith(b"\r") else raw
    places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    parser, found = EventStream(), []
    for start, stop in pairwise(places):
        found += parser.feed(raw[start:stop])
    assert found == by_the_book(whole)


def test_a_stream_byte_by_byte_is_the_same():
    text = (
        "data: a\u2028b\n\nevent: error\r\ndata: 1\r\ndata: 2\r\n\r\n: ping\n\ndata: \u4e2d\r\r\n"
    )
    raw = text.encode()
    parser = EventStream()
    found = [event for i in range(len(raw)) for event in parser.feed(raw[i : i + 1])]
    assert found == [
        Event("message", "a\u2028b"),
        Event("error", "1\n2"),
        Event("message", "\u4e2d"),
    ]


def test_the_kind_of_an_event_may_come_in_another_read_than_its_data():
    stream = EventStream()
    assert stream.feed(b"event: error\n") == []
    assert stream.feed(b"data: 1\n\n") == [("error", "1")]
    assert stream.feed(b"data: 2\n\n") == [("message", "2")]


def test_an_event_without_end_is_refused_and_many_small_ones_are_not():
    stream = EventStream()
    for _ in range(40):
        assert len(stream.feed(b"data: " + b"x" * 2**20 + b"\n\n")) == 1
    for _ in range(16):
        assert stream.feed(b"x" * 2**20) == []
    with pytest.raises(ValueError, match="longer than 16 MiB"):
        stream.feed(b"x")
