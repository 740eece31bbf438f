"""What a wrong name could have meant."""

from collections.abc import Iterable
from difflib import get_close_matches

_MOST = 12


def close_to(name: str, known: Iterable[str]) -> str | None:
    """The known name that is nearest to `name`, as a question; None where none is near."""
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else None


def hint(name: str, known: Iterable[str]) -> str:
    """The known name that is nearest to `name`, as a question, else what is known."""
    names = list(known)
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return close_to(name, names) or f"there are {', '.join(names[:_MOST])}{more}"
