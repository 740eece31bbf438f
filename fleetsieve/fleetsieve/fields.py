"""Field types of the fleet file: numbers, names and tables that refuse what only looks right."""

import math
import re
from typing import Annotated, Any

from annotated_types import Ge, Gt, Lt
from pydantic import BaseModel, BeforeValidator, ConfigDict

from fleetsieve.metric import ACCEPTED, is_metric, meant

# PyYAML follows YAML 1.1, where 1e-3 without a dot is text.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")

# Fits every integer array and database column that it may end in.
_MAX_INTEGER = 10**9
# Numbers outside are slips, and their sums and ratios would leave what floats can hold.
_SMALLEST, _LARGEST = 1e-15, 1e15


class Table(BaseModel):
    """A mapping of the fleet file: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _number(value: Any) -> float:
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a plain number is needed")
    if value != 0 and not _SMALLEST <= abs(value) <= _LARGEST:
        raise ValueError(f"a finite number is needed, 0 or from {_SMALLEST:g} to {_LARGEST:g}")
    return float(value)


def _integer(value: Any) -> int:
    number = _number(value)
    if not number.is_integer() or abs(number) > _MAX_INTEGER:
        raise ValueError(f"a whole number up to {_MAX_INTEGER} is needed")
    return int(number)


def _name(value: Any) -> str:
    if isinstance(value, bool):
        raise ValueError("YAML reads an unquoted yes, no, on or off as true or false: quote it")
    if not isinstance(value, str):
        raise ValueError("a name is text: write it in quotes")
    if not value.strip() or value != value.strip() or not value.isprintable():
        raise ValueError(
            "a name is not empty and has no blanks around it and no control characters"
        )
    return value


def _feature(value: Any) -> float | str:
    number = isinstance(value, str) and _EXPONENT.fullmatch(value)
    return _name(value) if isinstance(value, bool | str) and not number else _number(value)


def _metric(value: Any) -> str:
    if not isinstance(value, str) or not is_metric(value):
        close = meant(str(value))
        raise ValueError(f"SLO keys match {ACCEPTED}, and their limits are in seconds{close}")
    return value


def _option(value: Any) -> Any:
    match value:
        case list():
            return [_option(item) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _option(item) for key, item in value.items()}
        case float() if not math.isfinite(value):
            raise ValueError("a finite number is needed")
        case str() | bool() | int() | float() | None:
            return value
    raise ValueError("an option is text, a number, true, false, null, or a list or mapping of them")


Number = Annotated[float, BeforeValidator(_number)]
NonNegative = Annotated[Number, Ge(0)]
Positive = Annotated[Number, Gt(0)]
Fraction = Annotated[Number, Gt(0), Lt(1)]
Integer = Annotated[int, BeforeValidator(_integer)]
Natural = Annotated[Integer, Ge(0)]
Count = Annotated[Integer, Ge(1)]
Name = Annotated[str, BeforeValidator(_name)]
Feature = Annotated[float | str, BeforeValidator(_feature)]
Option = Annotated[Any, BeforeValidator(_option)]
Metric = Annotated[str, BeforeValidator(_metric)]
