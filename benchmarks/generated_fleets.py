"""Certificates on generated fleets whose truth is known: cost and validity per policy.

    python benchmarks/generated_fleets.py --fleets 100 --policy sieve --policy bisect

A fleet has four workloads with p99 SLOs, four tensor-parallel degrees and six open-loop rates each.
Latencies are an analytic stand-in: service that grows with utilisation, a queue that explodes at
saturation, speed that is not monotone in the degree, 1 to 6 % of roughness that no smooth model
explains, and in three of ten fleets a degree that runs out of memory. Nothing is tuned to it.
"""

import argparse
from dataclasses import dataclass

import numpy as np

from fleetsieve.belief import Belief, use_compilation_cache
from fleetsieve.oracle import Oracle
from fleetsieve.problem import FAILED, MEASURED, Problem, Truth
from fleetsieve.replay import NAMES
from fleetsieve.replay_run import Case, Replayer

W, DEGREES, L, GPUS = 4, np.array([1, 2, 4, 8]), 6, 16
C = len(DEGREES)
TOLERANCE, CONFIDENCE, SECONDS = 0.02, 0.95, 330.0
# Least oracle value of a fleet that counts: below it there is hardly anything to decide.
LEAST = 0.05


@dataclass(frozen=True)
class Fleet:
    """Offered rates and what each cell does."""

    rates: np.ndarray
    throughput: np.ndarray
    e2e: np.ndarray
    ttft: np.ndarray
    failed: np.ndarray


def generate(rng: np.random.Generator) -> Fleet:
    """Draw a fleet's behaviour."""
    scaling = rng.uniform(0.55, 1.0)
    bump = np.exp(rng.normal(0, 0.12, C))
    base = np.exp(rng.normal(0.6, 0.7, W))
    capacity = base[:, None] * DEGREES**scaling * bump * np.exp(rng.normal(0, 0.06, (W, C)))
    rates = _rates(rng, base)
    utilisation = rates / capacity[..., None]
    load = np.minimum(utilisation, 1.2)
    wait = _wait(rng, utilisation, capacity)
    speed = DEGREES ** (0.8 * scaling) * bump
    service = rng.uniform(1.5, 12, W)[:, None] / speed
    prefill = rng.uniform(0.05, 0.8, W)[:, None] / DEGREES**scaling
    ttft = prefill[..., None] * (1 + 2 * load**2) + wait
    slowing = 1 + rng.uniform(0.5, 3, W)[:, None, None] * load**1.3
    e2e = service[..., None] * slowing + ttft
    rough = rng.choice([0.01, 0.03, 0.06])
    failed = np.zeros(rates.shape, bool)
    failed[:, 0] = rng.random() < 0.3
    return Fleet(
        rates,
        np.minimum(rates, capacity[..., None]) * np.exp(rng.normal(0, 0.004, rates.shape)),
        e2e * np.exp(rng.normal(0, rough, rates.shape)),
        ttft * np.exp(rng.normal(0, 1.5 * rough, rates.shape)),
        failed,
    )


def _rates(rng: np.random.Generator, base: np.ndarray) -> np.ndarray:
    """Per GPU and workload, or the same absolute rates for all."""
    if rng.random() < 0.5:
        per_gpu = base[:, None, None] * DEGREES[None, :, None]
        return per_gpu * np.geomspace(0.15, 1.35, L)
    return np.broadcast_to(np.geomspace(0.2 * base.min(), 8 * base.max(), L), (W, C, L)).copy()


