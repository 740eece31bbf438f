"""The published setting as a fleet file and a grid, each cell simulated token by token.

A dense model of 31 billion weights beside its embeddings in 16 bits, 16 H100 GPUs, tensor-parallel
degrees 1 to 8, four workloads that may take 30 s at p99, each at six evenly spaced levels of load
per GPU.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fleetsieve.cell import Cell
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid, Row
from fleetsieve.problem import Problem
from fleetsieve.traffic import lengths_of, load_of, seed_of
from fleetsieve_measure import Failed, Measured, Outcome
from fleetsieve_measure.load import OpenLoop
from fleetsieve_measure.percentiles import percentile
from fleetsieve_measure.record import Record
from fleetsieve_measure.simulated.replica import OutOfMemoryError, Replica
from fleetsieve_measure.simulated.virtual import simulate
from fleetsieve_measure.verdict import overloaded

SLO = 30.0
# Of the 300 s that a cell is measured the first 30 warm up.
_SECONDS, _WARMUP = 300.0, 30.0
# A replica that completes this share of what comes, in the same time, keeps up.
_KEEPS_UP = 0.9
# The demand in requests/s, together somewhat more than 16 GPUs serve in time; the step from one
# level to the next in requests/s per GPU; tokens of prompts and of replies: median, sigma of the
# log, and most.
_WORKLOADS = {
    "chat": (10.0, 0.75, (800, 0.8, 8000), (220, 0.7, 1200)),
    "code": (3.0, 0.375, (2000, 0.8, 12000), (120, 0.8, 800)),
    "summaries": (1.1, 0.125, (6000, 0.5, 16000), (250, 0.4, 600)),
    "reasoning": (9.0, 0.5, (300, 0.8, 4000), (900, 0.6, 2500)),
}


def setting() -> dict[str, Any]:
    """The fleet file."""
    return {
        "fleet": {"gpus": 16, "gpus_per_node": 8, "objective": "max-min"},
        "decision": {"tolerance": 0.02, "confidence": 0.95},
        "engine": {"kind": "simulated", "model": "Qwen/Qwen3-32B", "args": {"gpu": "h100"}},
        "configs": [
            {
                "name": f"tp{gpus}",
                "gpus": gpus,
                "features": {"tp": gpus},
                "args": {"tensor-parallel-size": gpus},
            }
            for gpus in (1, 2, 4, 8)
        ],
        "workloads": [
            {
                "name": name,
                "demand": demand,
                "slo": {"e2e_p99": SLO},
                "requests": {"prompt_tokens": _tokens(*prompt), "output_tokens": _tokens(*reply)},
                "arrivals": "poisson",
                "loads": {"per_gpu": [step * level for level in range(1, 7)]},
            }
            for name, (demand, step, prompt, reply) in _WORKLOADS.items()
        ],
        "measure": {"seconds": _SECONDS - _WARMUP, "warmup_seconds": _WARMUP},
    }


def alone(data: dict[str, Any], name: str) -> dict[str, Any]:
    """One workload on one node of 8 GPUs, with the demand that half of the fleet would have.

    A quarter of the GPUs would leave no room for a replica of 8.
    """
    mine = next(workload for workload in data["workloads"] if workload["name"] == name)
    share = 8 * len(data["workloads"]) / data["fleet"]["gpus"]
    return data | {
        "fleet": data["fleet"] | {"gpus": 8},
        "workloads": [mine | {"demand": share * mine["demand"]}],
    }


def made(data: dict[str, Any], folder: Path, seed: int, workers: int = 2) -> tuple[Fleet, Grid]:
    """The fleet of `data` and its grid, from `folder` if they were written there, else anew."""
    file, table = folder / "fleet.yaml", folder / "grid.csv"
    text = yaml.safe_dump(data, sort_keys=False)
    known = table.exists() and file.exists() and file.read_text() == text
    if not known:
        folder.mkdir(parents=True, exist_ok=True)
        table.unlink(missing_ok=True)
        file.write_text(text)
        measured(Fleet.load(file), seed, workers).write(table)
    return Fleet.load(file), Grid.read(table)


def measured(fleet: Fleet, seed: int, workers: int) -> Grid:
    """Every cell that `fleet` proposes, simulated with lengths and arrivals of `seed`."""
    cells = Problem.build(fleet, None).cells()
    measure: Callable[[Cell], Row] = partial(_row, fleet, seed)
    if workers == 1:
        return Grid(tuple(map(measure, cells)))
    # The heaviest first, so that none is left over; "spawn", since JAX may be running threads.
    heaviest = sorted(cells, key=lambda cell: -cell.load)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        rows = dict(zip(heaviest, pool.map(measure, heaviest), strict=True))
    return Grid(tuple(rows[cell] for cell in cells))


def _tokens(median: float, sigma: float, most: int) -> dict[str, Any]:
    return {"lognormal": {"median": median, "sigma": sigma}, "max": most}


def _row(fleet: Fleet, seed: int, cell: Cell) -> Row:
    config = next(config for config in fleet.configs if config.name == cell.config)
    outcome = simulated(fleet, cell, seed)
    return Row(cell, config.gpus, outcome, _SECONDS, features=config.features)


def simulated(fleet: Fleet, cell: Cell, seed: int) -> Outcome:
    """What a benchmark of `cell` that sees the engine's own clock would report, without error."""
    config = next(config for config in fleet.configs if config.name == cell.config)
    engine = fleet.engine_of(config.name)
    assert engine is not None  # it has one, with a model
    assert engine.model is not None
    replica = Replica(
        model=engine.model, gpu=str(engine.args["gpu"]), tensor_parallel_size=config.gpus
    )
    cost = _SECONDS * config.gpus
    try:
        limits = replica.limits
    except OutOfMemoryError as error:
        return Failed(kind="oom", gpu_seconds=cost, reason=str(error))
    due, prompt, reply = _requests(fleet, cell, seed)
    line = simulate(due, prompt, reply, step_time=replica.step_time, limits=limits)
    latency = line.last_token - due
    counted = due >= _WARMUP
    pairs = zip(due.tolist(), line.last_token.tolist(), strict=True)
    late = overloaded([Record(due=a, end=b, ok=True) for a, b in pairs], 0.0, _SECONDS)
    ended = np.count_nonzero((line.last_token >= _WARMUP) & (line.last_token < _SECONDS))
    # What keeps up completes what is offered; the rate at which this sample came adds only noise.
    kept_up = ended >= _KEEPS_UP * np.count_nonzero(counted)
    throughput = cell.load if kept_up else ended / (_SECONDS - _WARMUP)
    return Measured(
        values={"throughput": throughput, "e2e_p99": percentile(latency[counted], 0, 99).value},
        gpu_seconds=cost,
        saturated=late,
        requests=int(counted.sum()),
    )


def _requests(fleet: Fleet, cell: Cell, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Due times in seconds, prompt and reply tokens of the requests of one benchmark."""
    workload = next(w for w in fleet.workloads if w.name == cell.workload)
    lengths, times = lengths_of(fleet, workload, {})
    load = load_of(fleet, workload, cell, times, seed_of(cell, seed, 0))
    assert isinstance(load, OpenLoop)  # its loads are rates
    due = np.array(list(takewhile(lambda time: time < _SECONDS, load.arrivals())))
    rng = np.random.default_rng(seed_of(cell, seed, 0))
    return due, *lengths.draw(rng, len(due)).T
