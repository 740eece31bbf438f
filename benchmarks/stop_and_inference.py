"""Certificates on random fleets by stop rule and inference: cost, validity, coverage, time.

    python benchmarks/stop_and_inference.py --stop gap --stop regret --kinds 1 2 3 --fleets 10
    python benchmarks/stop_and_inference.py --inference map --inference nuts --kinds 1 2 --fleets 10

`--fleets` are of each kind, since programs are compiled for every kind anew.
"""

import argparse
import time
from itertools import product

import numpy as np

from fleetsieve.belief import Belief, use_compilation_cache
from fleetsieve.oracle import Oracle
from fleetsieve.problem import Problem
from fleetsieve.random_fleet import KINDS, random_fleet
from fleetsieve.replay_run import Case, Replayer

# Least oracle value of a fleet that counts: below it there is hardly anything to decide.
LEAST = 0.05


def case_of(seed: int, stop: str, inference: str) -> Case:
    """The fleet of `seed` under a stop rule and an inference."""
    drawn = random_fleet(seed)
    problem = Problem.build(drawn.fleet, drawn.grid)
    truth, rules = problem.truth(drawn.grid), drawn.fleet.decision
    belief = Belief(problem, confidence=rules.confidence, inference=inference)
    return Case(belief, truth, Oracle.of(problem, truth), rules.tolerance, stop=stop)


def main() -> None:
    """Replay `sieve` and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stop", action="append", choices=("gap", "regret"))
    parser.add_argument("--inference", action="append", choices=("map", "nuts"))
    parser.add_argument("--kinds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--fleets", type=int, default=10)
    args = parser.parse_args()
    use_compilation_cache()
    found = {}
    for kind, block in product(args.kinds, range(args.first, args.first + args.fleets)):
        seed = len(KINDS) * block + kind
        for rules in product(args.stop or ["gap"], args.inference or ["map"]):
            case, start = case_of(seed, *rules), time.perf_counter()
            if case.oracle.best.value < LEAST:
                continue
            done = Replayer(case).run("sieve", 0, seed)
            share = (done.gpu_seconds_to_certificate or np.inf) / case.problem.gpu_seconds.sum()
            row = (min(share, 1.0), done.valid, done.covered, time.perf_counter() - start)
            found.setdefault(rules, []).append(row)
            print(f"fleet {seed} {rules}: {row[0]:.3f} of the grid, valid {row[1]}, {row[3]:.0f} s")
    for rules, rows in found.items():
        cost, valid, covered, seconds = zip(*rows, strict=True)
        certified = sum(each is not None for each in valid)
        print(
            f"{rules}: {np.mean(cost):.4f} of the grid, {sum(map(bool, valid))} of {certified} "
            f"certificates valid, all bounds hold at the end of {np.mean(covered):.2f}, "
            f"{np.median(seconds):.1f} s a run"
        )


if __name__ == "__main__":
    main()
