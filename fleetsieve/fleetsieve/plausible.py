"""Whether the outcome that a caller tells can be the outcome of a benchmark."""

import math
from typing import get_args

from fleetsieve.cell import Cell
from fleetsieve.errors import InputError
from fleetsieve_measure import FailureKind, Measured, Outcome


def check_plausible(cell: Cell, outcome: Outcome) -> None:
    """Refuse numbers that no benchmark gives.

    Raises:
        InputError: a negative value or one that is no number, an infinite throughput or cost, a
            measured cell without throughput, or a failure of an unknown kind.
    """
    _check(cell, "gpu_seconds", outcome.gpu_seconds, "a finite number of at least 0")
    if isinstance(outcome, Measured):
        throughput = outcome.values.get("throughput", math.nan)
        _check(cell, "throughput", throughput, "completed requests/s, or a failure")
        for name, value in outcome.values.items():
            _check(cell, name, value, "seconds, inf, or leave it out", infinite=True)
        for name, value in outcome.se.items():
            _check(cell, f"standard error of {name}", value, "at least 0", infinite=True)
    elif outcome.kind not in get_args(FailureKind):
        kinds = ", ".join(get_args(FailureKind))
        raise InputError(f"{cell} was told with the failure {outcome.kind!r}; use one of {kinds}")


def _check(cell: Cell, name: str, value: float, wanted: str, *, infinite: bool = False) -> None:
    if not value >= 0 or (math.isinf(value) and not infinite):
        raise InputError(f"{cell} was told with {name} {value}; give {wanted}")
