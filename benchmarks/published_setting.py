"""The published setting, simulated: what a decision costs, and what other ways of deciding lose.

    python benchmarks/published_setting.py .demo/published --orders 200 --seed 0 --seed 1 --seed 2

Each seed draws other lengths and arrivals. Its fleet and grid go to a folder of its own and are
used again; `python -m fleetsieve replay FOLDER/seed-0/fleet.yaml FOLDER/seed-0/grid.csv` replays
them.
"""

import argparse
import json
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import numpy as np
from other_ways import Way, Worth, best_way, capacity_only, joint, sparse, worth
from published_grid import alone, made, setting

from fleetsieve.belief import use_compilation_cache
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid
from fleetsieve.oracle import Oracle
from fleetsieve.problem import Problem, Truth
from fleetsieve.replay import Replay, replay
from fleetsieve.sieve import Sieve

POLICIES = ("sieve", "random", "bisect")
Figures = dict[str, float]


def savings(found: Replay, name: str) -> Figures:
    """Print what sieve saves over the other policies; costs are shares of the grid."""
    cost = found.grid_gpu_seconds
    print(f"{name}: {found.cells} cells, {cost:,.0f} GPU-seconds, oracle {found.oracle_value:.3f}")
    for policy, runs in found.runs.items():
        ends = [run.gpu_seconds_to_certificate for run in runs]
        reached = [run.gpu_seconds_to_oracle for run in runs]
        print(
            f"  {policy}: oracle decision after {_mean(reached, cost):,.0f} GPU-seconds, "
            f"certificate after {_mean(ends, cost):,.0f}, valid in "
            f"{sum(bool(run.valid) for run in runs)} of {sum(run.certified for run in runs)}"
        )
    figures = {}
    for other, kinds in found.savings.items():
        for kind, saved in kinds.items():
            low, high = saved.ci95
            print(
                f"  {other} {kind}: saves {100 * saved.mean:.1f} % "
                f"({100 * low:.1f} to {100 * high:.1f}), ratio of means {100 * saved.ratio:.1f} %"
            )
            figures[f"{name}: {other} {kind}, %"] = 100 * saved.mean
    return figures


def _mean(costs: Iterable[float | None], whole: float) -> float:
    """What never happened costs the whole grid."""
    return float(np.mean([whole if cost is None else cost for cost in costs]))


def replays(fleet: Fleet, grid: Grid, folder: Path, orders: int) -> Figures:
    """All workloads together, then each alone."""
    data, figures = fleet.mapping(), {}
    for name in ("together", *(workload.name for workload in fleet.workloads)):
        one = fleet if name == "together" else Fleet.parse(alone(data, name), source=name)
        found = replay(one, grid, POLICIES, orders)
        (folder / f"replay-{name}.json").write_text(json.dumps(found.to_dict()))
        figures |= savings(found, name)
    return figures


def ways(fleet: Fleet, grid: Grid) -> Figures:
    """Print what the joint model decides, and what throughput alone and sparse profiles do."""
    problem = Problem.build(fleet, grid)
    truth = problem.truth(grid)
    oracle = Oracle.of(problem, truth)
    best = best_way(oracle, truth)
    sieve, told = certified(fleet, grid)
    most = worth(oracle, truth, best)
    print(f"oracle: {_columns(problem, best)}; {most.served:.2f} requests/s served")
    blind = {
        f"throughput{only}, {cells}": capacity_only(problem, truth, known, sustained=bool(only))
        for only in ("", " where it kept up")
        for cells, known in (("same cells", told), ("whole grid", problem.exists))
    }
    figures = {}
    for name, way in {"joint model": joint(problem, sieve.decision()), **blind}.items():
        found = worth(oracle, truth, way)
        print(f"{name}: {_columns(problem, way)}\n  {_said(most, found)}")
        figures |= _figures(name, most, found) | {f"{name}: worst p99, s": found.worst}
    return figures | _sparse(oracle, truth, most, 1) | _sparse(oracle, truth, most, 2)


def certified(fleet: Fleet, grid: Grid) -> tuple[Sieve, np.ndarray]:
    """The engine, once it has measured what it needs, and which cells these were."""
    sieve = Sieve(fleet, grid=grid)
    told = np.zeros(sieve.problem.exists.shape, bool)
    while not sieve.done:
        for proposal in sieve.ask():
            sieve.tell(proposal.ticket, grid.cells[proposal.cell].outcome)
            told[sieve.problem.index(proposal.cell)] = True
    return sieve, told


def _sparse(oracle: Oracle, truth: Truth, most: Worth, count: int) -> Figures:
    """Every choice of `count` levels; the figures are those of the most evenly spread one."""
    levels = oracle.holds.shape[-1]
    even = tuple(int((2 * k + 1) * levels / (2 * count)) for k in range(count))
    found = {
        chosen: worth(oracle, truth, sparse(oracle, truth, chosen))
        for chosen in combinations(range(levels), count)
    }
    name = f"profile of levels {_numbers(even)} of {levels}"
    print(f"{name}: {_said(most, found[even])}\n  points and requests/s lost, by levels:")
    for chosen, each in found.items():
        points, requests = 100 * (most.value - each.value), most.served - each.served
        print(f"  {_numbers(chosen)}: {points:.1f} and {requests:.2f}")
    return _figures(name, most, found[even])


def _numbers(levels: Iterable[int]) -> str:
    return ", ".join(str(level + 1) for level in levels)


def _figures(name: str, most: Worth, found: Worth) -> Figures:
    return {
        f"{name}: points lost": 100 * (most.value - found.value),
        f"{name}: requests/s lost": most.served - found.served,
    }


def _said(most: Worth, found: Worth) -> str:
    return (
        f"loses {100 * (most.value - found.value):.1f} points of the worst fulfillment and "
        f"{most.served - found.served:.2f} requests/s; p99 up to {found.worst:.1f} s, "
        f"{found.broken} columns break the SLO"
    )


def _columns(problem: Problem, way: Way) -> str:
    return ", ".join(
        f"{problem.workloads[w]} {way.replicas[w, c]} x {problem.configs[c]} at "
        f"{problem.load[w, c, way.level[w, c]]:g}/s"
        for w, c in np.argwhere(way.replicas > 0)
    )


def main() -> None:
    """Print each seed, then the range of every figure over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    use_compilation_cache()
    every: list[Figures] = []
    for seed in arguments.seed or [0]:
        folder = arguments.folder / f"seed-{seed}"
        fleet, grid = made(setting(), folder, seed, arguments.workers)
        print(f"\nseed {seed}, {folder}")
        found = ways(fleet, grid)
        if arguments.orders:
            found |= replays(fleet, grid, folder, arguments.orders)
        every.append(found)
    print("\nlowest and highest over the seeds")
    for name in every[0]:
        values = [figures[name] for figures in every]
        print(f"{name}: {min(values):.2f} to {max(values):.2f}")


if __name__ == "__main__":
    main()
