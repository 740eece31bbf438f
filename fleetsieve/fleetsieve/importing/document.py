"""A result file as records or as a table: read leniently, refused in one sentence."""

import codecs
import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetsieve import yaml_text
from fleetsieve.errors import InputError

_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".yaml", ".yml")
_MAX_BYTES = 1_000_000_000
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@dataclass(frozen=True)
class Document:
    """What a file holds.

    Attributes:
        path: where it was read.
        records: the objects of a JSON, JSONL or YAML file, those of a top-level list included.
        table: the rows of a CSV file.
        broken: why the end of the file is missing, where only that is wrong.
    """

    path: Path
    records: tuple[dict[str, Any], ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    broken: str | None = None

    def place(self, number: int) -> str:
        """What errors call the record of this index."""
        return str(self.path) if len(self.records) == 1 else f"{self.path}, record {number + 1}"


def read(path: Path) -> Document:
    """Read a file by its suffix.

    Raises:
        InputError: it is missing, unreadable, empty, or holds nothing that can be used.
    """
    if not is_there(path):
        raise InputError(f"{path} does not exist; name an existing file or folder")
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        return _of_values(path, [_as_json(yaml_text.parse(yaml_text.read_text(path), str(path)))])
    if suffix not in _SUFFIXES:
        raise InputError(
            f"{path} has the suffix {suffix!r}; results have one of {', '.join(_SUFFIXES)}"
        )
    text = _text(path)
    if not text.strip():
        raise InputError(f"{path} is empty; the benchmark wrote no result")
    return _of_csv(path, text) if suffix == ".csv" else _of_json(path, text)


def is_there(path: Path) -> bool:
    """Whether the path leads anywhere; no error where no file can have such a name."""
    try:
        return path.exists()
    except OSError:
        return False


def _text(path: Path) -> str:
    try:
        if not path.is_file():  # a device or a pipe may never end
            raise InputError(f"{path} is no ordinary file; name one")
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} has over {_MAX_BYTES} bytes; name the tool's summary instead")
        data = path.read_bytes()
        encoding = next(
            (e for mark, e in _BYTE_ORDER_MARKS.items() if data[:3].startswith(mark)), "utf-8"
        )
        return data.decode(encoding)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; give the file as the tool wrote it") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be read: {reason}; give a readable file") from None


def _of_json(path: Path, text: str) -> Document:
    """All values of `text`: tools append objects to a file, with or without a line end between."""
    values, broken = [], None
    try:
        for value in _values(text):
            values.append(value)  # noqa: PERF402 - those before the fault stay
    except (ValueError, RecursionError) as error:
        broken = _fault(error, text)
        if not values:
            raise InputError(f"{path} {broken}; give the whole file") from None
    return _of_values(path, values, broken)


def _values(text: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), _next(text, 0)
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value
        at = _next(text, at)


def _next(text: str, at: int) -> int:
    """Where the next value begins; a comma between two values is passed over too."""
    while at < len(text) and text[at] in " \t\r\n,\x00":
        at += 1
    return at


def _fault(error: Exception, text: str) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return "is no JSON that can be read: it nests too deeply or has too long a number"
    where = f"line {error.lineno}, column {error.colno}"
    cut = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated string")
    if cut:
        return f"is cut short: it ends amid a value that is open at {where}"
    return f"is no JSON at {where} ({error.msg})"


def _as_json(value: Any) -> Any:
    """A YAML value with text for keys, as JSON has them."""
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, list) else value


def _of_values(path: Path, values: list[Any], broken: str | None = None) -> Document:
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    if not flat or not all(isinstance(item, dict) for item in flat):
        raise InputError(f"{path} is no result of a tool that is known: it holds no JSON objects")
    return Document(path, records=tuple(flat), broken=broken)


def _of_csv(path: Path, text: str) -> Document:
    csv.field_size_limit(sys.maxsize)  # a tool may put a list of all requests into a cell
    try:
        rows = tuple(tuple(row) for row in csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}; give comma-separated values") from None
    cut = "does not end with a line end: its last line may be cut short"
    return Document(path, table=rows, broken=None if text.endswith("\n") else cut)
