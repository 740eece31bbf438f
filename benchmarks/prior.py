"""What a predicted grid is worth as a prior, and what a wrong one does to certificates.

    python benchmarks/prior.py named fleet.yaml.. --grid measured.csv --predicted predicted.csv
    python benchmarks/prior.py random --fleets 100

Priors: `none`; `predicted` as given, or the truth with a smooth error of 10 to 50 %; `wrong`, the
former with a third of the columns (workload, config) 4.6 times too fast or too slow and a fifth
marked out of memory; `hostile`, with the columns of the best allocation 4.6 times too slow; and
`garbage`, with outcomes shuffled over all cells.
"""

import argparse
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fleetsieve.belief import Belief, use_compilation_cache
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid, Row
from fleetsieve.oracle import Oracle
from fleetsieve.predicted import predictions
from fleetsieve.problem import Problem
from fleetsieve.random_fleet import random_fleet
from fleetsieve.replay_run import Case, Replayer, Run
from fleetsieve_measure import Failed, Measured

FACTOR = 4.6
# Least oracle value of a fleet that counts: below it there is hardly anything to decide.
LEAST = 0.05
Pair = tuple[str, str]
PRIORS = ("none", "predicted", "wrong", "hostile", "garbage")


class Setting(NamedTuple):
    """A fleet with its truth, and the prior before it is spoilt."""

    name: str
    fleet: Fleet
    truth: Grid
    predicted: Grid


def slower(row: Row, log_factor: float) -> Row:
    """A row as if everything took exp(log_factor) times as long."""
    if not isinstance(row.outcome, Measured):
        return row
    values = {
        name: value * np.exp(-log_factor if name == "throughput" else log_factor)
        for name, value in row.outcome.values.items()
    }
    return replace(row, outcome=replace(row.outcome, values=values))


def smoothly_wrong(grid: Grid, rng: np.random.Generator) -> Grid:
    """An error of 10 to 50 % that changes with workload, config and load."""
    size = rng.uniform(0.1, 0.5)
    workloads = dict(zip(grid.workloads, rng.standard_normal(len(grid.workloads)), strict=True))
    configs = dict(zip(grid.configs, rng.standard_normal(len(grid.configs)), strict=True))
    slope, middle = rng.normal(0, 0.5), np.mean([np.log2(row.cell.load) for row in grid.rows])

    def error(row: Row) -> float:
        own = workloads[row.cell.workload] + configs[row.cell.config]
        return own + slope * (np.log2(row.cell.load) - middle)

    errors = np.array([error(row) for row in grid.rows])
    errors *= size / np.sqrt((errors**2).mean())
    return replace(grid, rows=tuple(map(slower, grid.rows, errors)))


def wrong(grid: Grid, rng: np.random.Generator) -> Grid:
    """A third of the columns off by a factor of 4.6, a fifth out of memory."""
    pairs = list(grid.by_pair)
    off = {p: rng.choice([-1, 1]) * np.log(FACTOR) for p in pairs if rng.random() < 1 / 3}
    gone = {p for p in pairs if rng.random() < 1 / 5}

    def spoilt(row: Row) -> Row:
        pair = (row.cell.workload, row.cell.config)
        if pair in gone:
            return replace(row, outcome=Failed(kind="oom", gpu_seconds=0.0))
        return slower(row, off.get(pair, 0.0))

    return replace(grid, rows=tuple(map(spoilt, grid.rows)))


def hostile(grid: Grid, best: Collection[Pair]) -> Grid:
    """The columns that should be chosen are predicted 4.6 times slower than the others."""
    rows = [
        slower(row, np.log(FACTOR) * ((row.cell.workload, row.cell.config) in best))
        for row in grid.rows
    ]
    return replace(grid, rows=tuple(rows))


def garbage(grid: Grid, rng: np.random.Generator) -> Grid:
    """Every outcome moved to a random cell."""
    outcomes = [grid.rows[i].outcome for i in rng.permutation(len(grid.rows))]
    rows = [replace(row, outcome=o) for row, o in zip(grid.rows, outcomes, strict=True)]
    return replace(grid, rows=tuple(rows))


