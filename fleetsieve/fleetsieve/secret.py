"""Which settings are secrets, and how a text is shown without them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NOT_SHOWN = "(not shown)"
_WORDS = {
    "APIKEY", "AUTHORIZATION", "BEARER", "CREDENTIAL", "CREDENTIALS", "KEY", "PASSPHRASE",
    "PASSWD", "PASSWORD", "SECRET", "TOKEN",
}  # fmt: skip
_PASSWORD_IN_ADDRESS = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NAME = re.compile(r"[\w.-]+")
# A name and what it is set to: --name value, name=value, "name": value.
_SET = re.compile(r"(?<![\w.-])([\w.-]+)[\"'\\]*(?:\s*[=:]\s*|\s+)(?=\S)")


def is_secret(name: str, value: object = "") -> bool:
    """Whether a setting of that name and value is one."""
    words = re.split(r"[^A-Z0-9]+", _HUMP.sub("_", name).upper())
    return bool(_WORDS & set(words)) or bool(_PASSWORD_IN_ADDRESS.search(str(value)))


def without_secrets(value: Any) -> Any:
    """`value` with `NOT_SHOWN` in place of secrets, at any depth of mappings and lists.

    A text that sets a secret is left out as a whole, since nobody knows where the secret ends.
    """
    if isinstance(value, str):
        hides = any(is_secret(found[1]) for found in _SET.finditer(value))
        return NOT_SHOWN if hides else _LOGIN.sub(NOT_SHOWN, value)
    if isinstance(value, Mapping):
        return {k: NOT_SHOWN if is_secret(str(k)) else without_secrets(v) for k, v in value.items()}
    if isinstance(value, Sequence):
        return list(_line(value))
    return value


def _line(words: Sequence[Any]) -> Iterator[Any]:
    """The words of a command, in which a secret may follow its name."""
    for before, word in zip(("", *words), words, strict=False):
        named = isinstance(before, str) and _NAME.fullmatch(before) and is_secret(before)
        yield NOT_SHOWN if named else without_secrets(word)
