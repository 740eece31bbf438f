"""A JSON object whose fields are read with a refusal that names file and field."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fleetsieve.errors import InputError
from fleetsieve.importing.units import statistic_name

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
_NAMED = {"inf": math.inf, "+inf": math.inf, "infinity": math.inf, ".inf": math.inf}
_ABSENT = ("", "nan", "none", "null", "n/a")


class Source:
    """An object in a result file; what is missing, null or NaN reads as None.

    `notes` collects what a reader of the summary should know of the fields.
    """

    def __init__(
        self, place: str, data: Mapping[str, Any], notes: list[str] | None = None, prefix: str = ""
    ) -> None:
        """`place` names the file, `prefix` the way to this object in it."""
        self.place, self.data, self.prefix = place, data, prefix
        self.notes: list[str] = [] if notes is None else notes

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def error(self, key: str, accepted: str) -> InputError:
        """The refusal of a field."""
        value = repr(self.data.get(key))
        shown = value if len(value) <= 60 else f"{value[:57]}..."
        return InputError(f"{self.place}: {self.prefix}{key} is {shown}; {accepted}")

    def at(self, key: str) -> "Source":
        """The object of this name; an empty one where it is missing or null.

        Raises:
            InputError: it is something else.
        """
        value = self.data.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(key, "an object is needed there")
        return Source(self.place, value or {}, self.notes, f"{self.prefix}{key}.")

    def each(self, key: str) -> list["Source"]:
        """The objects of a list of this name; none where it is missing or null.

        Raises:
            InputError: it is something else.
        """
        value = self.data.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise self.error(key, "a list of objects is needed there")
        return [
            Source(self.place, item, self.notes, f"{self.prefix}{key}[{i}].")
            for i, item in enumerate(value)
        ]

    def number(self, key: str) -> float | None:
        """The number of this name, which may be infinite; text that reads as one will do.

        Raises:
            InputError: it is something else, or negative.
        """
        value = self.data.get(key)
        number = _number(value)
        if number is None and not _is_absent(value):
            raise self.error(key, "a number is needed there")
        if number is not None and math.isnan(number):
            self.notes.append(f"{self.prefix}{key} is NaN")
            return None
        if number is not None and number < 0:
            raise self.error(key, "a number of at least 0 is needed there")
        return number

    def finite(self, key: str) -> float | None:
        """As `number`, and finite.

        Raises:
            InputError: it is something else.
        """
        number = self.number(key)
        if number is not None and math.isinf(number):
            raise self.error(key, "a finite number is needed there")
        return number

    def whole(self, key: str) -> int | None:
        """The whole number of this name.

        Raises:
            InputError: it is something else.
        """
        number = self.finite(key)
        if number is not None and not number.is_integer():
            raise self.error(key, "a whole number is needed there")
        return None if number is None else int(number)

    def text(self, key: str) -> str | None:
        """The text of this name; None where it is empty, or no text."""
        value = self.data.get(key)
        return value.strip() or None if isinstance(value, str) else None

    def statistics(self) -> dict[str, float]:
        """The means and percentiles among the fields, by the tool's names.

        Raises:
            InputError: one of them is no number.
        """
        names = [key for key in self.data if isinstance(key, str) and statistic_name(key)]
        found = {name: self.number(name) for name in names}
        return {name: value for name, value in found.items() if value is not None}


def of_row(place: str, columns: Sequence[str], row: Sequence[str]) -> Source:
    """The row of a table as an object.

    Raises:
        InputError: it has more or fewer cells than the header, as a line that was cut short.
    """
    if len(row) != len(columns):
        raise InputError(f"{place} has {len(row)} cells for {len(columns)} columns; is it cut?")
    return Source(place, dict(zip(columns, row, strict=True)))


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e300 or isinstance(value, float) else math.inf
    if not isinstance(value, str):
        return None
    text = value.strip().lower()
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return float(text) if _NUMBER.fullmatch(text) else _NAMED.get(text)


def _is_absent(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _ABSENT)