def priors_of(setting: Setting, oracle: Oracle, seed: int) -> dict[str, Callable[[], Grid | None]]:
    """The priors of one fleet by name."""
    rng = partial(np.random.default_rng, [7, seed])
    problem = oracle.problem
    best = {
        (problem.workloads[w], problem.configs[c]) for w, c in np.argwhere(oracle.best.replicas > 0)
    }
    predicted = setting.predicted
    return {
        "none": lambda: None,
        "predicted": lambda: predicted,
        "wrong": lambda: wrong(predicted, rng()),
        "hostile": lambda: hostile(predicted, best),
        "garbage": lambda: garbage(predicted, rng()),
    }


def runs_of(
    setting: Setting, names: Collection[str], seed: int
) -> Iterator[tuple[str, Run, float]]:
    """One run of the sieve per prior, with its cost as a share of the grid's."""
    fleet, problem = setting.fleet, Problem.build(setting.fleet, setting.truth)
    truth = problem.truth(setting.truth)
    oracle = Oracle.of(problem, truth)
    if oracle.best.value < LEAST:
        return
    priors = priors_of(setting, oracle, seed)
    whole = float(problem.gpu_seconds.sum())
    for name in names:
        belief = Belief(
            problem,
            confidence=fleet.decision.confidence,
            predicted=predictions(problem, priors[name]()),
        )
        case = Case(belief, truth, oracle, fleet.decision.tolerance)
        run = Replayer(case).run("sieve", 0, seed)
        yield name, run, (run.gpu_seconds_to_certificate or whole) / whole


def settings_of(arguments: argparse.Namespace) -> Iterator[tuple[int, Setting]]:
    """Fleets with their truth and prior, each with a seed."""
    first, step = arguments.first, arguments.step
    seeds = range(first, first + step * arguments.fleets, step)
    if arguments.kind == "named":
        truth, predicted = Grid.read(arguments.grid), Grid.read(arguments.predicted)
        for seed in seeds:
            for path in arguments.files:
                yield seed, Setting(path.stem, Fleet.load(path), truth, predicted)
        return
    for seed in seeds:
        drawn = random_fleet(seed)
        predicted = smoothly_wrong(drawn.grid, np.random.default_rng([3, seed]))
        yield seed, Setting("random", drawn.fleet, drawn.grid, predicted)


def main() -> None:
    """Replay the sieve with every prior and print costs and validity."""
    parser = argparse.ArgumentParser(description="What a prior grid is worth")
    parser.add_argument("kind", choices=["named", "random"])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--predicted", type=Path)
    parser.add_argument("--fleets", type=int, default=3, help="seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--step", type=int, default=1, help="10: fleets of one size, compiled once")
    parser.add_argument("--prior", action="append", choices=PRIORS)
    arguments = parser.parse_args()
    use_compilation_cache()
    found: dict[tuple[str, str], list[tuple[Run, float]]] = {}
    for seed, setting in settings_of(arguments):
        for name, run, share in runs_of(setting, arguments.prior or PRIORS, seed):
            found.setdefault((setting.name, name), []).append((run, share))
            print(
                f"{setting.name} {seed} {name}: {share:.3f} of the grid, {run.measurements} cells,"
                f" valid {run.valid}, regret {run.regret:.3f}",
                flush=True,
            )
    print(f"\n{'fleet':20} {'prior':10} {'runs':>4} {'of the grid':>11} {'valid':>9}")
    for (fleet, name), rows in found.items():
        certified = [run for run, _ in rows if run.certified]
        valid = sum(bool(run.valid) for run in certified)
        share = np.mean([share for _, share in rows])
        count = f"{valid}/{len(certified)}"
        print(f"{fleet:20} {name:10} {len(rows):4} {share:11.3f} {count:>9}")


if __name__ == "__main__":
    main()
