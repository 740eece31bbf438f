"""What the user says of runs: `--set KEY=VALUE` for all, `--path PATTERN` from each file's path."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fleetsieve.errors import InputError

_PART = re.compile(r"\{([^{}]*)\}|(\*\*/)|(\*)|([^{}*]+)|([{}])")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """Columns and values of `KEY=VALUE`; a value may contain more equals signs.

    Raises:
        InputError: another form, or a key with two values.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and key and value and key.isprintable()):
            raise InputError(f"--set is {text!r}; give COLUMN=VALUE, as in tp=4 or workload=chat")
        if found.setdefault(key, value) != value:
            raise InputError(f"--set gives {key} as {found[key]!r} and as {value!r}; give one")
    return found


class PathPattern:
    """A pattern for the end of a path, as in `{workload}/{config}-tp{tp}/*.json`.

    `{name}` is the column of that name and, like `*`, stays within one folder's or file's name;
    `**/` is any number of folders.
    """

    def __init__(self, text: str) -> None:
        """Read a pattern.

        Raises:
            InputError: a brace without its other one, or a name that can be no column.
        """
        self.text = text
        self._pattern = re.compile(f"(?:.*/)?{_expression(text)}", re.DOTALL)

    def columns(self, path: Path) -> dict[str, Any]:
        """What the path says.

        Raises:
            InputError: it does not fit.
        """
        match = self._pattern.fullmatch(path.absolute().as_posix())
        if match is None:
            raise InputError(f"{path} does not fit --path {self.text}")
        return match.groupdict()


def _expression(text: str) -> str:
    expression, names, open_ended = "", set[str](), False
    for match in _PART.finditer(text.removeprefix("./")):
        name, folders, star, plain, brace = match.groups()
        if brace or (name is not None and not _COLUMN.fullmatch(name)):
            raise InputError(f"--path is {text!r}; give names of columns in braces, as in {{tp}}")
        if open_ended and not (plain or folders):
            raise InputError(f"--path is {text!r}; write what stands between {{..}} and * in names")
        open_ended = not (plain or folders)
        if name is None:
            expression += "(?:[^/]+/)*" if folders else "[^/]*" if star else re.escape(plain)
        else:
            expression += f"(?P={name})" if name in names else f"(?P<{name}>[^/]+?)"
            names.add(name)
    if not names:
        raise InputError(f"--path is {text!r}; name a column in it, as in {{workload}}/*.json")
    return expression
