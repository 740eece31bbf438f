"""Fleets of any number of cells whose truth is known, to see how time and memory grow.

Four workloads, configs that differ in tensor-parallel degree, scheduler, `max-num-seqs` and
`max-num-batched-tokens`, and load levels at a rate; a roofline with queueing, roughened by 1.5 %,
gives every outcome (`fleetsieve.analytic`).
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int

from fleetsieve.analytic import Service, open_loop
from fleetsieve.cell import Cell
from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid, Row
from fleetsieve_measure import Measured

WORKLOADS = 4
METRICS = ("e2e_p99", "ttft_p99")
_DEGREES, _SCHEDULERS, _MOST_SEQS = (1, 2, 4, 8), ("fcfs", "boost"), 16
_LEVELS = (20, 16, 10, 8, 5, 4, 2, 1)
# Of the model and one GPU: bytes of weights, of memory, bytes/s, operations/s; bytes of a token.
_WEIGHTS, _MEMORY, _BANDWIDTH, _FLOPS, _KV = 40e9, 72e9, 2.5e12, 4.5e14, 131072.0
_SECONDS, _ROUGH = 330.0, 0.015


@dataclass(frozen=True)
class SizedFleet:
    """A fleet and the exact outcome of each of its cells.

    Attributes:
        kappa: true capacities, requests/s.
        axes: per cell the workload, the load level and the place on each axis of the configs.
        ordered: which of these axes have an order.
        points: the same as numbers of similar range, workloads apart: what a plain kernel takes.
        log_throughput: of each cell, relative to the offered rate.
    """

    fleet: Fleet
    grid: Grid
    kappa: Float[np.ndarray, "W C"]
    axes: Int[np.ndarray, "N A"]
    ordered: Bool[np.ndarray, " A"]
    points: Float[np.ndarray, "N d"]
    log_throughput: Float[np.ndarray, " N"]

    def observed(self, count: int, seed: int = 0) -> Int[np.ndarray, " n"]:
        """Flat indices of `count` cells, uniform and without repetition."""
        return np.random.default_rng([seed, 1]).permutation(len(self.axes))[:count]


def shape_of(cells: int) -> tuple[int, int, int]:
    """Workloads, configs and levels that make `cells` cells, as many levels as configs allow.

    Raises:
        InputError: there are no such numbers.
    """
    for levels in _LEVELS:
        configs, left = divmod(cells, WORKLOADS * levels)
        if not left and configs >= levels:
            return WORKLOADS, configs, levels
    raise InputError(
        f"cells is {cells}; give a multiple of {WORKLOADS}, such as 128, 1000 or 10000"
    )


def sized_fleet(cells: int, gpus: int = 64, metrics: int = 1, seed: int = 0) -> SizedFleet:
    """The fleet of `cells` cells on `gpus` GPUs with SLOs on `metrics` latencies.

    Raises:
        InputError: `cells` is no product of workloads, configs and levels.
    """
    _, count, levels = shape_of(cells)
    rng = np.random.default_rng([seed, 0])
    options = _options(count)
    service = _service(options, rng)
    per_gpu = np.median(service.saturation[..., 0] / options.sizes, axis=1)
    loads = (per_gpu[:, None] * options.sizes)[..., None] * np.geomspace(0.15, 1.6, levels)
    steady = open_loop(service, loads)
    rough = np.exp(rng.normal(0, _ROUGH, (len(METRICS), *loads.shape)))
    latency = np.stack([steady.e2e, steady.ttft])[:metrics] * rough[:metrics]
    # Half of the configs hold two thirds of the levels, or nearly.
    limit = np.median(latency[..., (2 * levels) // 3], axis=2)
    holds = np.logical_and.accumulate((latency <= limit[..., None, None]).all(axis=0), axis=-1)
    kappa = np.where(holds, steady.throughput, 0.0).max(axis=-1)
    # Each workload alone would need 0.4 of the GPUs on its best config, all of them 1.6.
    demand = 0.4 * gpus * (kappa / options.sizes).max(axis=1)
    places = np.argwhere(np.ones(loads.shape, bool))
    axes = np.column_stack([places[:, 0], places[:, 2], options.axes[places[:, 1]]])
    return SizedFleet(
        _fleet(options, limit, demand, gpus, cells),
        _grid(options, loads, steady.throughput, latency),
        kappa,
        axes,
        np.array([False, True, True, True, False, True]),
        _points(axes, np.log2(loads).ravel()),
        np.log(steady.throughput / loads).ravel(),
    )


@dataclass(frozen=True)
class _Options:
    """What each config is, as values and as its place on every axis."""

    sizes: Int[np.ndarray, " C"]
    scheduler: tuple[str, ...]
    seqs: Int[np.ndarray, " C"]
    tokens: Int[np.ndarray, " C"]
    axes: Int[np.ndarray, "C 4"]

    @property
    def names(self) -> list[str]:
        parts = zip(self.sizes, self.scheduler, self.seqs, self.tokens, strict=True)
        return [f"tp{tp}-{scheduler}-{seqs}-{tokens}" for tp, scheduler, seqs, tokens in parts]

    @property
    def features(self) -> list[dict[str, float | str]]:
        parts = zip(self.sizes, self.scheduler, self.seqs, self.tokens, strict=True)
        keys = ("tp", "scheduler", "max-num-seqs", "max-num-batched-tokens")
        return [
            dict(zip(keys, (float(tp), scheduler, float(seqs), float(tokens)), strict=True))
            for tp, scheduler, seqs, tokens in parts
        ]


def _options(count: int) -> _Options:
    pairs = len(_DEGREES) * len(_SCHEDULERS)
    seqs = np.rint(np.geomspace(512, 24, min(_MOST_SEQS, -(-count // pairs)))).astype(int)
    tokens = 512 * np.arange(1, 2 - (-count // (pairs * len(seqs))))
    every = product(*(range(len(axis)) for axis in (tokens, seqs, _SCHEDULERS, _DEGREES)))
    axes = np.array(list(every))[:count]
    return _Options(
        np.array(_DEGREES)[axes[:, 3]],
        tuple(_SCHEDULERS[i] for i in axes[:, 2]),
        seqs[axes[:, 1]],
        tokens[axes[:, 0]],
        axes,
    )


def _service(options: _Options, rng: np.random.Generator) -> Service:
    sizes, shape = options.sizes, (WORKLOADS, len(options.sizes))
    context = np.exp(rng.uniform(np.log(300), np.log(4000), (WORKLOADS, 1)))
    output = np.exp(rng.uniform(np.log(60), np.log(600), (WORKLOADS, 1)))
    boost = np.array([scheduler == "boost" for scheduler in options.scheduler])
    speed = sizes**0.9
    held = _KV * (context + output / 2)
    per_token = _WEIGHTS / (_FLOPS * speed)
    return Service(
        step=np.broadcast_to(_WEIGHTS / (_BANDWIDTH * speed) + 1e-3, shape)[..., None],
        per_sequence=(held / (_BANDWIDTH * speed) + per_token)[..., None],
        prefill=(context * per_token * (1 + 256 / options.tokens) * (1 - 0.2 * boost))[..., None],
        output=output[..., None],
        spread_in=rng.uniform(0.2, 0.7, (WORKLOADS, 1, 1)),
        spread_out=rng.uniform(0.2, 0.6, (WORKLOADS, 1, 1)),
        places=np.minimum(np.floor((_MEMORY * sizes - _WEIGHTS) / held), options.seqs)[..., None],
        run=300.0,
    )


def _points(axes: np.ndarray, load: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N d"]:
    numeric = np.column_stack([load, axes[:, 2:]])
    spread = np.ptp(numeric, axis=0)
    workloads = axes[:, :1] == np.arange(WORKLOADS)
    return np.column_stack([workloads, numeric / np.where(spread > 0, spread, 1.0)])


def _fleet(
    options: _Options, limit: np.ndarray, demand: np.ndarray, gpus: int, cells: int
) -> Fleet:
    configs = zip(options.names, options.sizes, options.features, strict=True)
    return Fleet.parse(
        {
            "fleet": {"gpus": gpus, "gpus_per_node": 8},
            # Nothing is certified, so that there is always something to ask.
            "decision": {"tolerance": 0.0},
            "configs": [{"name": n, "gpus": int(g), "features": f} for n, g, f in configs],
            "workloads": [
                {
                    "name": f"w{w}",
                    "demand": float(demand[w]),
                    "slo": {m: float(x) for m, x in zip(METRICS, limit[:, w], strict=False)},
                }
                for w in range(WORKLOADS)
            ],
        },
        source=f"fleet of {cells} cells",
    )


def _grid(options: _Options, loads: np.ndarray, done: np.ndarray, latency: np.ndarray) -> Grid:
    names, features = options.names, options.features
    rows = []
    for w, c, level in np.ndindex(loads.shape):
        size = int(options.sizes[c])
        metrics = zip(METRICS, latency[:, w, c, level], strict=False)
        values = {"throughput": float(done[w, c, level])} | {m: float(x) for m, x in metrics}
        cell = Cell(f"w{w}", names[c], float(loads[w, c, level]), "rate")
        outcome = Measured(values=values, gpu_seconds=_SECONDS * size)
        rows.append(Row(cell, size, outcome, features=features[c]))
    return Grid(tuple(rows), f"{len(rows)} cells")
