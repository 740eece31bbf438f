"""A decision from what is known, without measuring anything."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fleetsieve.decision import Decision
from fleetsieve.events import Event, Told
from fleetsieve.inputs import Inputs
from fleetsieve.measuring_notes import highest_levels, remarks
from fleetsieve.sieve import Sieve
from fleetsieve.study import Study


def known(inputs: Inputs, study: Path | None) -> tuple[list[Event], int]:
    """What a study knows, or else every row of the grid, as events, and the seed.

    Raises:
        InputError: there is neither, or the study does not fit the fleet.
    """
    if study is not None:
        with Study.open_read_only(study) as file:
            file.check(inputs.fleet)
            return file.events(), file.seed
    cells = inputs.needed_grid().cells
    return [Told(None, cell, cells[cell].outcome) for cell in inputs.problem.cells()], 0


def decide(inputs: Inputs, events: Sequence[Event], seed: int) -> Decision:
    """The decision after `events`; those about cells of another fleet are passed over."""
    sieve = Sieve(inputs.fleet, grid=inputs.grid, seed=seed, events=events)
    found = sieve.decision()
    notes = (*found.notes, *inputs.notes(events), *remarks(events))
    notes = (*notes, *highest_levels(found, sieve.problem))
    price = inputs.fleet.price(found.gpu_seconds)
    return replace(found, stop_reason=None, notes=notes, price=price)
