"""A replay as it is read from its JSON form: how policies compared, without pictures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fleetsieve.errors import InputError
from fleetsieve.schemas import ReplayJson, Run
from fleetsieve.yaml_text import read_text

SCHEMA = "fleetsieve.replay/1"
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
    _check(found, path)
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


def _check(found: ReplayJson, path: Path) -> None:
    """Refuse costs that no run has, which would break every picture."""
    costs = [
        (f"policies.{name[:60]} to_{key}", cost(run, key, 0.0))
        for name, policy in found.policies.items()
        for run in policy.runs
        for key in ("oracle", "certificate")
    ]
    costs.append(("grid_gpu_seconds", found.grid_gpu_seconds))
    for where, value in costs:
        if value < 0:
            raise InputError(f"{path}: {where} is {value}; give GPU-seconds of at least 0")
