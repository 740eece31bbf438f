"""A replay as it is read from its JSON form: how policies compared, without pictures."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fleetsieve.errors import InputError
from fleetsieve.schemas import ReplayJson, Run
from fleetsieve.yaml_text import read_text

SCHEMA = "fleetsieve.replay/1"
_LARGEST = 1e15
_WANTED = "the JSON of `fleetsieve replay`, or a study that `fleetsieve run` wrote"


def read(path: Path) -> ReplayJson:
    """The replay in a JSON file.

    Raises:
        InputError: it cannot be read, or is no replay.
    """
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is neither a study nor JSON; name {_WANTED}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        found = f"has the schema {str(schema)[:60]!r}" if schema is not None else "has no schema"
        raise InputError(f"{path} {found}; name {_WANTED}")
    try:
        found = TypeAdapter(ReplayJson).validate_python(data)
    except ValidationError as error:
        raise InputError(f"{path}: {_first(error)}; name {_WANTED}") from None
    for where, value in _numbers(data):
        if abs(value) > _LARGEST or (value < 0 and "gpu_seconds" in where):
            raise InputError(f"{path}: {where} is {_short(value)}; name {_WANTED}")
    return found


def cost(run: Run, key: str, whole: float) -> float:
    """GPU-seconds until the certificate or the oracle; a run that never got there pays for all."""
    spent = getattr(run, f"gpu_seconds_to_{key}")
    return whole if spent is None else spent


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return sum(values) / len(values)


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part)[:60] for part in first["loc"])
    return f"{where} is {_short(first['input'])}: {first['msg'].lower()}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _numbers(data: Any, where: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in `data`, with where they are; larger ones than any run has break pictures."""
    if isinstance(data, int | float):
        yield where, data
    listed = data if isinstance(data, list) else ()
    pairs = data.items() if isinstance(data, dict) else enumerate(listed)
    for key, part in pairs:
        yield from _numbers(part, f"{where}.{str(key)[:60]}" if where else str(key)[:60])
