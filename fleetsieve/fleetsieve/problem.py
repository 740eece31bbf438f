"""A fleet and its cells as arrays: what everything numeric rests on.

Axes: W workloads, C usable configs, L load levels, P outputs, M = P - 1 metrics, D numeric and
E categorical features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Int8

from fleetsieve.cell import Cell, LoadKind
from fleetsieve.design import Design
from fleetsieve.durations import launch_seconds, measuring_seconds
from fleetsieve.errors import InputError
from fleetsieve.fleet import Config, Fleet
from fleetsieve.fleet_grid import cells_of, check_against, load_kind, usable_configs
from fleetsieve.grid import Grid
from fleetsieve.metric import order
from fleetsieve.workload import Workload
from fleetsieve_measure import Measured, Outcome

ABSENT, MEASURED, FAILED = 0, 1, 2
# Levels of {auto: N} span the mean rate per replica over and times this factor.
_AUTO_SPAN = 4.0


@dataclass(frozen=True)
class Truth:
    """Outcomes of cells; values in seconds and requests/s, NaN where not measured.

    Attributes:
        status: ABSENT, MEASURED or FAILED.
        se: standard errors, NaN where none is known (exact, or not measured).
        saturated: whether the replica could not keep up.
    """

    status: Int8[np.ndarray, "W C L"]
    values: Float[np.ndarray, "W C L P"]
    se: Float[np.ndarray, "W C L P"]
    saturated: Bool[np.ndarray, "W C L"]


@dataclass(frozen=True)
class Problem:
    """What is to be decided, and the cells that may be measured.

    Attributes:
        outputs: "throughput", then the metrics of all SLOs.
        kind: what the loads of each workload are.
        exists: which levels there are; ascending, left-packed.
        load: the levels per replica, 0 where absent.
        gpu_seconds: what measuring a cell costs, 0 where absent.
        launch: GPU-seconds of launching a config; 0 where a grid is replayed.
        demand: requests/s, headroom included.
        limit: SLOs in seconds, inf where a workload has none on the metric.
        reference: the SLO, or the geometric mean of the other workloads' SLOs on the metric.
        sizes: GPUs of a replica.
        features: see `Design`, as `categories`.
        unusable: configs of which no replica fits, with the reason.
    """

    workloads: tuple[str, ...]
    configs: tuple[str, ...]
    outputs: tuple[str, ...]
    kind: tuple[LoadKind, ...]
    exists: Bool[np.ndarray, "W C L"]
    load: Float[np.ndarray, "W C L"]
    gpu_seconds: Float[np.ndarray, "W C L"]
    launch: Float[np.ndarray, " C"]
    demand: Float[np.ndarray, " W"]
    weight: Float[np.ndarray, " W"]
    min_replicas: Int[np.ndarray, " W"]
    max_replicas: Int[np.ndarray, " W"]
    limit: Float[np.ndarray, "W M"]
    reference: Float[np.ndarray, "W M"]
    sizes: Int[np.ndarray, " C"]
    gpus: int
    gpus_per_node: int
    objective: str
    features: Float[np.ndarray, "C D"]
    feature_names: tuple[str, ...]
    categories: Int[np.ndarray, "C E"]
    category_names: tuple[str, ...]
    unusable: dict[str, str]

    @classmethod
    def build(cls, fleet: Fleet, grid: Grid | None) -> "Problem":
        """The problem of `fleet`, over the cells of `grid` or else over the fleet's own loads.

        Raises:
            InputError: the grid cannot answer for the fleet, or there is no grid and a workload
                lacks load levels, or configs differ in which features they have.
        """
        if grid is not None:
            check_against(fleet, grid)
        configs, workloads = usable_configs(fleet), fleet.workloads
        kind: list[LoadKind] = [load_kind(w, grid) if grid else w.load_kind for w in workloads]
        cells = [[_cells(fleet, w, c, grid) for c in configs] for w in workloads]
        metrics = sorted({metric for w in workloads for metric in w.slo}, key=order)
        limit = np.array([[w.slo.get(m, np.inf) for m in metrics] for w in workloads])
        budget = fleet.hardware.gpus
        design = Design.build(_features(configs, grid), [c.gpus for c in configs])
        return cls(
            workloads=tuple(w.name for w in workloads),
            configs=tuple(c.name for c in configs),
            outputs=("throughput", *metrics),
            kind=tuple(kind),
            exists=_packed([[[1.0] * len(level) for level in row] for row in cells]) > 0,
            load=_packed([[[load for load, _ in level] for level in row] for row in cells]),
            gpu_seconds=_packed([[[cost for _, cost in level] for level in row] for row in cells]),
            launch=np.array(
                [0.0 if grid else c.gpus * launch_seconds(fleet, c) for c in configs], float
            ),
            demand=np.array([w.total_demand for w in workloads]),
            weight=np.array([w.weight for w in workloads]),
            min_replicas=np.array([w.min_replicas for w in workloads]),
            max_replicas=np.array(
                [budget if w.max_replicas is None else w.max_replicas for w in workloads]
            ),
            limit=limit,
            reference=_reference(limit),
            sizes=np.array([c.gpus for c in configs], int),
            gpus=budget,
            gpus_per_node=fleet.hardware.gpus_per_node,
            objective=fleet.hardware.objective,
            features=design.features,
            feature_names=design.names,
            categories=design.categories,
            category_names=design.category_names,
            unusable=fleet.unusable,
        )

    @property
    def n_cells(self) -> int:
        """How many cells may be measured."""
        return int(self.exists.sum())

    def cell(self, w: int, c: int, level: int) -> Cell:
        """The cell at an index.

        Raises:
            IndexError: there is no such level.
        """
        if not self.exists[w, c, level]:
            raise IndexError(f"there is no cell at index ({w}, {c}, {level})")
        load = float(self.load[w, c, level])
        return Cell(self.workloads[w], self.configs[c], load, self.kind[w])

    def index(self, cell: Cell) -> tuple[int, int, int]:
        """Where a cell is: workload, config and level.

        Raises:
            KeyError: it is no cell of this problem.
        """
        known = cell.workload in self.workloads and cell.config in self.configs
        if known:
            w, c = self.workloads.index(cell.workload), self.configs.index(cell.config)
            levels = np.flatnonzero(self.exists[w, c] & (self.load[w, c] == cell.load))
            if len(levels) and self.kind[w] == cell.kind:
                return w, c, int(levels[0])
        raise KeyError(f"{cell} is no cell of this problem")

    def cells(self) -> list[Cell]:
        """All cells, by workload, config and load."""
        return [self.cell(*index) for index in np.argwhere(self.exists)]

    def truth(self, grid: Grid) -> Truth:
        """What `grid` says of the cells; ABSENT where it says nothing."""
        return self.outcomes({cell: data.outcome for cell, data in grid.cells.items()})

    def outcomes(self, known: Mapping[Cell, Outcome]) -> Truth:
        """Outcomes of cells as arrays; cells of other problems are passed over."""
        shape = (*self.exists.shape, len(self.outputs))
        status = np.zeros(shape[:-1], np.int8)
        values, se = np.full(shape, np.nan), np.full(shape, np.nan)
        saturated = np.zeros(shape[:-1], bool)
        for cell in self.cells():
            outcome, at = known.get(cell), self.index(cell)
            if isinstance(outcome, Measured):
                status[at], saturated[at] = MEASURED, outcome.saturated
                values[at] = [outcome.values.get(name, np.nan) for name in self.outputs]
                se[at] = [outcome.se.get(name, np.nan) for name in self.outputs]
            elif outcome is not None:
                status[at] = FAILED
        return Truth(status, values, se, saturated)


def _cells(
    fleet: Fleet, workload: Workload, config: Config, grid: Grid | None
) -> list[tuple[float, float]]:
    """Loads and costs of the cells of a workload on a config, ascending."""
    if grid is not None:
        cells = cells_of(workload, config, grid)
        return [(cell.load, grid.cells[cell].gpu_seconds) for cell in cells]
    return [
        (load, config.gpus * measuring_seconds(fleet, workload, load))
        for load in _own_levels(fleet, workload, config)
    ]


def _own_levels(fleet: Fleet, workload: Workload, config: Config) -> Sequence[float]:
    if workload.loads is None:
        raise InputError(
            f"{fleet.source}: workload {workload.name!r} has no loads and there is no grid; give "
            "loads, a list of levels per replica"
        )
    if workload.loads.auto is None:
        return workload.loads.of(config.gpus)
    if workload.load_kind == "concurrency":
        return [float(config.gpus * 2**k) for k in range(workload.loads.auto)]
    return _auto_rates(fleet, workload, config.gpus, workload.loads.auto)


def _auto_rates(fleet: Fleet, workload: Workload, gpus: int, count: int) -> Sequence[float]:
    """Geometric levels around the rate of a replica if workloads shared the GPUs evenly."""
    share = fleet.hardware.gpus / len(fleet.workloads)
    mean = workload.total_demand * gpus / share
    if mean <= 0:
        raise InputError(
            f"{fleet.source}: workload {workload.name!r} has loads {{auto: {count}}} and demand 0, "
            "from which no rate follows; list the levels"
        )
    if count == 1:
        return [mean]
    return [float(x) for x in np.geomspace(mean / _AUTO_SPAN, mean * _AUTO_SPAN, count)]


def _packed(values: Sequence[Sequence[Sequence[float]]]) -> Float[np.ndarray, "W C L"]:
    longest = max((len(levels) for row in values for levels in row), default=1)
    packed = np.zeros((len(values), len(values[0]), max(longest, 1)))
    for w, row in enumerate(values):
        for c, levels in enumerate(row):
            packed[w, c, : len(levels)] = levels
    return packed


def _reference(limit: Float[np.ndarray, "W M"]) -> Float[np.ndarray, "W M"]:
    given = np.isfinite(limit)
    logs = np.log(np.where(given, limit, 1.0)).sum(axis=0) / given.sum(axis=0)
    return np.where(given, limit, np.exp(logs))


def _features(configs: Sequence[Config], grid: Grid | None) -> dict[str, Mapping[str, float | str]]:
    from_grid = grid.features if grid is not None else {}
    return {c.name: c.features or from_grid.get(c.name, {}) for c in configs}
