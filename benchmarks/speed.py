"""How long the decision engine takes, how much memory, and what others take beside it.

    python benchmarks/speed.py --cells 128 1000 2000 4000 10000 100000 --ceilings
    python benchmarks/speed.py --cells 1000 --gpus 16 64 256 1024 --peer-python PEERS/bin/python

Every fleet has a process of its own, and the peers another one in an interpreter of theirs (NumPy,
torch, botorch, optuna, scipy; what is missing is named); the two take turns, action by action.
Seconds are medians of the calls after the first; by how much the first takes longer, mostly
compilation without any cache, is told apart. Prefix `taskset -c 0` to give everybody one core: on
a busy machine threads that wait for each other measure the waiting.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, product, zip_longest
from pathlib import Path

import ceilings
import cost_model
import numpy as np
from knowledge_gradient import Surface, knowledge_gradient, normal_nodes
from sized_fleet import METRICS, SizedFleet, shape_of, sized_fleet
from speed_peers import BOTORCH, CLOSED, HIGHS, OPTUNA_GP, OPTUNA_TPE, SOME, some
from stopwatch import Timings, Worker

from fleetsieve_kernels.padding import bucket

_HERE = Path(__file__).parent
_GIB = 1 << 30
# Capacities that are allocated at once in a program, as those of fantasies are.
MANY = 256
ALLOCATION, VALUES = "allocation", f"{MANY} values"
# Up to this many cells NumPy checks what the peers compute.
_CHECKED = 2000
# Medians whose ratio says something: the first takes longer where it is above 1.
_TURN = ("tell and refit", "ask")
_PAIRS = {
    "ask : KG in closed form": (("ask",), (CLOSED,)),
    "tell and refit, ask : Optuna GP": (_TURN, (OPTUNA_GP,)),
    "tell and refit, ask : Optuna TPE": (_TURN, (OPTUNA_TPE,)),
    "HiGHS : allocation": ((HIGHS,), (ALLOCATION,)),
}


@dataclass(frozen=True)
class Case:
    """One size, and what was measured of it.

    Attributes:
        peak: bytes of memory of the engine's process at most.
        remarks: what a reader has to know besides.
    """

    cells: int
    gpus: int
    timings: dict[str, Timings]
    peak: int
    remarks: list[str]

    @property
    def title(self) -> str:
        """For the head of a column."""
        return f"{self.cells:,} cells, {self.gpus:,} GPUs"

    def median(self, *names: str) -> float | None:
        """Seconds of all the actions together; None where one was not measured."""
        seconds = [self.timings[name].median for name in names if name in self.timings]
        known = [x for x in seconds if x is not None]
        return sum(known) if len(known) == len(names) else None


def measure(cells: int, gpus: int, given: argparse.Namespace) -> Case:
    """Time the engine, and the peers if there are any, at one size."""
    limits = {"memory": int(given.memory * _GIB), "patience": given.patience}
    cold = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    with Worker(_engine(cells, gpus, given), environment=cold, **limits) as ours:
        if not given.peer_python:
            timings = _rounds([ours], given)
            remarks = ["no peers, since --peer-python is not given"]
            return Case(cells, gpus, timings, ours.peak, ours.absent + remarks)
        sized = sized_fleet(cells, gpus, given.metrics, given.seed)
        rows = sized.observed(given.observations)
        lengthscale = np.ones(sized.points.shape[1])
        surface = Surface(sized.points, lengthscale, rows, sized.log_throughput[rows])
        with tempfile.TemporaryDirectory() as folder:
            case = Path(folder) / "case.npz"
            _write(case, sized, surface, gpus, given.fantasies)
            peers = [given.peer_python, str(_HERE / "speed_peers.py"), str(case)]
            plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            with Worker(peers, environment=plain, **limits) as theirs:
                timings = _rounds([ours, theirs], given)
    checks = _checks(timings, surface, given.fantasies)
    return Case(cells, gpus, timings, ours.peak, [*ours.absent, *theirs.absent, *checks])


def _engine(cells: int, gpus: int, given: argparse.Namespace) -> list[str]:
    command = [sys.executable, str(_HERE / "speed_engine.py")]
    command += ["--cells", str(cells), "--gpus", str(gpus)]
    for name in ("metrics", "observations", "fantasies", "seed"):
        command += [f"--{name}", str(getattr(given, name))]
    return command


def _rounds(workers: Sequence[Worker], given: argparse.Namespace) -> dict[str, Timings]:
    """All wanted actions in turns, one round after the other."""
    wanted = [
        [(worker, name) for name in worker.timings if any(part in name for part in given.only)]
        for worker in workers
    ]
    for _ in range(given.rounds + 1):
        for turn in chain.from_iterable(zip_longest(*wanted)):
            if turn is not None:
                turn[0].time(turn[1])
    return {name: worker.timings[name] for worker, name in chain.from_iterable(wanted)}


def _write(path: Path, sized: SizedFleet, surface: Surface, gpus: int, fantasies: int) -> None:
    np.savez(
        path,
        **asdict(surface),
        nodes=normal_nodes(fantasies),
        axes=sized.axes,
        ordered=sized.ordered,
        kappa=sized.kappa,
        demand=[workload.total_demand for workload in sized.fleet.workloads],
        sizes=[config.gpus for config in sized.fleet.configs],
        gpus=gpus,
    )


def _checks(timings: Mapping[str, Timings], surface: Surface, fantasies: int) -> Iterator[str]:
    """How far several ways of computing the same number are apart."""
    numbers = {name: each.number for name, each in timings.items() if each.number is not None}
    gradients = [name for name in (CLOSED, BOTORCH) if name in numbers]
    cells = len(surface.points)
    if gradients and cells <= _CHECKED:
        found = knowledge_gradient(surface, normal_nodes(fantasies))[some(cells)].mean()
        for name in gradients:
            yield f"{name}: {abs(numbers[name] / found - 1):.0e} from NumPy, relative"
    values = [number for name, number in numbers.items() if not name.startswith("KG")]
    if len(values) > 1:
        yield f"{len(values)} exact allocators: values within {max(values) - min(values):.0e}"


def tables(cases: Sequence[Case], floors: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """What was measured, as lines of Markdown; `floors` in seconds, by call."""
    names = list(dict.fromkeys(name for case in cases for name in case.timings))
    found = {name: [case.timings.get(name, Timings()) for case in cases] for name in names}
    titles = [case.title for case in cases]
    medians = {
        name: [_seconds(each.median) or each.error or "" for each in row]
        for name, row in found.items()
    }
    peak = {"peak memory of the engine": [f"{case.peak / _GIB:.2f} GiB" for case in cases]}
    yield from _table("median of later calls", titles, medians | peak)
    first = {name: [_seconds(each.first) for each in row] for name, row in found.items()}
    yield from _table("first call longer by", titles, first)
    yield from _table("ratio", titles, _ratios(cases, floors))
    for case in cases:
        yield from (f"{case.title}: {remark}" for remark in case.remarks)


def _ratios(cases: Sequence[Case], floors: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
    rows = {
        name: [_ratio(case.median(*above), case.median(*below)) for case in cases]
        for name, (above, below) in _PAIRS.items()
    }
    rows["HiGHS : one of many values"] = [
        _ratio(case.median(HIGHS), case.median(VALUES), MANY) for case in cases
    ]
    # Every cell takes BoTorch as long as any other.
    rows["KG of all cells by BoTorch : ask"] = [
        _ratio(case.median(BOTORCH), case.median("ask"), case.cells / SOME) for case in cases
    ]
    for call, seconds in floors.items():
        rows[f"{call} : its floor here"] = [
            _ratio(case.median(call), least) for case, least in zip(cases, seconds, strict=True)
        ]
    return rows


def _table(title: str, heads: Sequence[str], rows: Mapping[str, list[str]]) -> Iterator[str]:
    yield f"| {title} | {' | '.join(heads)} |"
    yield "| --- " * (len(heads) + 1) + "|"
    yield from (f"| {name} | {' | '.join(row)} |" for name, row in rows.items() if any(row))
    yield ""


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    unit, scale = ("s", 1.0) if value >= 1 else ("ms", 1e3) if value >= 1e-3 else ("µs", 1e6)
    return f"{scale * value:.3g} {unit}"


def _ratio(above: float | None, below: float | None, factor: float = 1.0) -> str:
    return "" if above is None or below is None else f"{factor * above / below:.3g}"


def _sizes(cells: int, given: argparse.Namespace) -> cost_model.Sizes:
    workloads, configs, levels = shape_of(cells)
    return cost_model.Sizes(
        cells,
        outputs=1 + given.metrics,
        rows=bucket(given.observations),
        workloads=workloads,
        configs=configs,
        levels=levels,
        features=4,
        scored=min(given.scored, cells),
        fantasies=given.fantasies,
    )


def model(
    machines: Sequence[ceilings.Ceilings], sizes: Sequence[cost_model.Sizes]
) -> Iterator[str]:
    """The ceilings, and what every stage needs at each size, as lines of Markdown."""
    for each in machines:
        rates = f"{each.products / 1e9:,.0f} and {each.pointwise / 1e9:,.0f} GFLOP/s"
        yield f"{each.name}: {rates} in products and elsewhere, {each.bandwidth / 1e9:,.0f} GB/s"
    yield ""
    for size in sizes:
        rows = {
            f"{stage.call}: {stage.name}{f', {stage.passes} times' * (stage.passes > 1)}": [
                f"{stage.passes * stage.products / 1e9:.2g}",
                f"{stage.passes * stage.pointwise / 1e9:.2g}",
                f"{stage.passes * stage.bytes / 1e9:.2g}",
                *(_seconds(stage.floor(each)) for each in machines),
            ]
            for stage in cost_model.stages(size)
        }
        heads = ["GFLOP, products", "GFLOP, elsewhere", "GB", *(each.name for each in machines)]
        yield from _table(f"{size.cells:,} cells", heads, rows)


def main() -> None:
    options = argparse.ArgumentParser(description="Speed of the decision engine and of others.")
    options.add_argument("--cells", type=int, nargs="+", default=[128, 1000])
    options.add_argument("--gpus", type=int, nargs="+", default=[64])
    options.add_argument("--metrics", type=int, default=1, choices=range(1, len(METRICS) + 1))
    options.add_argument("--observations", type=int, default=60)
    options.add_argument("--fantasies", type=int, default=16)
    options.add_argument("--rounds", type=int, default=5, help="after the first")
    options.add_argument("--only", nargs="+", default=[""], help="actions with a part in the name")
    options.add_argument("--patience", type=float, default=120.0, help="seconds per action")
    options.add_argument("--memory", type=float, default=12.0, help="GiB per process")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--peer-python", help="an interpreter that has the peers")
    options.add_argument("--ceilings", action="store_true", help="the cost model's floors, too")
    options.add_argument("--scored", type=int, default=128, help="candidates in full, for floors")
    options.add_argument("--json", type=Path, help="where to put the seconds of every call")
    given = options.parse_args()
    cases = []
    for cells, gpus in product(given.cells, given.gpus):
        cases.append(measure(cells, gpus, given))
        print(f"measured {cases[-1].title}", file=sys.stderr)
    floors: dict[str, list[float]] = {}
    if given.ceilings:
        here, sizes = ceilings.measured(), [_sizes(cells, given) for cells in given.cells]
        print("\n".join(model([here, ceilings.H100, ceilings.H200], sizes)))
        for name, call in (("ask", "ask"), ("tell and refit", "refit")):
            each = [cost_model.floor(size, here, call) for size in sizes for _ in given.gpus]
            floors[name] = each
    print("\n".join(tables(cases, floors)))
    if given.json:
        given.json.write_text(json.dumps([asdict(case) for case in cases], indent=1))


if __name__ == "__main__":
    main()
