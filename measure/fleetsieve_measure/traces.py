"""Request traces: arrival times and token counts, read from the formats that traces come in."""

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.lengths import MOST_TOKENS

# One hash per block of prompt tokens; Mooncake's own block size comes first, so that it wins ties.
_BLOCK_SIZES = (512, 16, 32, 64, 128, 256, 1024, 2048)


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in the order of their arrival.

    Attributes:
        time: (n,) arrivals in seconds, ascending from 0; None where the format has no times.
        prompt_tokens: (n,) prompt lengths, at least 1.
        output_tokens: (n,) output lengths, at least 1.
        dropped: how many rows were left out, by reason.
    """

    time: NDArray[np.float64] | None
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    dropped: Mapping[str, int]


def read_trace(path: str | Path) -> Trace:
    """The requests of a trace file, whose format is told by its first line.

    Formats: Azure LLM, BurstGPT, ServeGen lengths and `time_s,prompt_tokens,output_tokens` as CSV
    (other columns are ignored), Mooncake and Qwen-Bailian as JSON lines. Rows that cannot be
    requests are dropped and counted, failed requests of BurstGPT among them. `hash_ids` are
    checked, not replayed.

    Raises:
        InputError: the file cannot be read, has no known format, or has no request or more
            malformed rows than good ones.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return _read(file, str(path))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; name an existing trace file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory; name a trace file in it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}; give a readable file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; give {_KNOWN}") from None
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}; give comma-separated values") from None


def _iso_seconds(text: str) -> float:
    """Seconds since 1970; a time without an offset is UTC, and digits after µs are cut off."""
    moment = datetime.fromisoformat(text.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _milliseconds(value: float | str) -> float:
    return float(value) / 1000


def _untimed(_: object) -> float:
    return 0.0


@dataclass(frozen=True)
class _Format:
    """Where a format keeps what a request is.

    Attributes:
        time: the column of arrival times, None without one; `seconds` reads its cells.
        failed: why a row with 0 output tokens is no request, if the format means something by it.
        mark: a column that tells the format from another with the same columns.
    """

    source: str
    time: str | None
    prompt: str
    output: str
    seconds: Callable[[Any], float] = float
    failed: str = ""
    mark: str = ""

    @property
    def columns(self) -> tuple[str, str, str]:
        """Columns of time, prompt and output; without times the first one is not looked at."""
        return self.time or self.prompt, self.prompt, self.output

    def fits(self, names: Iterable[str]) -> bool:
        """Whether a file with columns `names` is of this format."""
        return {_plain(name) for name in (*self.columns, self.mark) if name} <= set(names)


_CSV = (
    _Format("Azure LLM", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _iso_seconds),
    _Format(
        "BurstGPT",
        "Timestamp",
        "Request tokens",
        "Response tokens",
        failed="the request failed (Response tokens is 0)",
    ),
    _Format("plain", "time_s", "prompt_tokens", "output_tokens"),
    _Format("ServeGen", None, "prompt_tokens", "output_tokens", _untimed),
)
_BAILIAN = _Format("Qwen-Bailian", "timestamp", "input_length", "output_length", mark="chat_id")
_MOONCAKE = _Format("Mooncake", "timestamp", "input_length", "output_length", _milliseconds)
_KNOWN = (
    "CSV with a header such as "
    + ", or ".join(",".join(dict.fromkeys(known.columns)) for known in _CSV)
    + ", or JSON lines with "
    + ", ".join(_MOONCAKE.columns)
)


@dataclass
class _Requests:
    """What has been read so far; `blocks` counts the hashes of a row, 0 without any."""

    layout: _Format
    time: list[float] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, time: Any, prompt: Any, output: Any, blocks: int) -> None:
        """Take a row, or count why it is no request."""
        layout = self.layout
        requested, generated = _tokens(prompt), _tokens(output)
        seconds = _finite(layout.seconds, time)
        if seconds is None:
            self.dropped[f"{layout.time} is no time"] += 1
        elif not requested:
            self.dropped[f"{layout.prompt} is no whole number from 1 to {MOST_TOKENS}"] += 1
        elif generated == 0 and layout.failed:
            self.dropped[layout.failed] += 1
        elif not generated:
            self.dropped[f"{layout.output} is no whole number from 1 to {MOST_TOKENS}"] += 1
        else:
            self.time.append(seconds)
            self.prompt.append(requested)
            self.output.append(generated)
            self.blocks.append(blocks)

    def trace(self) -> Trace:
        """The requests by arrival, without those whose hashes contradict their length."""
        time, prompt = np.array(self.time), np.array(self.prompt, dtype=np.int64)
        kept = _hashes_fit(prompt, np.array(self.blocks, dtype=np.int64))
        if not kept.all():
            self.dropped["hash_ids are not one per block of input_length"] += int((~kept).sum())
        order = np.flatnonzero(kept)
        order = order[np.argsort(time[order], kind="stable")]
        return Trace(
            time=time[order] - time[order[0]] if self.layout.time else None,
            prompt_tokens=prompt[order],
            output_tokens=np.array(self.output, dtype=np.int64)[order],
            dropped=dict(self.dropped),
        )


