"""Measures cells of a fleet on real or simulated servers of this node."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from fleetsieve.cell import Cell
from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet
from fleetsieve.launches import launch_of, node_gpus
from fleetsieve.traffic import lengths_of, load_of, rules_of, seed_of, stall_seconds
from fleetsieve_measure import Outcome
from fleetsieve_measure.bench import Bench, CellPlan
from fleetsieve_measure.node import Node
from fleetsieve_measure.slots import Slots
from fleetsieve_measure.trial import Sample

# A launch that takes so many times what the fleet file expects, and at least this long, hangs.
_PATIENCE, _LEAST_PATIENCE = 4.0, 300.0


class LiveEngine:
    """Launches, loads and judges; an asynchronous context manager.

    Leaving it stops every server that it has launched.
    """

    def __init__(
        self,
        fleet: Fleet,
        folder: Path,
        *,
        seed: int = 0,
        on_sample: Callable[[Cell, Sample, int], str],
    ) -> None:
        """Servers keep their logs and caches in `folder`; `on_sample` keeps what the nth run saw.

        It says where, or raises an InputError where it cannot; either is in the cell's summary.

        Raises:
            InputError: the fleet file lacks what measuring needs.
        """
        self._fleet, self._seed, self._on_sample = fleet, seed, on_sample
        measure = fleet.measure
        self._node = Node(
            Slots(node_gpus(fleet), per_node=fleet.hardware.gpus_per_node),
            folder,
            deadline=max(_LEAST_PATIENCE, _PATIENCE * measure.launch_seconds),
        )
        self._bench = Bench(self._node)
        self._open = AsyncExitStack()
        for workload in fleet.workloads:
            lengths_of(fleet, workload, {})
        for config in fleet.configs:
            launch_of(fleet, config)

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._node)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._open.aclose()

    @property
    def up(self) -> set[str]:
        """Configs of which a server is up and waits for its next cell."""
        return self._node.idle

    async def measure(self, cell: Cell, run: int = 0) -> Outcome:
        """Measure one cell, after `run` runs of it; a benchmark that fails is an outcome."""
        found = await self._bench.measure(self._plan(cell, run))
        if found.sample is None:
            return found.outcome
        try:
            kept = self._on_sample(cell, found.sample, run)
        except InputError as error:  # the outcome is worth keeping without its requests too
            kept = str(error)
        return replace(found.outcome, summary={**found.outcome.summary, "samples": kept})

    def _plan(self, cell: Cell, run: int) -> CellPlan:
        fleet = self._fleet
        config = next(c for c in fleet.configs if c.name == cell.config)
        workload = next(w for w in fleet.workloads if w.name == cell.workload)
        launch, seed = launch_of(fleet, config), seed_of(cell, self._seed, run)
        lengths, times = lengths_of(fleet, workload, launch.args)
        return CellPlan(
            key=config.name,
            launch=launch,
            gpus=config.gpus,
            lengths=lengths,
            load=load_of(fleet, workload, cell, times, seed),
            rules=rules_of(fleet, workload),
            stall_seconds=stall_seconds(workload),
            seed=seed,
        )
