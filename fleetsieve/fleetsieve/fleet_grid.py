"""Whether a grid file can answer for a fleet file."""

from collections.abc import Sequence

from fleetsieve.cell import Cell, LoadKind
from fleetsieve.errors import InputError
from fleetsieve.fleet import Config, Fleet
from fleetsieve.grid import Grid
from fleetsieve.metric import order
from fleetsieve.nearest import hint
from fleetsieve.workload import Workload
from fleetsieve_measure import Measured

_RELATIVE_TOLERANCE = 1e-9


def check_against(fleet: Fleet, grid: Grid) -> str | None:
    """One sentence on what of the grid the fleet does not use; None when it uses everything.

    Raises:
        InputError: a workload or a usable config has no row, a config has other GPUs in the grid,
            an SLO is on a metric that the workload's rows lack, or `loads` has no level in common
            with the grid.
    """
    for config in usable_configs(fleet):
        if config.name not in grid.gpus:
            raise InputError(
                f"{fleet.source}: config {config.name!r} has no row in {grid.source} "
                f"({hint(config.name, grid.configs)}); add rows or remove the config"
            )
    for config in fleet.configs:
        gpus = grid.gpus.get(config.name, config.gpus)
        if gpus != config.gpus:
            raise InputError(
                f"{fleet.source}: config {config.name!r} has gpus {config.gpus} and {grid.source} "
                f"has {gpus}; give both the same"
            )
    for workload in fleet.workloads:
        _check_workload(workload, fleet, grid)
    return _unused(fleet, grid)


def usable_configs(fleet: Fleet) -> tuple[Config, ...]:
    """The configs of which a replica fits."""
    return tuple(config for config in fleet.configs if config.name not in fleet.unusable)


def load_kind(workload: Workload, grid: Grid) -> LoadKind:
    """What a load of `workload` means: as its arrivals say, or as the grid has it.

    Raises:
        InputError: the grid has both kinds and the arrivals do not say, or it lacks theirs.
    """
    kinds = grid.kinds[workload.name]
    if workload.arrivals is None:
        if len(kinds) != 1:
            raise InputError(
                f"workload {workload.name!r} has rates and concurrencies in {grid.source}; "
                "say which with arrivals (poisson, or {concurrency: true})"
            )
        return kinds[0]
    if workload.arrivals.load_kind not in kinds:
        raise InputError(
            f"workload {workload.name!r} has arrivals that need the load "
            f"{workload.arrivals.load_kind!r} and {grid.source} has {kinds[0]!r}; change arrivals"
        )
    return workload.arrivals.load_kind


def cells_of(workload: Workload, config: Config, grid: Grid) -> list[Cell]:
    """The grid's cells of a workload on a config, at the levels in `loads` if given, ascending."""
    kind = load_kind(workload, grid)
    pair = grid.by_pair.get((workload.name, config.name), [])
    cells = [cell for cell in pair if cell.kind == kind]
    levels = workload.loads.of(config.gpus) if workload.loads else ()
    if not levels:
        return cells
    return [c for c in cells if any(_same(c.load, level) for level in levels)]


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= _RELATIVE_TOLERANCE * max(a, b)


def _check_workload(workload: Workload, fleet: Fleet, grid: Grid) -> None:
    place = f"{fleet.source}: workload {workload.name!r}"
    if workload.name not in grid.workloads:
        raise InputError(
            f"{place} has no row in {grid.source} ({hint(workload.name, grid.workloads)}); "
            "add rows or remove the workload"
        )
    configs = usable_configs(fleet)
    cells = [cell for config in configs for cell in cells_of(workload, config, grid)]
    if configs and not cells:
        levels = sorted({c.load for c in grid.cells if c.workload == workload.name})
        raise InputError(
            f"{place} shares no load level with {grid.source}, which has {_names(levels)}; "
            "change loads or leave it out"
        )
    outcomes = [grid.cells[cell].outcome for cell in cells]
    measured = {name for o in outcomes if isinstance(o, Measured) for name in o.values}
    for metric in workload.slo:
        if measured and metric not in measured:
            others = sorted(measured - {"throughput"}, key=order)
            raise InputError(
                f"{place} has an SLO on {metric}, which {grid.source} does not have for it, but "
                f"{_names(others) or 'no latency'}; measure it or change the SLO"
            )


def _unused(fleet: Fleet, grid: Grid) -> str | None:
    workloads = {workload.name for workload in fleet.workloads}
    configs = {config.name for config in fleet.configs}
    unused = {
        "workloads": [name for name in grid.workloads if name not in workloads],
        "configs": [name for name in grid.configs if name not in configs],
        "columns": list(grid.varying_columns),
    }
    parts = [f"{kind} {_names(names)}" for kind, names in unused.items() if names]
    return f"{grid.source}: not used are {' and '.join(parts)}" if parts else None


def _names(names: Sequence[float | str]) -> str:
    shown = [name if isinstance(name, str) else f"{name:g}" for name in names[:8]]
    return ", ".join(shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
