"""Writes a grid, once it is known to read back as the same."""

from collections.abc import Iterable
from pathlib import Path

from fleetsieve import json_text, table
from fleetsieve.errors import InputError
from fleetsieve.grid import Grid
from fleetsieve.whole_file import replacing


def check_out(out: Path) -> None:
    """Refuse a place for a grid before the work for it is done.

    Raises:
        InputError: its suffix is none of a grid, or no file can be written there.
    """
    table.is_parquet(out)
    json_text.check_writable(str(out), "-o")


def write(grid: Grid, out: Path, empty: Iterable[str]) -> None:
    """Write `grid` to `out`, replacing it at once; `empty`: columns that no row may fill.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with replacing(out) as beside:
            grid.write(beside, empty)
            if Grid.read(beside).rows != grid.rows:
                raise AssertionError(f"{out} does not read back as it was written")
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{out} cannot be written: {reason}; name another") from None
    except UnicodeError:
        raise InputError(
            f"{out} cannot hold a name that is no Unicode text; give others with --set"
        ) from None
