"""Offline comparison of policies on a grid whose outcomes are all known."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fleetsieve.belief import Belief, use_compilation_cache
from fleetsieve.choice import check
from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid
from fleetsieve.nearest import hint
from fleetsieve.oracle import Oracle
from fleetsieve.policy_names import POLICY_NAMES
from fleetsieve.predicted import predictions, prior_of
from fleetsieve.problem import Problem
from fleetsieve.replay_run import Case, Replayer, Run, named
from fleetsieve.savings import Saving, saving

SCHEMA = "fleetsieve.replay/1"

_replayer: Replayer | None = None


@dataclass(frozen=True)
class Replay:
    """Runs of policies over orders, and what the oracle decides."""

    cells: int
    grid_gpu_seconds: float
    tolerance: float
    oracle_value: float
    oracle_allocation: list[dict[str, Any]]
    runs: dict[str, list[Run]]

    @property
    def savings(self) -> dict[str, dict[str, Saving]]:
        """Savings of `sieve` over every other policy that ran, over the orders both finished."""
        mine = {run.order: run for run in self.runs.get("sieve", [])}
        found = {}
        for name, runs in self.runs.items():
            pairs = [(mine[other.order], other) for other in runs if other.order in mine]
            if name != "sieve" and pairs:
                found[f"sieve_vs_{name}"] = {
                    "to_oracle": self._saving(pairs, "gpu_seconds_to_oracle"),
                    "to_certificate": self._saving(pairs, "gpu_seconds_to_certificate"),
                }
        return found

    def to_dict(self) -> dict[str, Any]:
        """The JSON form fleetsieve.replay/1."""
        return {
            "schema": SCHEMA,
            "cells": self.cells,
            "grid_gpu_seconds": self.grid_gpu_seconds,
            "tolerance": self.tolerance,
            "oracle": {"value": self.oracle_value, "allocation": self.oracle_allocation},
            "policies": {
                name: {"runs": [run.to_dict() for run in runs]} for name, runs in self.runs.items()
            },
            "savings": {
                name: {kind: asdict(value) for kind, value in kinds.items()}
                for name, kinds in self.savings.items()
            },
        }

    def _saving(self, pairs: list[tuple[Run, Run]], cost: str) -> Saving:
        def costs(side: int) -> np.ndarray:
            given = [getattr(pair[side], cost) for pair in pairs]
            return np.array([self.grid_gpu_seconds if c is None else c for c in given])

        return saving(costs(0), costs(1))


def replay(
    fleet: Fleet,
    grid: Grid,
    policies: Sequence[str],
    orders: int,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Callable[[str, int, int], None] = lambda policy, done, total: None,
) -> Replay:
    """Run `policies` over `orders` orders each, in `workers` processes (default: one per CPU).

    `on_progress` gets a policy, how many of all its runs are done, and their number. An interrupt
    ends the replay with the runs that are finished.

    Raises:
        InputError: an unknown policy, no policy or order, a grid that cannot answer for the fleet,
            or a fleet that has no allocation.
    """
    if not policies:
        raise InputError(f"no policy is given; use {', '.join(POLICY_NAMES)}")
    for name in policies:
        if name not in POLICY_NAMES:
            raise InputError(f"policy {name!r} is unknown; {hint(name, POLICY_NAMES)}")
    if orders < 1:
        raise InputError(f"orders is {orders}; give a number of at least 1")
    problem = Problem.build(fleet, grid)
    check(problem)
    truth = problem.truth(grid)
    belief = Belief(
        problem,
        confidence=fleet.decision.confidence,
        measured_only=fleet.decision.unmeasured == "refuse",
        predicted=predictions(problem, prior_of(fleet)),
        inference=fleet.decision.inference,
    )
    oracle = Oracle.of(problem, truth)
    case = Case(belief, truth, oracle, fleet.decision.tolerance, stop=fleet.decision.stop)
    jobs = [(name, order, seed) for name in dict.fromkeys(policies) for order in range(orders)]
    runs: dict[str, list[Run]] = {name: [] for name in policies}
    for name, result in _results(case, jobs, workers or _cpus()):
        runs[name].append(result)
        on_progress(name, len(runs[name]), orders)
    for finished in runs.values():
        finished.sort(key=lambda run: run.order)
    return Replay(
        cells=problem.n_cells,
        grid_gpu_seconds=float(problem.gpu_seconds.sum()),
        tolerance=case.tolerance,
        oracle_value=oracle.best.value,
        oracle_allocation=named(problem, oracle.best.replicas),
        runs=runs,
    )


def _results(
    case: Case, jobs: list[tuple[str, int, int]], workers: int
) -> Iterator[tuple[str, Run]]:
    """Finished runs in any order; an interrupt ends them early."""
    workers = min(workers, len(jobs))
    try:
        if workers == 1:
            replayer = Replayer(case)
            for name, order, seed in jobs:
                yield name, replayer.run(name, order, seed)
            return
        with _pool(case, workers) as pool:
            futures: dict[Future, str] = {pool.submit(_work, *job): job[0] for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()
    except KeyboardInterrupt:
        return


@contextmanager
def _pool(case: Case, workers: int) -> Iterator[ProcessPoolExecutor]:
    # JAX runs threads, which a forked process would not have; hence "spawn".
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_prepare, initargs=(case,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare(case: Case) -> None:
    global _replayer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    use_compilation_cache()
    _replayer = Replayer(case)


def _work(policy: str, order: int, seed: int) -> Run:
    assert _replayer is not None  # set by the pool's initializer
    return _replayer.run(policy, order, seed)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
