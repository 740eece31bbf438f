"""JSON that a command writes: strict, and as a whole file or not at all."""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from fleetsieve.errors import InputError
from fleetsieve.whole_file import replacing

STDOUT = "-"
_SHOWN = 60


def check_writable(out: str | None, option: str = "--json") -> None:
    """Refuse a place for results, given by `option`, before the work for them is done.

    Raises:
        InputError: `out` is a directory, lies in none, or lies in one that cannot be written.
    """
    if out is None or out == STDOUT:
        return
    path = named(option, out)
    if path.is_dir():
        raise InputError(f"{option} is {out!r}, a directory; name a file in it")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"{option} is {out!r}, whose folder does not exist; create it first")
    if not path.exists() and not os.access(folder, os.W_OK):
        raise InputError(f"{option} is {out!r}, whose folder cannot be written; name another")


def named(option: str, out: str) -> Path:
    """The file that `out`, the value of an option, names.

    Raises:
        InputError: no file can have that name.
    """
    try:
        Path(out).lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        shown = out if len(out) <= _SHOWN else f"{out[:_SHOWN]}.."
        raise InputError(f"{option} is {shown!r}, which can be no file; name another") from None
    return Path(out)


def write(data: Any, out: str) -> None:
    """Write `data` to the file `out`, replacing it at once, or to stdout when it is `-`.

    Raises:
        InputError: the file cannot be written.
    """
    put(json.dumps(strict(data), indent=2, allow_nan=False) + "\n", out)


def put(text: str, out: str) -> None:
    """Write `text` to the file `out`, replacing it at once, or to stdout when it is `-`.

    Raises:
        InputError: the file cannot be written.
    """
    if out == STDOUT:
        sys.stdout.write(text)
        return
    try:
        replace(Path(out), text)
    except OSError as error:
        raise InputError(
            f"{out} cannot be written: {error.strerror}; name a file in a writable folder"
        ) from None


def strict(value: Any) -> Any:
    """`value` with null for infinite numbers and NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {name: strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replace(path: Path, text: str) -> None:
    """Write a file through one beside it, so that a reader never sees half of it.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():  # a pipe or /dev/stdout cannot be replaced
        path.write_text(text, encoding="utf-8")
        return
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
