"""Policies without a model: what engineers do by hand, column by column.

A column is a workload on a config. A model-free policy gives the cells to measure, one by one, as
a generator that is sent whether the last one held; what it never measured counts as capacity 0.
"""

from collections.abc import Callable, Generator

import numpy as np

from fleetsieve.problem import Problem

Plan = Generator[tuple[int, int, int], bool, None]


def bisect(problem: Problem, rng: np.random.Generator) -> Plan:
    """Binary search of every column for the last level that holds, columns in random order."""
    for w, c in _shuffled(problem, rng):
        low, high = -1, int(problem.exists[w, c].sum())
        while high - low > 1:
            middle = (low + high) // 2
            if (yield w, c, middle):
                low = middle
            else:
                high = middle


def exhaustive(problem: Problem, rng: np.random.Generator) -> Plan:
    """Every cell, in random order."""
    for w, c, level in rng.permutation(np.argwhere(problem.exists)):
        yield int(w), int(c), int(level)


PLANS: dict[str, Callable[[Problem, np.random.Generator], Plan]] = {
    "bisect": bisect,
    "exhaustive": exhaustive,
}


def _shuffled(problem: Problem, rng: np.random.Generator) -> list[tuple[int, int]]:
    columns = np.argwhere(problem.exists.any(axis=-1))
    return [(int(w), int(c)) for w, c in rng.permutation(columns)]
