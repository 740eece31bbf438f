"""An engine's arguments as flags of its command line."""

import json
from collections.abc import Mapping
from typing import Any

from fleetsieve_measure.errors import InputError

_CHOSEN = {"host", "port", "model", "model-path"}


def flags(args: Mapping[str, object], *, separator: str = "-", repeats: bool = False) -> list[str]:
    """`args` as flags: True stands alone, False and None are left out, a mapping becomes JSON.

    A list gives its values one after the other behind one flag, as argparse takes them, or with
    `repeats` behind a flag each, as click does. `separator` joins the words of a flag, however the
    argument spells them; what follows a dot is a key of a nested value and stays as it is.

    Raises:
        InputError: an argument that the launcher chooses itself, or one that would show a secret.
    """
    line: list[str] = []
    for name, value in args.items():
        flag = _flag(name, separator)
        if value is None or value is False:
            continue
        if value is True:
            line.append(flag)
        elif isinstance(value, list | tuple):
            texts = [_text(item) for item in value]
            behind_one = [flag, *texts] if texts else []
            behind_each = [part for text in texts for part in (flag, text)]
            line += behind_each if repeats else behind_one
        else:
            line += [flag, _text(value)]
    return line


def _flag(name: str, separator: str) -> str:
    head, dot, keys = name.lstrip("-").partition(".")
    plain = head.replace("_", "-")
    if plain in _CHOSEN:
        raise InputError(f"args: {name} is set by the launcher; leave it out")
    if plain == "api-key":
        raise InputError(
            f"args: {name} would show in the list of processes; leave it out, or hand the key to "
            "the engine in an environment variable that api_key_env names"
        )
    return f"--{plain.replace('-', separator)}{dot}{keys}"


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | Mapping) else str(value)