def _read(file: Iterable[str], source: str) -> Trace:
    lines = (line for line in file if not line.isspace())
    first = next(lines, None)
    if first is None:
        raise InputError(f"{source} is empty; give {_KNOWN}")
    json_lines = first.lstrip().startswith("{")
    requests, rows = _jsonl(first, lines) if json_lines else _csv(first, lines, source)
    for row in rows:
        if row is None:
            requests.dropped["the line is no JSON object"] += 1
        else:
            requests.add(*row)
    _check(requests, source)
    return requests.trace()


_Row = tuple[Any, Any, Any, int]


def _csv(first: str, lines: Iterator[str], source: str) -> tuple[_Requests, Iterator[_Row]]:
    names = [_plain(name) for name in next(csv.reader([first]))]
    layout = next((known for known in _CSV if known.fits(names)), None)
    if layout is None:
        raise InputError(f"{source} starts with {first.strip()[:80]!r}; give {_KNOWN}")
    places = [names.index(_plain(column)) for column in layout.columns]
    return _Requests(layout), _csv_rows(lines, places)


def _csv_rows(lines: Iterator[str], places: list[int]) -> Iterator[_Row]:
    cells, width = itemgetter(*places), max(places) + 1
    for row in csv.reader(lines, strict=True):
        if any(row):
            yield *cells(row if len(row) >= width else row + [""] * width), 0


def _jsonl(first: str, lines: Iterator[str]) -> tuple[_Requests, Iterator[_Row | None]]:
    layout = _BAILIAN if _BAILIAN.fits(_record(first) or ()) else _MOONCAKE
    return _Requests(layout), _jsonl_rows(chain([first], lines), layout.columns)


def _jsonl_rows(lines: Iterator[str], columns: tuple[str, ...]) -> Iterator[_Row | None]:
    time, prompt, output = columns
    for record in map(_record, lines):
        if record is None:
            yield None
        else:
            hashes = record.get("hash_ids")
            blocks = len(hashes) if isinstance(hashes, list) else 0
            yield record.get(time), record.get(prompt), record.get(output), blocks


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def _tokens(value: Any) -> int | None:
    """A whole number from 0 to the most that counts as tokens, also as text or as 374.0."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = _finite(float, value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= MOST_TOKENS else None


def _finite(seconds: Callable[[Any], float], value: Any) -> float | None:
    try:
        number = seconds(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _hashes_fit(prompt: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,) whether a row has one hash per block, of the block size that most rows agree on.

    Traces do not name their block size, and some hash full blocks only: where no size fits half
    of the rows, nothing is known and all pass.
    """
    hashed = blocks > 0
    fits = max((blocks == -(-prompt // size) for size in _BLOCK_SIZES), key=np.count_nonzero)
    known = 2 * np.count_nonzero(fits) >= np.count_nonzero(hashed)
    return fits | ~hashed if known else np.ones_like(hashed)


def _check(requests: _Requests, source: str) -> None:
    """Refuse what has no requests, or more malformed rows than well-formed ones."""
    layout, dropped, kept = requests.layout, requests.dropped, len(requests.time)
    total = kept + dropped.total()
    malformed = total - kept - dropped[layout.failed]
    if 2 * malformed > total:
        reason, count = dropped.most_common(1)[0]
        raise InputError(
            f"{source}: {malformed} of {total} rows are no {layout.source} requests, {count} "
            f"because {reason}; give {_KNOWN}"
        )
    if not kept:
        found = "no request that completed" if total else "a header and no rows"
        raise InputError(f"{source} has {found}; give a trace with completed requests")
