"""The highest load within an SLO, when a load counts as feasible if any trial is, and otherwise.

    python benchmarks/feasible_if_any.py --fleets 100

Every trial of a column, a workload on a config of a random fleet, multiplies its latencies by one
heavy-tailed factor. `any` is what a load generator does that keeps a load as soon as one trial
meets the SLO; `median` decides by the median of the same trials. Loads are searched from the lowest
up, by halves among the fleet's levels, or by halves at any load to within 5 %, with the truth
between two levels on a straight line (log latency over log load).
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
from jaxtyping import Float

from fleetsieve.problem import Problem
from fleetsieve.random_fleet import random_fleet

# Standard deviation of a trial's log factor: Student's t with so many degrees of freedom.
NOISE, _FREEDOM = 0.15, 4
# Above a level that failed or fell behind, in log units; within this share a search by halves ends.
_BROKEN, _CLOSE = 3.0, 0.05
TRIALS = (1, 2, 3)
RULES: dict[str, Callable[[np.ndarray], float]] = {"any": np.min, "median": np.median}


@dataclass(frozen=True)
class Column:
    """A workload on a config: loads, and the log of the worst metric over its SLO at each."""

    loads: Float[np.ndarray, " L"]
    excess: Float[np.ndarray, " L"]

    @property
    def boundary(self) -> float | None:
        """The load up to which every SLO holds; None where the levels do not enclose it."""
        breaks = np.flatnonzero(self.excess > 0)
        if not len(breaks) or breaks[0] == 0:
            return None
        k = int(breaks[0])
        (low, high), logs = self.excess[k - 1 : k + 1], np.log(self.loads[k - 1 : k + 1])
        return float(np.exp(logs[0] + (logs[1] - logs[0]) * -low / (high - low)))

    def at(self, load: float) -> float:
        """The excess at any load within the levels."""
        return float(np.interp(np.log(load), np.log(self.loads), self.excess))


Holds = Callable[[float], bool]


def scan(column: Column, holds: Holds) -> float:
    """From the lowest level up, until one breaks; 0 if the lowest does."""
    found = 0.0
    for load in column.loads:
        if not holds(float(load)):
            break
        found = float(load)
    return found


def halve(column: Column, holds: Holds) -> float:
    """Binary search among the levels."""
    low, high = -1, len(column.loads)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(float(column.loads[middle])) else (low, middle)
    return float(column.loads[low]) if low >= 0 else 0.0


def close_in(column: Column, holds: Holds) -> float:
    """Binary search at any load, from the lowest level to the highest."""
    low, high = float(column.loads[0]), float(column.loads[-1])
    while high > low * (1 + _CLOSE):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


SEARCHES: dict[str, Callable[[Column, Holds], float]] = {
    "levels, from the lowest up": scan,
    "levels, by halves": halve,
    "any load, by halves": close_in,
}


@dataclass
class Trials:
    """Benchmarks of one column, and how many were run."""

    column: Column
    rng: np.random.Generator
    noise: float = NOISE
    count: int = 0

    def holds(self, rule: Callable[[np.ndarray], float], trials: int, load: float) -> bool:
        """Whether a load is feasible by `rule` over `trials` benchmarks."""
        self.count += trials
        scale = self.noise / np.sqrt(_FREEDOM / (_FREEDOM - 2))
        factors = scale * self.rng.standard_t(_FREEDOM, trials)
        return bool(rule(self.column.at(load) + factors) <= 0)


def columns(seed: int) -> list[Column]:
    """The columns of a random fleet whose boundary lies among their levels."""
    drawn = random_fleet(seed)
    problem = Problem.build(drawn.fleet, drawn.grid)
    truth = problem.truth(drawn.grid)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(truth.values[..., 1:] / problem.limit[:, None, None, :]).max(axis=-1)
    broken = np.isnan(ratio) | truth.saturated
    excess = np.where(broken, np.fmax(ratio, _BROKEN), ratio)
    found = [
        Column(problem.load[w, c][there], excess[w, c][there])
        for w, c in np.ndindex(excess.shape[:2])
        if (there := problem.exists[w, c]).any()
    ]
    return [column for column in found if column.boundary is not None]


@dataclass(frozen=True)
class Tally:
    """Chosen loads over the true boundary of their columns, and benchmarks per column."""

    ratios: Float[np.ndarray, " n"]
    benchmarks: float

    @property
    def above(self) -> float:
        """The share of columns of which the chosen load is above the boundary."""
        return float((self.ratios > 1).mean())


def tally(
    chosen: list[Column],
    search: Callable[[Column, Holds], float],
    rule: Callable[[np.ndarray], float],
    trials: int,
    noise: float = NOISE,
    seed: int = 0,
) -> Tally:
    """Search every column once."""
    ratios, count = [], 0
    for number, column in enumerate(chosen):
        bench = Trials(column, np.random.default_rng([seed, number, trials]), noise)
        load = search(column, partial(bench.holds, rule, trials))
        assert column.boundary is not None  # see `columns`
        ratios.append(load / column.boundary)
        count += bench.count
    return Tally(np.array(ratios), count / len(chosen))


def rows(chosen: list[Column], noise: float) -> Iterator[tuple[str, Tally]]:
    """What each search finds under each rule; decisions made another way are further rows."""
    for (search, by), (rule, feasible), trials in product(SEARCHES.items(), RULES.items(), TRIALS):
        yield f"{search} | {rule} of {trials}", tally(chosen, by, feasible, trials, noise)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fleets", type=int, default=100)
    parser.add_argument("--noise", type=float, default=NOISE)
    arguments = parser.parse_args()
    chosen = [column for seed in range(arguments.fleets) for column in columns(seed)]
    print(f"{len(chosen)} columns of {arguments.fleets} fleets, noise {arguments.noise:g}\n")
    print("| search | feasible if | above the boundary | share of it, median | benchmarks |")
    print("| --- | --- | --- | --- | --- |")
    for name, found in rows(chosen, arguments.noise):
        print(
            f"| {name} | {100 * found.above:.0f} % | {np.median(found.ratios):.2f} "
            f"| {found.benchmarks:.1f} |"
        )


if __name__ == "__main__":
    main()