def _wait(rng: np.random.Generator, utilisation: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """p99 of queueing in seconds over a run of 300 s: a knee, then a backlog that only grows."""
    knee = utilisation**3 / np.maximum(1 - utilisation, 1e-3) / capacity[..., None]
    stable = np.minimum(4.6 * rng.uniform(0.5, 2) * knee, 40.0)
    backlog = np.maximum(300 * (1 - 1 / np.maximum(utilisation, 1.0)), 8.0)
    return np.where(utilisation < 1, stable, backlog)


def case_of(seed: int) -> Case:
    """The fleet of `seed` with SLOs and demands drawn to fit it."""
    rng = np.random.default_rng(seed)
    fleet = generate(rng)
    limit = np.full((W, 2), np.inf)
    limit[:, 0] = rng.uniform(1.3, 5, W) * fleet.e2e[..., 0].min(axis=1)
    tight = rng.random(W) < 0.7
    limit[tight, 1] = (rng.uniform(2, 12, W) * fleet.ttft[..., 0].min(axis=1))[tight]
    given = np.isfinite(limit)
    common = np.exp(
        np.where(given, np.log(np.where(given, limit, 1)), 0).sum(0) / given.sum(0).clip(1)
    )
    values = np.stack([fleet.throughput, fleet.e2e, fleet.ttft], axis=-1)
    values[fleet.failed] = np.nan
    truth = Truth(
        np.where(fleet.failed, FAILED, MEASURED).astype(np.int8),
        values,
        np.full(values.shape, np.nan),
        np.zeros(fleet.failed.shape, bool),
    )
    per_gpu = _capacity_per_gpu(fleet, limit)
    demand = per_gpu * rng.dirichlet(np.full(W, 4.0)) * GPUS * rng.uniform(0.7, 2.0)
    problem = Problem(
        workloads=tuple(f"w{w}" for w in range(W)),
        configs=tuple(f"tp{g}" for g in DEGREES),
        outputs=("throughput", "e2e_p99", "ttft_p99"),
        kind=("rate",) * W,
        exists=np.ones((W, C, L), bool),
        load=fleet.rates,
        gpu_seconds=np.broadcast_to(SECONDS * DEGREES[None, :, None], (W, C, L)).copy(),
        launch=np.zeros(C),
        demand=demand,
        weight=np.ones(W),
        min_replicas=np.zeros(W, int),
        max_replicas=np.full(W, GPUS),
        limit=limit,
        reference=np.where(given, limit, common),
        sizes=DEGREES,
        gpus=GPUS,
        gpus_per_node=8,
        objective="max-min",
        features=np.log2(DEGREES)[:, None],
        feature_names=("tp",),
        categories=np.zeros((C, 0), int),
        category_names=(),
        unusable={},
    )
    belief = Belief(problem, confidence=CONFIDENCE)
    return Case(belief, truth, Oracle.of(problem, truth), TOLERANCE)


def _capacity_per_gpu(fleet: Fleet, limit: np.ndarray) -> np.ndarray:
    """Best true capacity per GPU of each workload, a little where there is none."""
    within = (fleet.e2e <= limit[:, 0, None, None]) & (fleet.ttft <= limit[:, 1, None, None])
    reached = np.logical_and.accumulate(within & ~fleet.failed, axis=-1)
    capacity = np.where(reached, fleet.throughput, 0.0).max(axis=-1)
    return np.maximum((capacity / DEGREES).max(axis=1), 0.05)


def main() -> None:
    """Replay the policies on the fleets and print their cost and validity."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fleets", type=int, default=100)
    parser.add_argument("--policy", action="append", choices=NAMES)
    arguments = parser.parse_args()
    use_compilation_cache()
    policies = arguments.policy or ["sieve", "bisect"]
    found = {name: [] for name in policies}
    for seed in range(arguments.fleets):
        case = case_of(seed)
        if case.oracle.best.value < LEAST:
            continue
        whole = float(case.problem.gpu_seconds.sum())
        for name in policies:
            done = Replayer(case).run(name, 0, seed)
            found[name].append(((done.gpu_seconds_to_certificate or whole) / whole, done))
            print(f"fleet {seed} {name}: {found[name][-1][0]:.3f} of the grid, valid {done.valid}")
    for name, rows in found.items():
        certified = [done for _, done in rows if done.certified]
        valid = sum(bool(done.valid) for done in certified)
        cost = np.mean([share for share, _ in rows])
        print(f"{name}: {cost:.3f} of the grid, {valid} of {len(certified)} certificates valid")


if __name__ == "__main__":
    main()
