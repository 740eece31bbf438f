"""One sentence for a command line that cannot be read: what is wrong, and what would do."""

import re
from typing import Any, cast

import typer

from fleetsieve.nearest import close_to

# Of Typer's or of Click's: Typer does not export it, and its later versions bring their own.
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

_CHOICES = re.compile(r"'([^']*)' is not one of (.*)")


def sentence(error: Any) -> str:
    """What a `UsageError` says."""
    nearest = getattr(error, "possibilities", None)
    text = (error.message if nearest else error.format_message()).rstrip(".")
    text = text.replace("Value error, ", "").replace(". Did you mean", "; did you mean")
    text = f"{text[:1].lower()}{text[1:]}"
    meant = f"did you mean {' or '.join(sorted(nearest))}?" if nearest else _choice(text)
    if meant is None and not text.endswith("?"):
        meant = f"see {error.ctx.command_path if error.ctx else 'fleetsieve'} --help"
    return f"{text}; {meant}" if meant else text


def _choice(text: str) -> str | None:
    found = _CHOICES.search(text)
    return close_to(found[1], re.findall("'([^']*)'", found[2])) if found else None
