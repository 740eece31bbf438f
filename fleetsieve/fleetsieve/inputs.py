"""What a command works on: a fleet, the grid that stands for its engine, and their problem."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetsieve.cell import LoadKind
from fleetsieve.errors import InputError
from fleetsieve.events import Event
from fleetsieve.fleet import Fleet
from fleetsieve.fleet_grid import check_against
from fleetsieve.grid import Grid
from fleetsieve.journal import passed_over
from fleetsieve.launches import simulated
from fleetsieve.offered import check_offered
from fleetsieve.predicted import predictions, prior_of, unpredicted
from fleetsieve.problem import Problem
from fleetsieve.what_if import changed

if TYPE_CHECKING:
    from fleetsieve.study import Study


@dataclass(frozen=True)
class Inputs:
    """A fleet and its grid, if it has one; `overridden`: the grid replaces the fleet's engine."""

    fleet: Fleet
    grid: Grid | None
    overridden: bool

    @classmethod
    def read(
        cls, fleet: Path, grid: Path | None = None, rules: Mapping[str, Any] | None = None
    ) -> "Inputs":
        """Read the files; `grid` overrides the engine, and `rules` what the fleet says there.

        Raises:
            InputError: a file cannot be read, or says something impossible.
        """
        given = {key: value for key, value in (rules or {}).items() if value is not None}
        loaded = changed(Fleet.load(fleet), rules=given) if given else Fleet.load(fleet)
        path = grid or loaded.grid_path
        return cls(loaded, Grid.read(path) if path is not None else None, grid is not None)

    @classmethod
    def of_study(cls, study: "Study", grid: Path | None = None) -> "Inputs":
        """What the study's last run worked on; `grid` takes the place of the grid that it read.

        Raises:
            InputError: the grid cannot be read.
        """
        fleet = study.fleet
        path = grid or study.grid or fleet.grid_path
        if path is not None and grid is None and not path.exists():
            raise InputError(
                f"{study.path} was measured by the grid {path}, which does not exist any more; "
                "give --grid GRID"
            )
        return cls(fleet, Grid.read(path) if path is not None else None, path is not None)

    def of(self, fleet: Fleet) -> "Inputs":
        """The same grid for another fleet."""
        return replace(self, fleet=fleet)

    def checked(self) -> "Inputs":
        """These inputs, once fleet and grid are known to fit each other.

        Raises:
            InputError: they do not, or nor does the prior, or what it asks for is not offered.
        """
        check_offered(self.fleet)
        _ = self._unpredicted
        return self

    @cached_property
    def problem(self) -> Problem:
        """The cells and what is to be decided.

        Raises:
            InputError: fleet and grid do not fit each other.
        """
        return Problem.build(self.fleet, self.grid)

    def needed_grid(self) -> Grid:
        """The grid of a fleet that cannot do without one.

        Raises:
            InputError: there is none.
        """
        if self.grid is None:
            raise InputError(f"{self.fleet.source}: there is no grid; give --grid GRID")
        return self.grid

    def notes(self, events: Iterable[Event] = ()) -> tuple[str, ...]:
        """One sentence each on what of the grid, and of `events`, is not used."""
        if self.grid is not None:
            about = check_against(self.fleet, self.grid)
        else:
            about = simulated(self.fleet)
        parts = (about, self._unpredicted, passed_over(events, self.problem))
        return tuple(filter(None, parts))

    @cached_property
    def _unpredicted(self) -> str | None:
        """What the prior leaves open.

        Raises:
            InputError: fleet, grid and prior do not fit one another.
        """
        prior = prior_of(self.fleet)
        return unpredicted(self.problem, predictions(self.problem, prior), prior)

    @property
    def units(self) -> dict[str, LoadKind]:
        """What the loads of each workload are."""
        return dict(zip(self.problem.workloads, self.problem.kind, strict=True))

    @property
    def exhaustive(self) -> float:
        """GPU-seconds of measuring every cell."""
        return float(self.problem.gpu_seconds.sum())
