"""Words and numbers that several parts of a report share."""

import string
from collections.abc import Mapping, Sequence
from typing import Any

from fleetsieve.show import number

HOUR = 3600.0
_COLOURS = 8


def points(share: float) -> str:
    """A difference of two shares, in percentage points."""
    text = number(100 * share)
    return f"{text} point" if text == "1" else f"{text} points"


def gpu_time(gpu_seconds: float) -> str:
    """GPU-seconds, and GPU-hours where those are easier to read."""
    if gpu_seconds < HOUR:
        return f"{gpu_seconds:,.0f} GPU-seconds"
    return f"{gpu_seconds:,.0f} GPU-seconds ({hours(gpu_seconds)})"


def hours(gpu_seconds: float) -> str:
    """GPU-hours, three significant digits."""
    return f"{float(f'{gpu_seconds / HOUR:.3g}'):,g} GPU-hours"


def count(many: int, one: str) -> str:
    """`many` things, in the singular where there is one."""
    return f"{many:,} {one}" if many == 1 else f"{many:,} {one}s"


def letters(workloads: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A letter for each workload, by which pictures name it; A to Z, then AA."""
    return {workload["name"]: _letter(at) for at, workload in enumerate(workloads)}


def colour(letter: str) -> str:
    """The class that colours what belongs to the workload of a letter."""
    at = 0
    for character in letter:
        at = 26 * at + string.ascii_uppercase.index(character) + 1
    return f"w{(at - 1) % _COLOURS}"


def _letter(at: int) -> str:
    head, last = divmod(at, 26)
    return (_letter(head - 1) if head else "") + string.ascii_uppercase[last]
