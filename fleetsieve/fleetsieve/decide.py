"""A decision from what is known, without measuring anything."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fleetsieve.decision import Decision
from fleetsieve.events import Event, Told
from fleetsieve.inputs import Inputs
from fleetsieve.measuring_notes import highest_levels, remarks
from fleetsieve.problem import Problem
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
    return replace(completed(sieve.decision(), inputs, events, sieve.problem), stop_reason=None)


def completed(
    found: Decision, inputs: Inputs, events: Sequence[Event], problem: Problem
) -> Decision:
    """`found` with what files and measurements have to say beside it, and its price."""
    notes = (*found.notes, *inputs.notes(events), *remarks(events))
    notes = (*notes, *highest_levels(found, problem))
    return replace(found, notes=notes, price=inputs.fleet.price(found.gpu_seconds))
