"""Random fleets whose truth is known, to test decisions on what nobody tuned for.

A seed gives a model and a GPU, workloads, configs and load levels, what each cell does (a roofline
with queueing, roughened), SLOs, demands and a budget. Some configs run out of memory, some fleets
get slower with more GPUs per replica or at low load, some SLOs lie within 2 % of a cell's latency,
and some cannot be met.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from fleetsieve.analytic import Service, Steady, closed_loop, open_loop
from fleetsieve.cell import Cell, LoadKind
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid, Row
from fleetsieve.problem import Truth
from fleetsieve.runs import Runs
from fleetsieve_measure import Failed, Measured, Outcome

_SECONDS = 330.0
_METRICS = ("e2e_p99", "ttft_p99", "tpot_p99")
# Of one GPU: bytes, bytes/s and 16-bit operations/s that kernels reach.
_MEMORY, _BANDWIDTH, _FLOPS = 72e9, 2.5e12, 4.5e14


@dataclass(frozen=True)
class Kind:
    """A class of fleets of one size; few of them, since each is compiled for."""

    workloads: int
    degrees: tuple[int, ...]
    levels: int
    metrics: int
    gpus: int
    option: tuple[Any, ...] = (None,)
    load: LoadKind = "rate"
    objective: str = "max-min"


KINDS = (
    Kind(2, (1, 2, 4, 8), 16, 2, 16),
    Kind(3, (1, 2, 4, 8), 8, 1, 16),
    Kind(4, (1, 2, 4, 8), 6, 2, 16),
    Kind(4, (2, 4, 8), 10, 1, 32, objective="aggregate"),
    Kind(5, (1, 2, 4, 8), 8, 1, 32, load="concurrency"),
    Kind(6, (1, 2, 4, 8), 5, 2, 32),
    Kind(8, (1, 2, 4), 6, 1, 48),
    Kind(3, (1, 2, 4), 8, 2, 16, option=("fcfs", "boost")),
    Kind(2, (1, 2, 4, 8), 8, 2, 24, option=(64, 256), objective="weighted"),
    Kind(4, (1, 2, 4, 8), 12, 1, 48),
)


@dataclass(frozen=True)
class RandomFleet:
    """A fleet, the exact outcome of every cell, and what is peculiar about it.

    Attributes:
        monotone: whether in every column all levels below one that holds hold.
        knife_edge: workloads with an SLO within 2 % of a cell's latency.
    """

    fleet: Fleet
    grid: Grid
    monotone: bool
    knife_edge: int


def random_fleet(seed: int, *, confidence: float = 0.95, tolerance: float = 0.02) -> RandomFleet:
    """The fleet of `seed`."""
    return _Draw(seed).fleet(confidence, tolerance)


@dataclass
class _Draw:
    """One fleet in the making; `rng` is used in one order, so that a seed means one fleet."""

    seed: int
    rng: np.random.Generator = field(init=False)
    kind: Kind = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([20, self.seed])
        self.kind = KINDS[self.seed % len(KINDS)]

    def fleet(self, confidence: float, tolerance: float) -> RandomFleet:
        service = self._service()
        loads = self._loads(service)
        steady = (open_loop if self.kind.load == "rate" else closed_loop)(service, loads)
        steady = self._roughened(steady)
        metrics, latency = self._metrics(steady)
        fits = service.places[..., 0] > 0
        limit, knife_edge = self._limits(latency, fits)
        holds = (latency <= limit[:, None, None, :]).all(axis=-1) & fits[..., None]
        capacity = np.where(np.logical_and.accumulate(holds, axis=-1), steady.throughput, 0.0)
        best = capacity.max(axis=-1)
        outcomes = self._outcomes(steady, metrics, latency, fits, loads)
        fleet = self._file(metrics, limit, best, confidence, tolerance)
        monotone = bool((np.logical_and.accumulate(holds, axis=-1) == holds).all())
        return RandomFleet(fleet, self._grid(loads, outcomes), monotone, knife_edge)

    @property
    def sizes(self) -> np.ndarray:
        """GPUs of a replica of each config."""
        return np.repeat(self.kind.degrees, len(self.kind.option))

    def _service(self) -> Service:
        rng, kind, sizes = self.rng, self.kind, self.sizes
        workloads, configs = kind.workloads, len(sizes)
        weights = np.exp(rng.uniform(np.log(7e9), np.log(75e9)))
        width = rng.choice([1, 2])
        layers, slow_link = round(24 + 8 * np.log2(weights / 7e9)), rng.random() < 0.35
        speed = sizes * np.exp(rng.normal(0, 0.1, (workloads, configs)))
        context = np.exp(rng.uniform(np.log(200), np.log(6000), (workloads, 1)))
        output = np.exp(rng.uniform(np.log(40), np.log(900), (workloads, 1)))
        per_kv = 4096.0 * layers
        link = 1.2e10 if slow_link else 1.5e11
        hop = (4e-5 if slow_link else 8e-6) * np.log2(sizes) * 2 * layers
        traffic = 2 * layers * 16384 * (1 - 1 / sizes) / link
        free = _MEMORY * sizes - weights * width
        places = np.floor(np.clip(free / (per_kv * (context + output / 2)), 0, 256))
        places = np.where(places >= 4, places, 0)
        per_token = 2 * weights / (_FLOPS * speed) + traffic
        service = Service(
            step=weights * width / (_BANDWIDTH * speed) + hop + 3e-5 * layers,
            per_sequence=per_kv * (context + output / 2) / (_BANDWIDTH * speed) + per_token,
            prefill=np.broadcast_to(context * per_token, (workloads, configs)) + hop,
            output=output[..., None],
            spread_in=rng.uniform(0.1, 0.9, (workloads, 1, 1)),
            spread_out=rng.uniform(0.1, 0.7, (workloads, 1, 1)),
            places=places,
            run=300.0,
        )
        return self._with_options(service)

    def _with_options(self, service: Service) -> Service:
        """What the second feature of a config changes, and the axis of load levels."""
        option, rng = self.kind.option, self.rng
        parts = {k: getattr(service, k) for k in ("step", "per_sequence", "prefill", "places")}
        second = np.arange(len(self.sizes)) % len(option)
        if isinstance(option[0], str):
            parts["prefill"] = parts["prefill"] * rng.uniform(0.5, 1.1, len(option))[second]
            parts["step"] = parts["step"] * rng.uniform(0.9, 1.3, len(option))[second]
        elif option[0] is not None:
            parts["places"] = np.minimum(parts["places"], np.array(option)[second])
        rest = {k: getattr(service, k) for k in ("output", "spread_in", "spread_out", "run")}
        return Service(**{k: v[..., None] for k, v in parts.items()}, **rest)

    def _loads(self, service: Service) -> Float[np.ndarray, "W C L"]:
        rng, levels, sizes = self.rng, self.kind.levels, self.sizes
        shape = (self.kind.workloads, len(sizes), levels)
        if self.kind.load == "concurrency":
            return np.broadcast_to(2.0 ** np.arange(levels), shape)
        most = service.saturation[..., 0]
        per_gpu = np.where(most > 0, most / sizes, np.nan)
        low, high = rng.uniform(0.1, 0.25), rng.uniform(1.2, 2.5)
        if rng.random() < 0.6:
            middle = np.nanmedian(per_gpu, axis=1)[:, None] * sizes
            loads = middle[..., None] * np.geomspace(low, high, levels)
        else:
            ends = (low * np.nanmin(per_gpu * sizes, axis=1), 0.6 * high * most.max(axis=1))
            loads = np.geomspace(*ends, levels, axis=-1)[:, None, :]
        return np.broadcast_to(_rounded(loads), shape)

    def _roughened(self, steady: Steady) -> Steady:
        """What no smooth model explains, of cells and of the lowest loads of some columns."""
        rng, shape = self.rng, steady.e2e.shape
        rough = rng.choice([0.005, 0.015, 0.03, 0.06])
        common = np.exp(rng.normal(0, rough, shape))
        depth = np.where(rng.random(shape[:2]) < 0.5, rng.uniform(0, 1.0, shape[:2]), 0.0)
        early = 1 + (rng.random() < 0.3) * depth[..., None] * np.exp(-1.5 * np.arange(shape[2]))
        own = [np.exp(rng.normal(0, scale * rough, shape)) for scale in (0.1, 1.2, 0.4, 0.4)]
        quiet = steady.throughput * own[0]
        return Steady(
            quiet, *(m * o * common * early for m, o in zip(steady[1:], own[1:], strict=True))
        )

    def _metrics(self, steady: Steady) -> tuple[tuple[str, ...], Float[np.ndarray, "W C L M"]]:
        every = dict(zip(_METRICS, (steady.e2e, steady.ttft, steady.tpot), strict=True))
        picked = self.rng.permutation(len(_METRICS))[: self.kind.metrics]
        names = tuple(_METRICS[i] for i in sorted(picked))
        return names, np.stack([every[name] for name in names], axis=-1)

    def _limits(
        self, latency: np.ndarray, fits: Bool[np.ndarray, "W C"]
    ) -> tuple[Float[np.ndarray, "W M"], int]:
        """SLOs in seconds: near what a random config does at a random load, some on its edge."""
        rng, kind = self.rng, self.kind
        limit = np.full((kind.workloads, kind.metrics), np.inf)
        edges = 0
        for w in range(kind.workloads):
            c = rng.choice(np.flatnonzero(fits[w]) if fits[w].any() else len(self.sizes))
            level = int(rng.uniform(0.3, 0.95) * kind.levels)
            edge, hopeless = rng.random() < 0.25, rng.random() < 0.04
            used = [m for m in range(kind.metrics) if m == 0 or rng.random() < 0.7]
            for m in used:
                slack = rng.uniform(0.98, 1.02) if edge else rng.uniform(0.9, 1.6)
                limit[w, m] = latency[w, c, level, m] * slack
            if hopeless:
                limit[w, used[0]] = 0.8 * latency[w, ..., used[0]].min()
            edges += edge
        return limit, edges

    def _outcomes(
        self,
        steady: Steady,
        metrics: Sequence[str],
        latency: np.ndarray,
        fits: np.ndarray,
        loads: np.ndarray,
    ) -> dict[tuple[int, int, int], Outcome]:
        flags = self.kind.load == "rate" and self.rng.random() < 0.5
        found: dict[tuple[int, int, int], Outcome] = {}
        for w, c, level in np.ndindex(loads.shape):
            cost = _SECONDS * float(self.sizes[c])
            if not fits[w, c]:
                found[w, c, level] = Failed(kind="oom", gpu_seconds=cost)
                continue
            done = float(steady.throughput[w, c, level])
            values = {m: float(x) for m, x in zip(metrics, latency[w, c, level], strict=True)}
            behind = bool(flags and done < 0.9 * loads[w, c, level])
            found[w, c, level] = Measured(
                values={"throughput": done, **values}, gpu_seconds=cost, saturated=behind
            )
        return found

    def _configs(self) -> list[dict[str, Any]]:
        kind = self.kind
        rows = [(degree, option) for degree in kind.degrees for option in kind.option]
        name = "scheduler" if isinstance(kind.option[0], str) else "max-num-seqs"
        return [
            {
                "name": f"tp{degree}" + ("" if option is None else f"-{option}"),
                "gpus": degree,
                "features": {"tp": degree} | ({} if option is None else {name: option}),
            }
            for degree, option in rows
        ]

    def _file(
        self,
        metrics: Sequence[str],
        limit: np.ndarray,
        best: Float[np.ndarray, "W C"],
        confidence: float,
        tolerance: float,
    ) -> Fleet:
        rng, kind = self.rng, self.kind
        per_gpu = (best / self.sizes).max(axis=1)
        share = rng.dirichlet(np.full(kind.workloads, 4.0)) * kind.gpus * rng.uniform(0.6, 1.8)
        demand = np.where(per_gpu > 0, per_gpu, per_gpu.max() or 1.0) * share
        closed = {"arrivals": {"concurrency": True}} if kind.load == "concurrency" else {}
        workloads = [
            {
                "name": f"w{w}",
                "demand": float(demand[w]),
                "weight": float(rng.uniform(0.5, 2)),
                "slo": {m: float(x) for m, x in zip(metrics, limit[w], strict=True) if x < np.inf},
                **closed,
            }
            for w in range(kind.workloads)
        ]
        return Fleet.parse(
            {
                "fleet": {"gpus": kind.gpus, "gpus_per_node": 8, "objective": kind.objective},
                "decision": {"tolerance": tolerance, "confidence": confidence},
                "configs": self._configs(),
                "workloads": workloads,
            },
            source=f"random fleet {self.seed}",
        )

    def _grid(self, loads: np.ndarray, outcomes: dict[tuple[int, int, int], Outcome]) -> Grid:
        configs = self._configs()
        rows = [
            Row(
                Cell(f"w{w}", configs[c]["name"], float(loads[w, c, level]), self.kind.load),
                configs[c]["gpus"],
                outcome,
                features=configs[c]["features"],
            )
            for (w, c, level), outcome in outcomes.items()
        ]
        return Grid(tuple(rows), f"random fleet {self.seed}")


@dataclass(frozen=True)
class RunNoise:
    """What a run of a cell shows when latencies differ from run to run.

    All latencies of a run share most of a factor whose log has the tails of Student's t with three
    degrees of freedom; besides, each has an error of which the run knows the size. Throughput
    varies a twentieth as much.

    Attributes:
        level: half of the runs are within 0.67 times this of the truth, in logs.
    """

    truth: Truth
    level: float

    def __call__(self, index: int, rng: np.random.Generator) -> Runs:
        """A run of the cell at the flat index."""
        exact = Runs.of_truth(self.truth, np.array([index]))
        outputs = exact.values.shape[1]
        stated = self.level * np.array([0.02] + [0.3] * (outputs - 1))
        scale = self.level * np.array([0.05] + [1.0] * (outputs - 1))
        shared, own = rng.standard_t(3), rng.standard_t(3, outputs)
        factor = np.exp(
            scale * (0.85 * shared + 0.5 * own) * 0.88 + stated * rng.normal(size=outputs)
        )
        factor[0] = np.exp(scale[0] * own[0] * 0.88 + stated[0] * rng.normal())
        values = exact.values * factor
        return replace(exact, values=values, se=values * stated)


def _rounded(loads: np.ndarray) -> np.ndarray:
    """To four digits, as people write rates."""
    digits = 10.0 ** (np.floor(np.log10(loads)) - 3)
    return np.rint(loads / digits) * digits
