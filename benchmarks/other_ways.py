"""Decisions that are made another way from the same cells, and what each is worth in truth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from fleetsieve.cell import Cell
from fleetsieve.choice import best_allocation, servable
from fleetsieve.decision import Decision
from fleetsieve.oracle import Oracle
from fleetsieve.problem import MEASURED, Problem, Truth


@dataclass(frozen=True)
class Way:
    """Replicas, and the level of load that each of them is given."""

    replicas: Int[np.ndarray, "W C"]
    level: Int[np.ndarray, "W C"]


@dataclass(frozen=True)
class Worth:
    """What a decision is worth in truth.

    Attributes:
        value: V at the true capacities.
        served: requests/s within their SLOs, at the true capacities.
        worst: the highest first metric, in seconds, of a replica at the load that it was given.
        broken: allocated columns whose replicas break an SLO at the load that they were given.
    """

    value: float
    served: float
    worst: float
    broken: int


def worth(oracle: Oracle, truth: Truth, way: Way) -> Worth:
    """Judge `way`."""
    problem, used = oracle.problem, way.replicas > 0
    metric = np.take_along_axis(truth.values[..., 1], way.level[..., None], axis=-1)[..., 0]
    capacity = (way.replicas * oracle.kappa).sum(axis=1)
    return Worth(
        value=oracle.value(way.replicas),
        served=float(np.minimum(capacity, problem.demand).sum()),
        worst=float(np.nan_to_num(metric[used], nan=np.inf).max(initial=0.0)),
        broken=oracle.violations(way.replicas, way.level),
    )


def best_way(oracle: Oracle, truth: Truth) -> Way:
    """What exhaustive measuring decides."""
    held = np.logical_and.accumulate(oracle.holds, axis=-1)
    level = np.where(held, truth.values[..., 0], 0.0).argmax(axis=-1)
    return Way(oracle.best.replicas, level)


def joint(problem: Problem, decision: Decision) -> Way:
    """What the engine decided."""
    replicas = np.zeros(problem.exists.shape[:2], int)
    level = np.zeros_like(replicas)
    kinds = dict(zip(problem.workloads, problem.kind, strict=True))
    for row in decision.allocation:
        cell = Cell(row.workload, row.config, row.load, kinds[row.workload])
        w, c, at = problem.index(cell)
        replicas[w, c], level[w, c] = row.replicas, at
    return Way(replicas, level)


def capacity_only(
    problem: Problem, truth: Truth, known: Bool[np.ndarray, "W C L"], *, sustained: bool
) -> Way:
    """Throughput alone: a replica is worth its highest among the `known` cells.

    `sustained`: only where it kept up with the load, as load generators report it.
    """
    ran = known & (truth.status == MEASURED) & ~(truth.saturated & sustained)
    return _by_throughput(problem, np.where(ran, truth.values[..., 0], 0.0))


def sparse(oracle: Oracle, truth: Truth, levels: Sequence[int]) -> Way:
    """Every column measured at the same few `levels`.

    It is worth the highest of them that holds below the first that breaks; what lies between is
    taken to hold.
    """
    measured = np.zeros(oracle.holds.shape, bool)
    measured[..., list(levels)] = oracle.problem.exists[..., list(levels)]
    broken = np.logical_or.accumulate(measured & ~oracle.holds, axis=-1)
    held = measured & oracle.holds & ~broken
    return _by_throughput(oracle.problem, np.where(held, truth.values[..., 0], 0.0))


def _by_throughput(problem: Problem, throughput: Float[np.ndarray, "W C L"]) -> Way:
    kappa = throughput.max(axis=-1)
    best = best_allocation(problem, kappa, servable(problem, kappa))
    return Way(best.replicas, throughput.argmax(axis=-1))
