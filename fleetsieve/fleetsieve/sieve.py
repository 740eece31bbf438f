"""Sieve: ask which cell to measure, tell what came of it, read the decision."""

from collections.abc import Callable, Collection, Iterable

import numpy as np

from fleetsieve.belief import Belief
from fleetsieve.cell import Cell
from fleetsieve.choice import check
from fleetsieve.decision import Decision
from fleetsieve.errors import InputError
from fleetsieve.events import Abandoned, Asked, Event, Told
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid
from fleetsieve.offered import check_offered
from fleetsieve.plausible import check_plausible
from fleetsieve.policies import sieve
from fleetsieve.predicted import predictions, prior_of
from fleetsieve.problem import Problem
from fleetsieve.proposal import Proposal
from fleetsieve.recommendation import recommend, within_noise
from fleetsieve.runs import Runs
from fleetsieve.search import Pick, Search
from fleetsieve_measure import Outcome


class Sieve:
    """The decision engine of one fleet.

    State is the journal of events alone; with the same journal and seed the next ask is the same.
    Not safe for several threads.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        grid: Grid | None = None,
        prior: Grid | None = None,
        seed: int = 0,
        repeats: int | None = None,
        stop: str | None = None,
        budget: float | None = None,
        fantasies: int = 8,
        events: Iterable[Event] = (),
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Prepare the search over the cells of `grid`, or else over the fleet's own loads.

        `grid` gives candidates and their costs, never outcomes. `prior` is what a predictor says
        of them, by default the grid that the fleet file names. `repeats` is how often a cell whose
        outcome has a standard error may be measured: 1 with a grid, else as in the fleet file.
        `budget` is in GPU-seconds, `fantasies` how many outcomes of a cell its score looks at.
        `events` is an earlier journal: what it says of cells that no longer exist is counted as
        spent and else passed over. `on_event` is called with each new event before the method
        that caused it returns.

        Raises:
            InputError: the grid cannot answer for the fleet, no allocation fits, or the fleet asks
                for what is not offered.
        """
        check_offered(fleet, stop)
        self.fleet, self.seed = fleet, seed
        self.problem = Problem.build(fleet, grid)
        check(self.problem)
        self.tolerance = fleet.decision.tolerance
        self.budget = fleet.decision.budget_gpu_seconds if budget is None else budget
        if self.budget is not None and not self.budget >= 0:
            raise InputError(f"budget is {self.budget}; give GPU-seconds of at least 0")
        belief = Belief(
            self.problem,
            confidence=fleet.decision.confidence,
            measured_only=fleet.decision.unmeasured == "refuse",
            predicted=predictions(self.problem, prior or prior_of(fleet)),
            inference=fleet.decision.inference,
            fantasies=fantasies,
        )
        if repeats is None:
            repeats = fleet.measure.repeats if grid is None else 1
        stop = stop or fleet.decision.stop
        self._search = Search.start(belief, self.tolerance, repeats, stop)
        self._shuffle = np.random.default_rng(seed).random(self.problem.exists.size)
        self._proposals: dict[int, Proposal] = {}
        self._abandoned: set[int] = set()
        self._spent: list[float] = []
        self._told: list[tuple[int, Outcome]] = []
        self._next_ticket = 0
        self._emit: Callable[[Event], None] = lambda event: None
        for event in events:
            self._apply(event)
        if on_event is not None:
            self._emit = on_event

    @property
    def pending(self) -> tuple[Proposal, ...]:
        """Asked, neither told nor abandoned, oldest first."""
        return tuple(self._proposals.values())

    @property
    def gpu_seconds(self) -> float:
        """Spent by all outcomes so far."""
        return float(np.sum(self._spent))

    @property
    def measurements(self) -> int:
        """Outcomes so far, failures included."""
        return len(self._spent)

    @property
    def search(self) -> Search:
        """The search after all outcomes so far."""
        new = self._told[len(self._search.told) :]
        if new:
            self._search = self._search.after(Runs.of(self.problem, new))
        return self._search

    @property
    def value(self) -> tuple[float, float]:
        """V of the recommended allocation at least, and of any allocation at most."""
        return self.search.value

    @property
    def gap(self) -> float:
        """Γ: no allocation can be better than the recommended one by more, if the bounds hold."""
        return self.search.gap

    @property
    def done(self) -> bool:
        """Whether there is nothing left to ask; pending cells may still be told."""
        return self.stop_reason is not None

    @property
    def stop_reason(self) -> str | None:
        """gap, regret, budget, exhausted, infeasible or within_noise; None while it goes on."""
        if self.search.infeasible:
            return "infeasible"
        if self.search.certified:
            return "gap" if self.gap <= self.tolerance else "regret"
        allowed = self.search.free & self._never_abandoned()
        if not allowed.any():
            return self._exhausted() if not self._proposals else None
        if self.search.within_noise:
            return "within_noise" if not self._proposals else None
        if not (allowed & self._affordable()).any():
            return "budget" if not self._proposals else None
        return None

    def ask(self, n: int = 1, *, up: Collection[str] = (), patient: bool = False) -> list[Proposal]:
        """Up to `n` cells to measure, best first; none when there is nothing to do now.

        The cost of a cell includes the launch of a server, unless its config is in `up`. `patient`:
        ask for no cell that promises nothing if the pending ones turn out as expected, but wait.
        """
        asked: list[Proposal] = []
        while len(asked) < n and not self.done and not self.search.within_noise:
            pending = tuple(self._index(p.cell) for p in self._proposals.values())
            allowed = self._never_abandoned() & self._affordable()
            launch = self._launch(up)
            pick = self.search.pick(
                sieve,
                self._shuffle,
                pending=pending,
                allowed=allowed,
                launch=launch,
                patient=patient,
            )
            if pick is None:
                break
            event = Asked(**vars(self._as_proposal(pick, launch)))
            self._emit(event)
            self._apply(event)
            asked.append(self._proposals[event.ticket])
        return asked

    def tell(self, ticket_or_cell: int | Cell, outcome: Outcome) -> None:
        """Add the outcome of an asked cell, or of any cell of the problem.

        Raises:
            InputError: the ticket is not pending, the cell is not one of this problem or was told
                before, or the outcome is none that a benchmark gives.
        """
        event = self._told_event(ticket_or_cell, outcome)
        self._check_new(event)
        self._emit(event)
        self._apply(event)

    def abandon(self, ticket: int) -> None:
        """Give an ask up; its cell is never asked again.

        Raises:
            InputError: the ticket is not pending.
        """
        self._proposal(ticket)
        event = Abandoned(ticket)
        self._emit(event)
        self._apply(event)

    def runs_of(self, cell: Cell) -> int:
        """How many outcomes of a cell were told."""
        index = self._index(cell)
        return sum(told == index for told, _ in self._told)

    def decision(self, *, interrupted: bool = False) -> Decision:
        """The recommended allocation, its certainty, and what to measure next."""
        reason = self.stop_reason
        if interrupted and reason is None:
            reason = "interrupted"
        proposals = [] if self.done else self._preview(3)
        return recommend(
            self.search,
            stop_reason=reason,
            gpu_seconds=self.gpu_seconds,
            measurements=self.measurements,
            proposals=proposals,
        )

    def _preview(self, n: int) -> list[Proposal]:
        """What `ask` would return, without asking."""
        found: list[Proposal] = []
        pending = [self._index(p.cell) for p in self._proposals.values()]
        while len(found) < n:
            allowed = self._never_abandoned() & self._affordable()
            launch = self._launch(())
            pick = self.search.pick(
                sieve, self._shuffle, pending=tuple(pending), allowed=allowed, launch=launch
            )
            if pick is None:
                break
            found.append(self._as_proposal(pick, launch))
            pending.append(pick.index)
        return found

    def _launch(self, up: Collection[str]) -> np.ndarray:
        """What each cell costs on top, since no server of its config is up."""
        problem = self.problem
        down = np.array([config not in up for config in problem.configs])
        return np.broadcast_to((problem.launch * down)[:, None], problem.exists.shape).ravel()

    def _as_proposal(self, pick: Pick, launch: np.ndarray) -> Proposal:
        w, c, level = (int(i) for i in np.unravel_index(pick.index, self.problem.exists.shape))
        cell = self.problem.cell(w, c, level)
        cost = float(self.problem.gpu_seconds[w, c, level] + launch[pick.index])
        return Proposal(self._next_ticket, cell, cost, pick.gap_reduction, pick.score)

    def _told_event(self, ticket_or_cell: int | Cell, outcome: Outcome) -> Told:
        if isinstance(ticket_or_cell, Cell):
            asked = (p.ticket for p in self._proposals.values() if p.cell == ticket_or_cell)
            return Told(next(asked, None), ticket_or_cell, outcome)
        return Told(ticket_or_cell, self._proposal(ticket_or_cell).cell, outcome)

    def _proposal(self, ticket: int) -> Proposal:
        if ticket not in self._proposals:
            known = ", ".join(str(number) for number in self._proposals) or "none"
            raise InputError(f"ticket {ticket} is not pending; pending tickets are: {known}")
        return self._proposals[ticket]

    def _check_new(self, event: Told) -> None:
        if not self._exists(event.cell):
            raise InputError(f"{event.cell} is no cell of this fleet; tell one that it has")
        if event.ticket is None and self.runs_of(event.cell):
            raise InputError(f"{event.cell} was told before; its outcome stands")
        check_plausible(event.cell, event.outcome)

    def _apply(self, event: Event) -> None:
        if isinstance(event, Asked):
            self._next_ticket = event.ticket + 1
            if self._exists(event.cell):
                self._proposals[event.ticket] = Proposal(**vars(event))
        elif isinstance(event, Told):
            if event.ticket is not None:
                self._proposals.pop(event.ticket, None)
            self._spent.append(event.outcome.gpu_seconds)
            if self._exists(event.cell):
                self._told.append((self._index(event.cell), event.outcome))
        else:
            proposal = self._proposals.pop(event.ticket, None)
            if proposal is not None:
                self._abandoned.add(self._index(proposal.cell))

    def _index(self, cell: Cell) -> int:
        return int(np.ravel_multi_index(self.problem.index(cell), self.problem.exists.shape))

    def _exists(self, cell: Cell) -> bool:
        try:
            self.problem.index(cell)
        except KeyError:
            return False
        return True

    def _never_abandoned(self) -> np.ndarray:
        allowed = np.ones(self.problem.exists.size, bool)
        allowed[list(self._abandoned)] = False
        return allowed

    def _affordable(self) -> np.ndarray:
        costs = self.problem.gpu_seconds.ravel()
        if self.budget is None:
            return np.ones(costs.size, bool)
        committed = sum(proposal.gpu_seconds for proposal in self._proposals.values())
        return costs <= self.budget - self.gpu_seconds - committed

    def _exhausted(self) -> str:
        return "within_noise" if within_noise(self.search) else "exhausted"


def tell_all(sieve: Sieve, grid: Grid) -> None:
    """Tell every row of a grid that belongs to the problem."""
    for cell in sieve.problem.cells():
        if cell in grid.cells:
            sieve.tell(cell, grid.cells[cell].outcome)
