"""Decides how to split a GPU budget over LLM workloads, with the fewest benchmarks.

`Fleet` and `Grid` read files, `Sieve` asks for cells, takes outcomes and gives a `Decision`.
Names are imported when they are first used, so that `import fleetsieve` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetsieve.cell import Cell
    from fleetsieve.decision import Decision
    from fleetsieve.errors import InputError
    from fleetsieve.fleet import Fleet
    from fleetsieve.grid import Grid
    from fleetsieve.proposal import Proposal
    from fleetsieve.sieve import Sieve
    from fleetsieve_measure import Failed, Measured

_HOMES = {
    "Cell": "fleetsieve.cell",
    "Decision": "fleetsieve.decision",
    "Failed": "fleetsieve_measure",
    "Fleet": "fleetsieve.fleet",
    "Grid": "fleetsieve.grid",
    "InputError": "fleetsieve.errors",
    "Measured": "fleetsieve_measure",
    "Proposal": "fleetsieve.proposal",
    "Sieve": "fleetsieve.sieve",
}

__all__ = [
    "Cell",
    "Decision",
    "Failed",
    "Fleet",
    "Grid",
    "InputError",
    "Measured",
    "Proposal",
    "Sieve",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
