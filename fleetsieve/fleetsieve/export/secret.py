"""Secrets in what is exported: they are referred to by name, and never written."""

import re
from collections.abc import Mapping

from fleetsieve.errors import InputError
from fleetsieve.secret import is_secret, without_secrets
from fleetsieve_measure.engines.arguments import flags

SECRET = "fleetsieve"
"""The Kubernetes Secret that holds them, by the names of their variables."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check(place: str, args: Mapping[str, object], env: Mapping[str, str]) -> None:
    """Refuse secrets among the arguments, and variables that not every format can name.

    Raises:
        InputError: there is one.
    """
    for name, value in args.items():
        if _hides(name, value):
            raise InputError(
                f"{place}: args: {name} looks like a secret and would be written down; hand it to "
                "the engine in an environment variable, as env: {HF_TOKEN: ..}"
            )
    for name in env:
        if not _VARIABLE.fullmatch(name):
            raise InputError(
                f"{place}: env: {name[:60]!r} is no name of an environment variable; use letters, "
                "digits and _"
            )
    for text in (*env.values(), *flags(args)):
        if "\0" in text:
            raise InputError(f"{place}: {text[:60]!r} has a NUL in it; leave that out")


def _hides(name: str, value: object) -> bool:
    """Whether an argument holds a secret; a plain text may be a template and name anything."""
    if isinstance(value, str):
        return is_secret(name, value)
    inside = {name: value} if isinstance(value, Mapping | list) else {}
    return without_secrets(inside) != inside
