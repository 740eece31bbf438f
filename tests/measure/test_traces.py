"""Traces are read whole whatever their format's quirks, and what is left out is counted."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.traces import read_trace

START = datetime(2023, 11, 16, 18, 15, 46, tzinfo=UTC)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
)
PLAIN = "time_s,prompt_tokens,output_tokens\n"


@pytest.fixture
def read(tmp_path):
    """Reads a trace of the text or bytes given."""

    def read(content):
        path = tmp_path / "trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_trace(path)

    return read


def rows(trace):
    return np.column_stack([trace.prompt_tokens, trace.output_tokens]).tolist()


def azure(seconds, prompt, output):
    moment = START + timedelta(seconds=seconds)
    return {
        "TIMESTAMP": moment.strftime("%Y-%m-%d %H:%M:%S.%f") + "0",
        "ContextTokens": prompt,
        "GeneratedTokens": output,
    }


def azure_with_offset(seconds, prompt, output):
    row = azure(seconds + 2 * 3600, prompt, output)
    return row | {"TIMESTAMP": row["TIMESTAMP"][:-1] + "+02:00"}


def burst(seconds, prompt, output):
    return {
        "Timestamp": 5 + seconds,
        "Session ID": "",
        "Elapsed time": "",
        "Model": "ChatGPT, or GPT-4",
        "Request tokens": prompt,
        "Response tokens": output,
        "Total tokens": prompt + output,
        "Log Type": 'an "API" log',
    }


def burst_of_old(seconds, prompt, output):
    row = burst(seconds, prompt, output)
    return {key: row[key] for key in row if key not in ("Session ID", "Elapsed time")}


def plain(seconds, prompt, output):
    return {"time_s": seconds, "prompt_tokens": prompt, "output_tokens": output, "user": "a\nb"}


def mooncake(seconds, prompt, output):
    hashes = list(range(-(-prompt // 512)))
    return {
        "timestamp": seconds * 1000,
        "input_length": prompt,
        "output_length": output,
        "hash_ids": hashes,
    }


def bailian(seconds, prompt, output):
    row = mooncake(seconds, prompt, output)
    hashes = list(range(-(-prompt // 16)))
    return row | {"chat_id": 7, "turn": 1, "timestamp": seconds, "hash_ids": hashes}


def written(records, end="\n", before=""):
    """The records in CSV, or JSON lines where they have hashes, as `end` and `before` have it."""
    if "hash_ids" in records[0]:
        return before + end.join(json.dumps(record) for record in records)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator=end)
    writer.writeheader()
    writer.writerows(records)
    return before + file.getvalue()


@pytest.mark.parametrize(
    "row", [azure, azure_with_offset, burst, burst_of_old, plain, mooncake, bailian]
)
@settings(deadline=None, max_examples=25)
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 10**4)),
        min_size=1,
        max_size=20,
    )
)
def test_every_format_gives_back_what_was_written_by_time(row, requests, tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace"
    requests = [(tick / 64, *lengths) for tick, *lengths in requests]
    by_time = sorted(requests, key=lambda request: request[0])
    for end, before in product(("\n", "\r\n", "\r\n\r\n"), ("", "\ufeff", "\n \n")):
        path.write_bytes(written([row(*each) for each in requests], end, before).encode())
        trace = read_trace(path)
        expected = np.array([seconds for seconds, *_ in by_time]) - by_time[0][0]
        assert trace.time == pytest.approx(expected, abs=2e-6)
        assert trace.time.min() == 0
        assert rows(trace) == [list(lengths) for _, *lengths in by_time]
        assert trace.dropped == {}


def test_real_traces_have_the_rows_that_pandas_finds(data):
    for name in ("azure2023_code.csv", "azure2023_conv.csv"):
        frame = pd.read_csv(data / "traces" / name, parse_dates=["TIMESTAMP"])
        frame = frame.sort_values("TIMESTAMP", kind="stable")
        trace = read_trace(data / "traces" / name)
        since = (frame["TIMESTAMP"] - frame["TIMESTAMP"].iloc[0]).dt.total_seconds()
        assert trace.time == pytest.approx(since.to_numpy(), abs=2e-6)
        assert rows(trace) == frame[["ContextTokens", "GeneratedTokens"]].to_numpy().tolist()
        assert trace.dropped == {}


def test_a_real_file_of_lengths_has_no_times(data):
    path = data / "traces" / "servegen_r1_lengths.csv"
    trace = read_trace(path)
    assert trace.time is None
    assert rows(trace) == pd.read_csv(path).to_numpy().tolist()


@pytest.mark.parametrize(
    "name", ["weka_agentic.csv", "servegen_top_clients.csv", "servegen_total_rate_10min.csv"]
)
def test_real_files_of_other_things_are_refused(data, name):
    with pytest.raises(InputError, match=rf"{name} starts with '\w+,\w+.*; give CSV with a header"):
        read_trace(data / "traces" / name)


def test_failed_requests_of_burstgpt_are_dropped_and_counted_however_many(read):
    failed = "{},,,GPT-4,100,0,100,Conversation log\n"
    trace = read(BURST + "".join(map(failed.format, range(9))) + "9,,,GPT-4,472,18,490,API log\n")
    assert rows(trace) == [[472, 18]]
    assert trace.dropped == {"the request failed (Response tokens is 0)": 9}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("1,,5", "prompt_tokens is no whole number"),
        ("1,0,5", "prompt_tokens is no whole number"),
        ("1,3.5,5", "prompt_tokens is no whole number"),
        ("1,nan,5", "prompt_tokens is no whole number"),
        ("1,3000000000,5", "prompt_tokens is no whole number"),
        ("1,5,-1", "output_tokens is no whole number"),
        ("1,5,0", "output_tokens is no whole number"),
        ("1,5", "output_tokens is no whole number"),
        ("soon,5,5", "time_s is no time"),
        ("inf,5,5", "time_s is no time"),
        (",5,5", "time_s is no time"),
        (PLAIN.strip(), "time_s is no time"),
    ],
)
def test_a_malformed_row_is_dropped_with_its_reason(read, bad, reason):
    trace = read(f"{PLAIN}2,10,1\n{bad}\n{bad}\n3,374.0, 20 \n4,30,3\n,,\n\n")
    assert rows(trace) == [[10, 1], [374, 20], [30, 3]]
    assert trace.time.tolist() == [0, 1, 2]
    assert [count for why, count in trace.dropped.items() if why.startswith(reason)] == [2]
    assert len(trace.dropped) == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"timestamp": 3, "input_length": 5,', "the line is no JSON object"),
        ("[1, 2]", "the line is no JSON object"),
        ('{"input_length": 5, "output_length": 5}', "timestamp is no time"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 5}', "timestamp is no time"),
        ('{"timestamp": [], "input_length": 5, "output_length": 5}', "timestamp is no time"),
        ('{"timestamp": 3, "input_length": true, "output_length": 5}', "input_length is no whole"),
        ('{"timestamp": 3, "input_length": [5], "output_length": 5}', "input_length is no whole"),
        ('{"timestamp": 3, "input_length": 5, "output_length": null}', "output_length is no whole"),
        (
            '{"timestamp":0.2,"input_length":20,"output_length":8,"hash_ids":[0,1]}',
            "hash_ids are not one per block",
        ),
    ],
)
def test_a_malformed_mooncake_row_is_dropped_with_its_reason(read, bad, reason):
    good = [json.dumps(mooncake(*each)) for each in ((0, 6758, 500), (0, 7322, 490), (3, 513, 1))]
    trace = read("\n".join([good[0], bad, *good[1:]]))
    assert rows(trace) == [[6758, 500], [7322, 490], [513, 1]]
    assert trace.time.tolist() == [0, 0, 3]
    assert [count for why, count in trace.dropped.items() if why.startswith(reason)] == [1]
    assert len(trace.dropped) == 1


@pytest.mark.parametrize("size", [16, 64, 256])
def test_hashes_of_another_block_size_are_no_reason_to_drop(read, size):
    records = [
        mooncake(0, prompt, 5) | {"hash_ids": [0] * -(-prompt // size)}
        for prompt in (5, 100, 3000, 200, 20, 700)
    ]
    trace = read(written(records))
    assert len(rows(trace)) == 6
    assert trace.dropped == {}


def test_hashes_of_full_blocks_only_and_of_none_are_no_reason_to_drop(read):
    records = [
        mooncake(0, prompt, 5) | {"hash_ids": [0] * (prompt // 48)} for prompt in (5, 1000, 3000)
    ]
    assert len(rows(read(written(records)))) == 3


def test_times_with_and_without_an_offset_are_the_same_clock(read):
    trace = read(AZURE + "2024-05-10 00:00:01.5,1,1\n2024-05-10 02:00:00.000000+02:00,2,2\n")
    assert trace.time.tolist() == [0, 1.5]
    assert rows(trace) == [[2, 2], [1, 1]]


def test_a_header_may_have_quotes_other_columns_in_between_and_blanks(read):
    trace = read('"Generated Tokens?",output_tokens ,"x" , prompt_tokens\n1,2,"a, ""b""",3\n')
    assert (trace.time, rows(trace)) == (None, [[3, 2]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; give CSV with a header"),
        ("\ufeff\n \r\n", "is empty; give"),
        (PLAIN, "has a header and no rows"),
        (BURST + "1,,,GPT-4,5,0,5,API log\n", "has no request that completed"),
        ("a;b\n1;2\n", "starts with 'a;b'; give"),
        (b"PK\x03\x04\xff\xfe\x00", "is not UTF-8 text; give"),
        (b"\x00\x01\x02", r"starts with '\\x00"),
        (PLAIN + '1,5,"5\n2,6,6\n', "is not CSV: unexpected end of data"),
        (
            PLAIN + "1,5,5\nx,5,5\nx,5,5\n1,5,0\n",
            "3 of 4 rows are no plain requests, 2 because time",
        ),
        ('{"prompt": "hello"}\n', "1 of 1 rows are no Mooncake requests, 1 because timestamp"),
    ],
)
def test_what_is_no_trace_is_refused_with_what_was_found_and_what_would_do(read, content, message):
    with pytest.raises(InputError, match=message) as refusal:
        read(content)
    assert "\n" not in str(refusal.value)


def test_a_path_without_a_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"missing\.csv does not exist"):
        read_trace(tmp_path / "missing.csv")
    with pytest.raises(InputError, match="is a directory"):
        read_trace(tmp_path)
