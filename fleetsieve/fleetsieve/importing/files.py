"""The files to import: those that are named, and those in folders that are named."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fleetsieve.importing.document import is_there

_DIGITS = re.compile(r"(\d+)")


def found(paths: Sequence[Path]) -> Iterator[Path]:
    """Every named file, and every file in a named folder, by name; hidden ones are passed over.

    A file that is found twice is given once.
    """
    seen: set[Path] = set()
    for path in paths:
        for file in _in_folder(path) if is_there(path) and path.is_dir() else [path]:
            if file.absolute() not in seen:
                seen.add(file.absolute())
                yield file


def _in_folder(folder: Path) -> list[Path]:
    """By name, in which 9 comes before 10."""
    files = (path for path in folder.rglob("*") if not path.is_dir() and not _hidden(path, folder))
    return sorted(files, key=_natural)


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = _DIGITS.split(path.as_posix())
    return [(1, int(p), "") if p.isdecimal() and p.isascii() else (0, 0, p) for p in parts]
