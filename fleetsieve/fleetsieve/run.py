"""The loop of a run: choose cells, measure them, tell the outcomes, until it is decided."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from fleetsieve.cell import Cell
from fleetsieve.decide import completed
from fleetsieve.decision import Decision
from fleetsieve.inputs import Inputs
from fleetsieve.interrupt import Interrupt
from fleetsieve.launches import engine_for
from fleetsieve.live_engine import LiveEngine
from fleetsieve.proposal import Proposal
from fleetsieve.samples import SampleFolder
from fleetsieve.sieve import Sieve
from fleetsieve.standing import Standing
from fleetsieve.study import Study
from fleetsieve_measure import Outcome
from fleetsieve_measure.pool import Pool
from fleetsieve_measure.recorded import RecordedEngine

# With these the decision is certified: what is still being measured cannot change it.
_CERTIFIED = ("gap", "regret")


class CellEngine(Protocol):
    """What measures a cell; a benchmark that fails is an outcome, not an exception."""

    async def measure(self, job: Cell, /) -> Outcome:
        """Measure one cell."""
        ...


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    Attributes:
        measurements: how many cells were measured, those of earlier runs included.
        last: the cell that was told last in this run, with its outcome.
        measuring: the cells in flight.
        limit: the GPU-seconds at which the run ends: the budget, or all cells.
        gap: Γ, the difference of the two ends of `value`, conservative and optimistic.
    """

    measurements: int
    last: tuple[Cell, Outcome] | None
    measuring: tuple[Cell, ...]
    gpu_seconds: float
    limit: float
    gap: float
    value: tuple[float, float]


def engine_of(inputs: Inputs, study: Study) -> CellEngine:
    """What measures the cells of a fleet: its grid, or servers that keep their files at `study`.

    Raises:
        InputError: the fleet does not say how to measure, or its engine is none that can.
    """
    fleet = inputs.fleet
    kinds = {engine_for(fleet, config).kind for config in fleet.configs}
    if inputs.overridden or kinds == {"grid"}:
        recorded = inputs.needed_grid().cells
        return RecordedEngine({cell: data.outcome for cell, data in recorded.items()})
    samples = SampleFolder(study.path)
    folder = study.path.with_name(f"{study.path.name.removesuffix('.db')}.servers")
    return LiveEngine(fleet, folder, seed=study.seed, on_sample=samples.write)


@asynccontextmanager
async def _opened(engine: CellEngine) -> AsyncIterator[CellEngine]:
    """An engine while it may measure: one that launches servers stops them at the end."""
    if isinstance(engine, LiveEngine):
        async with engine:
            yield engine
    else:
        yield engine


def run_study(
    inputs: Inputs,
    study: Study,
    *,
    engine: CellEngine,
    parallel: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Decision:
    """Measure until the decision is certified, the budget is spent or a signal asks to finish.

    Every event is in the study before it has an effect. What an earlier run asked and never told
    is measured first. When the run ends, by a certificate or by SIGINT or SIGTERM, measurements in
    flight are cancelled and stay asked in the study, for the case that it is resumed.
    """
    fleet = inputs.fleet
    sieve = Sieve(
        fleet, grid=inputs.grid, seed=study.seed, events=study.events(), on_event=study.append
    )

    def progressed(progress: Progress) -> None:
        study.stand(Standing(progress.measurements, progress.gpu_seconds, *progress.value))
        if on_progress is not None:
            on_progress(progress)

    run = _Run(sieve, fleet.decision.budget_gpu_seconds, progressed)
    found = asyncio.run(run.until_done(engine, parallel or fleet.measure.parallel))
    return completed(found, inputs, study.events(), sieve.problem)


class _Run:
    """One process's part of a study."""

    def __init__(
        self,
        sieve: Sieve,
        budget: float | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._sieve = sieve
        everything = float(sieve.problem.gpu_seconds.sum())
        self._limit = everything if budget is None else min(budget, everything)
        self._on_progress = on_progress or (lambda _: None)
        self._last: tuple[Cell, Outcome] | None = None
        self._engine: CellEngine | None = None

    async def until_done(self, engine: CellEngine, parallel: int) -> Decision:
        """Measure until nothing is left to do or a signal arrives."""

        self._engine = engine

        async def measure(proposal: Proposal) -> Outcome:
            if isinstance(engine, LiveEngine):
                return await engine.measure(proposal.cell, self._sieve.runs_of(proposal.cell))
            return await engine.measure(proposal.cell)

        with Interrupt() as interrupt:
            async with _opened(engine), Pool(measure, parallel) as pool:
                while not (interrupt.requested or self._certified):
                    self._start(pool)
                    self._report(pool)
                    completed = await pool.next(interrupt.event)
                    if completed is None:
                        break
                    self._tell(*completed)
            self._report(pool)
        return self._sieve.decision(interrupted=interrupt.requested and not self._sieve.done)

    @property
    def _certified(self) -> bool:
        return self._sieve.done and self._sieve.stop_reason in _CERTIFIED

    def _start(self, pool: Pool[Proposal]) -> None:
        """Fill the free slots: first with what was asked before, then with new proposals."""
        waiting = [p for p in self._sieve.pending if p not in pool.in_flight]
        for proposal in waiting[: pool.free]:
            pool.start(proposal)
        if pool.free and not self._sieve.done:
            for proposal in self._sieve.ask(pool.free, up=self._up(), patient=True):
                pool.start(proposal)

    def _up(self) -> Collection[str]:
        return self._engine.up if isinstance(self._engine, LiveEngine) else ()

    def _tell(self, proposal: Proposal, outcome: Outcome) -> None:
        self._sieve.tell(proposal.ticket, outcome)
        self._last = (proposal.cell, outcome)

    def _report(self, pool: Pool[Proposal]) -> None:
        sieve = self._sieve
        self._on_progress(
            Progress(
                measurements=sieve.measurements,
                last=self._last,
                measuring=tuple(proposal.cell for proposal in pool.in_flight),
                gpu_seconds=sieve.gpu_seconds,
                limit=self._limit,
                gap=sieve.gap,
                value=sieve.value,
            )
        )
