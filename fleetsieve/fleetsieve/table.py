"""Tables in CSV and Parquet files: records whose cells are read with a refusal in one sentence."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetsieve.errors import InputError

_DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
# Numbers outside are slips, and their sums and ratios would leave what floats can hold.
_SMALLEST, _LARGEST = 1e-15, 1e15
_INFINITE = re.compile(r"\+?inf(inity)?", re.IGNORECASE)
_TRUTH = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


@dataclass(frozen=True)
class Record:
    """One row of a table; `place` names file and line. Empty and missing cells are the same."""

    place: str
    cells: Mapping[str, Any]

    def error(self, column: str, accepted: str) -> InputError:
        """The refusal of this row's cell in `column`."""
        value = self.cells.get(column)
        shown = "empty" if self.text(column) is None else repr(value)[:60]
        return InputError(f"{self.place}: {column} is {shown}; {accepted}")

    def text(self, column: str) -> str | None:
        """The cell as text without blanks around it; None when empty."""
        value = self.cells.get(column)
        return None if value is None else str(value).strip() or None

    def looks_numeric(self, column: str) -> bool:
        """Whether the cell is a number or text that reads as a finite one."""
        value = self.cells.get(column)
        if isinstance(value, str):
            return _DECIMAL.fullmatch(value.strip()) is not None
        return isinstance(value, int | float) and not isinstance(value, bool)

    def number(self, column: str, *, at_least: float = 0.0, infinite: bool = False) -> float | None:
        """The cell as a number not below `at_least`, finite unless `infinite`; None when empty.

        Raises:
            InputError: anything else.
        """
        text = self.text(column)
        if text is None:
            return None
        bound = "" if math.isinf(at_least) else f", at least {at_least:g}"
        accepted = f"give a {'number or inf' if infinite else 'finite number'}{bound}"
        if not (self.looks_numeric(column) or _INFINITE.fullmatch(text)):
            raise self.error(column, accepted)
        number = float(text)
        if number != number or number < at_least or (math.isinf(number) and not infinite):
            raise self.error(column, accepted)
        if number != 0 and math.isfinite(number) and not _SMALLEST <= abs(number) <= _LARGEST:
            raise self.error(column, f"give 0, or a number from {_SMALLEST:g} to {_LARGEST:g}")
        return number

    def whole(self, column: str, *, at_least: int = 0) -> int | None:
        """The cell as a whole number not below `at_least`; None when empty.

        Raises:
            InputError: anything else.
        """
        accepted = f"give a whole number, at least {at_least}"
        if self.text(column) is None:
            return None
        if not self.looks_numeric(column):
            raise self.error(column, accepted)
        number = self.number(column, at_least=-math.inf)
        if number is None or number < at_least or not number.is_integer():
            raise self.error(column, accepted)
        return int(number)

    def truth(self, column: str) -> bool:
        """The cell as true or false; false when empty.

        Raises:
            InputError: anything else.
        """
        text = (self.text(column) or "false").lower()
        if text not in _TRUTH:
            raise self.error(column, "give true or false")
        return _TRUTH[text]


def read(path: Path) -> tuple[list[str], list[Record]]:
    """Column names and records of a CSV or Parquet file, told apart by the suffix.

    Raises:
        InputError: the file is missing, unreadable, not of its format, or has ragged rows.
    """
    if is_parquet(path):
        return _read_parquet(path)
    try:
        text = _bytes(path).decode("utf-8-sig")
        return _read_csv(text, str(path))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; give a CSV file in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}; give comma-separated values") from None


def write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `rows`, keyed by column, as CSV or Parquet by the suffix; absent cells are empty."""
    if is_parquet(path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({name: pa.array([r.get(name) for r in rows]) for name in columns})
        pq.write_table(table, path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_csv_text(row.get(name)) for name in columns] for row in rows)


def _csv_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return "" if value is None else str(value)


def is_parquet(path: Path) -> bool:
    """Whether the suffix is that of a Parquet file.

    Raises:
        InputError: it is neither that nor .csv.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{path} has the suffix {suffix!r}; name a .csv or .parquet file")
    return suffix != ".csv"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; name an existing file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory; name a file in it") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}; give a readable file") from None


def _read_csv(text: str, source: str) -> tuple[list[str], list[Record]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns = [name.strip() for name in next(reader, [])]
    if not columns:
        raise InputError(f"{source} is empty; give a header line and one row per measurement")
    records = []
    for cells in filter(None, reader):
        place = f"{source}, line {reader.line_num}"
        if len(cells) != len(columns):
            raise InputError(
                f"{place} has {len(cells)} cells for {len(columns)} columns; give one per column"
            )
        records.append(Record(place, dict(zip(columns, cells, strict=True))))
    return columns, records


def _read_parquet(path: Path) -> tuple[list[str], list[Record]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(io.BytesIO(_bytes(path))).read()
        columns = [str(name) for name in table.column_names]
        values = [column.to_pylist() for column in table.columns]
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is not Parquet: {reason}; give a Parquet file") from None
    return columns, [
        Record(f"{path}, row {number}", dict(zip(columns, cells, strict=True)))
        for number, cells in enumerate(zip(*values, strict=True), start=1)
    ]
