"""Where an export is written: standard output, a file, or a folder of files."""

from pathlib import Path

from fleetsieve import json_text
from fleetsieve.errors import InputError
from fleetsieve.export.formats import Files


def write(files: Files, out: str | None) -> list[Path]:
    """Write `files` to the file or the folder `out`, else to stdout; the paths that were written.

    A folder is one that exists, or a new path without a suffix, which is created.

    Raises:
        InputError: there are several files and no folder, or one cannot be written.
    """
    if out is None or out == json_text.STDOUT:
        print(_only(files, "-o DIR"), end="")
        return []
    if not out:
        raise InputError("-o is empty; name a file or a folder")
    path = json_text.named("-o", out)
    file = path.exists() or (path.suffix and not out.endswith("/"))
    if file and not path.is_dir():
        return [_written(path, _only(files, f"a folder instead of -o {out}"))]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"-o is {out!r}: {error.strerror}; name another folder") from None
    return [_written(path / name, text) for name, text in files.items()]


def _only(files: Files, instead: str) -> str:
    if len(files) > 1:
        raise InputError(
            f"the export has {len(files)} files, {', '.join(list(files)[:3])}..; give {instead}"
        )
    return next(iter(files.values()))


def _written(path: Path, text: str) -> Path:
    try:
        json_text.replace(path, text)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}; name a writable folder"
        ) from None
    return path
