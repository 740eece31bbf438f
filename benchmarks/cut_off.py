"""What the latencies of overloaded runs are worth, of which a run that is cut off says nothing.

    python benchmarks/cut_off.py --fleets 200

`sieve` on random fleets whose grids mark overload: once with the latencies of such cells, once
without. A censored likelihood, which would know that they are late but not how late, lies between.
"""

import argparse
from dataclasses import replace

import numpy as np

from fleetsieve.belief import Belief, use_compilation_cache
from fleetsieve.grid import Grid, Row
from fleetsieve.oracle import Oracle
from fleetsieve.problem import Problem
from fleetsieve.random_fleet import random_fleet
from fleetsieve.replay_run import Case, Replayer, Run
from fleetsieve_measure import Measured

TOLERANCE = 0.02
# Seeds modulo 10 of some fleets whose loads are rates.
_KINDS = (1, 2, 6)


def without_latencies(row: Row) -> Row:
    """The row as a run that was cut off for overload leaves it."""
    outcome = row.outcome
    if not isinstance(outcome, Measured) or not outcome.saturated:
        return row
    values = {"throughput": outcome.values["throughput"]}
    return replace(row, outcome=replace(outcome, values=values))


def compared(seed: int) -> tuple[Run, Run, float] | None:
    """A run with and one without, and the GPU-seconds of the grid; None where nothing differs."""
    drawn = random_fleet(seed)
    bare = Grid(tuple(map(without_latencies, drawn.grid.rows)))
    if bare.rows == drawn.grid.rows:
        return None
    runs = []
    for grid in (drawn.grid, bare):
        problem = Problem.build(drawn.fleet, grid)
        truth = problem.truth(grid)
        oracle = Oracle.of(problem, truth)
        if oracle.best.value <= TOLERANCE:
            return None
        belief = Belief(problem, confidence=drawn.fleet.decision.confidence)
        runs.append(Replayer(Case(belief, truth, oracle, TOLERANCE)).run("sieve", 0, seed))
    return *runs, float(problem.gpu_seconds.sum())


def main() -> None:
    """Print the share of the grid's GPU-seconds that each takes to a certificate."""
    parser = argparse.ArgumentParser(description="With and without latencies of overloaded runs.")
    parser.add_argument("--fleets", type=int, default=100, help="seeds")
    use_compilation_cache()
    found = [compared(s) for s in range(parser.parse_args().fleets) if s % 10 in _KINDS]
    pairs = [each for each in found if each is not None]
    shares = np.array([[_cost(run, whole) / whole for run in runs] for *runs, whole in pairs])
    draws = np.random.default_rng(0).integers(0, len(shares), (2000, len(shares)))
    means = shares[draws].mean(axis=1)
    low, high = np.percentile(means[:, 1] / means[:, 0], [2.5, 97.5])
    known, bare = shares.mean(axis=0)
    valid = [sum(bool(pair[i].valid) for pair in pairs) for i in (0, 1)]
    print(f"{len(pairs)} fleets, valid {valid[0]} and {valid[1]}")
    print(f"of the grid: {known:.3f} with latencies, {bare:.3f} without")
    print(f"without / with: {bare / known:.3f} ({low:.3f} to {high:.3f})")


def _cost(run: Run, whole: float) -> float:
    return run.gpu_seconds_to_certificate or whole


if __name__ == "__main__":
    main()
