"""One sentence for what is wrong in a fleet file: key path, value and what would be accepted."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fleetsieve.nearest import close_to

Location = tuple[int | str, ...]


def sentence(error: ValidationError, model: type[BaseModel], data: Any, source: str) -> str:
    """The first error of `error`, found while reading `data` from `source` as `model`."""
    details = error.errors(include_url=False)
    first = next((d for d in details if d["type"] == "extra_forbidden"), details[0])
    kind, given = first["type"], first["input"]
    location, of_key = _without_key_mark(first["loc"])
    fields, info = _reach(model, location)
    where = _path(location, data)
    accepted = info.description if info is not None else None
    if kind in ("extra_forbidden", "invalid_key") or (of_key and kind == "string_type"):
        return f"{source}: {_unknown(location, data, fields)}"
    if kind == "missing":
        return f"{source}: {where} is missing; give {accepted or 'it'}"
    reason = str(first.get("ctx", {}).get("error", first["msg"]))
    if of_key:
        return f"{source}: {where} is no key to use; {reason}"
    if kind == "value_error" and isinstance(given, Mapping) and ";" in reason:
        return f"{source}: {where}{': ' if where else ''}{reason}"
    if kind != "value_error":
        return f"{source}: {where} is {_short(given)}; give {accepted or reason}"
    hint = f" ({accepted})" if accepted else ""
    return f"{source}: {where} is {_short(given)}; {reason}{hint}"


def _without_key_mark(location: Location) -> tuple[Location, bool]:
    marked = bool(location) and location[-1] == "[key]"
    return (location[:-1], True) if marked else (location, False)


def _reach(
    model: type[BaseModel], location: Location
) -> tuple[dict[str, FieldInfo], FieldInfo | None]:
    """The fields of the table in which `location` ends, and the last field on the way to it."""
    fields, info = _by_alias(model), None
    for part in location:
        if part in fields:
            info = fields[str(part)]
            table = _table_of(info.annotation)
            fields = _by_alias(table) if table else {}
        elif fields and isinstance(part, str):
            return fields, None
    return fields, info


def _by_alias(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _table_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_table_of, get_args(annotation))), None)


def _path(location: Location, data: Any) -> str:
    """`workloads[1] 'chat': slo.e2e_p99` for ("workloads", 1, "slo", "e2e_p99")."""
    text, value = "", data
    for part in location:
        value = _step(value, part)
        if isinstance(part, int):
            text += f"[{part}]"
            name = value.get("name") if isinstance(value, Mapping) else None
            text += f" {_short(name)}:" if isinstance(name, str) else ":"
        else:
            separator = " " if text.endswith(":") else "." if text else ""
            text += f"{separator}{part if part.isprintable() and len(part) < 60 else _short(part)}"
    return text.removesuffix(":")


def _step(value: Any, part: int | str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part)
    if isinstance(value, Sequence) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def _unknown(location: Location, data: Any, fields: Mapping[str, FieldInfo]) -> str:
    table, key = _path(location[:-1], data), location[-1]
    place = f"{table}{'' if table.endswith(':') else ':'} " if table else ""
    hint = close_to(str(key), fields) or f"accepted are {', '.join(fields)}"
    if not fields:
        hint = "write keys as text, in quotes where YAML reads them otherwise"
    return f"{place}the key {_short(key)} is unknown; {hint}"


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
