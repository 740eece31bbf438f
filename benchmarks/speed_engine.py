"""What the decision engine takes: a worker for `speed.py`, one fleet per process.

python benchmarks/speed_engine.py --cells 1000 --gpus 64
"""

import argparse
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from sized_fleet import SizedFleet, sized_fleet
from speed import ALLOCATION, MANY, VALUES
from stopwatch import Action, serve

from fleetsieve.allocation import allocate
from fleetsieve.events import Told
from fleetsieve.sieve import Sieve
from fleetsieve_kernels.allocation import value


class Engine:
    """A fleet, the journal of its first observations, and the actions on it."""

    def __init__(self, sized: SizedFleet, observations: int, fantasies: int) -> None:
        """The fleet after `observations` cells, uniformly drawn."""
        self.sized = sized
        rows = [sized.grid.rows[i] for i in sized.observed(observations)]
        self.told = [Told(None, row.cell, row.outcome) for row in rows]
        self.absent: list[str] = []
        self._open = partial(Sieve, sized.fleet, grid=sized.grid, fantasies=fantasies)
        self._sieve: Sieve | None = None

    def opened(self, count: int) -> Sieve:
        """The fleet with the first `count` outcomes told, and nothing computed."""
        return self._open(events=self.told[:count])

    @property
    def sieve(self) -> Sieve:
        """The fleet with all outcomes told, the bounds at hand and nothing pending."""
        if self._sieve is None:
            self._sieve = self.opened(len(self.told))
            _none(self._sieve.stop_reason)  # what `ask` reads first
        for proposal in self._sieve.pending:
            self._sieve.abandon(proposal.ticket)
        return self._sieve

    def open(self) -> Callable[[], None]:
        """A journal is read: arrays alone."""
        return lambda: _none(self.opened(len(self.told)))

    def tell(self) -> Callable[[], None]:
        """The last outcome is told, and the bounds follow from a fit to all of them."""
        sieve, last = self.opened(len(self.told) - 1), self.told[-1]

        def tell() -> None:
            sieve.tell(last.cell, last.outcome)
            _none(sieve.search.fresh)

        return tell

    def ask(self) -> Callable[[], None]:
        """The next cell."""
        sieve = self.sieve
        return lambda: _none(sieve.ask())

    def decide(self) -> Callable[[], None]:
        """The decision, with the three cells that it would measure next."""
        sieve = self.sieve
        return lambda: _none(sieve.decision())

    def fit(self) -> Callable[[], None]:
        """Hyperparameters and how much their uncertainty widens every bound."""
        search = self.sieve.search
        return lambda: _none(search.belief.learn(search.observed))

    def assess(self) -> Callable[[], None]:
        """Bounds of all outputs, of capacities and of the value."""
        search = self.sieve.search
        return lambda: _none(search.belief.assess(search.observed, search.hypothesis))

    def gains(self) -> Callable[[], None]:
        """The scores of all cells."""
        search = self.sieve.search
        return lambda: _none(search.belief.gains(search.observed, search.hypothesis))

    def allocate(self) -> Callable[[], float]:
        """The allocation that is reported, with its ties decided."""
        problem = self.sieve.problem
        return lambda: (
            allocate(
                self.sized.kappa,
                demand=problem.demand,
                sizes=problem.sizes.tolist(),
                gpus=problem.gpus,
            ).value
        )

    def values(self) -> Callable[[], float]:
        """The value alone, of many capacities at once; the first are the true ones."""
        problem, sizes = self.sieve.problem, tuple(self.sieve.problem.sizes.tolist())
        scale = 1 + 0.2 * np.random.default_rng(0).random((MANY, *self.sized.kappa.shape))
        kappa = self.sized.kappa * np.concatenate([np.ones_like(scale[:1]), scale[1:]])
        active = np.ones(len(problem.demand), bool)

        def values() -> float:
            with jax.enable_x64(True):
                needs = (active, problem.demand, problem.weight)
                return float(value("max-min", kappa, *needs, sizes, problem.gpus)[0])

        return values

    @property
    def actions(self) -> dict[str, Action]:
        """In an order in which what users call is compiled first."""
        return {
            "open": self.open,
            "tell and refit": self.tell,
            "ask": self.ask,
            "decide": self.decide,
            "of these: fit": self.fit,
            "of these: bounds": self.assess,
            "of these: scores": self.gains,
            ALLOCATION: self.allocate,
            VALUES: self.values,
        }


def _none(_: object) -> None:
    """Drops a result that is no number."""


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--cells", type=int, required=True)
    options.add_argument("--gpus", type=int, required=True)
    options.add_argument("--metrics", type=int, default=1)
    options.add_argument("--observations", type=int, default=60)
    options.add_argument("--fantasies", type=int, default=16)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    sized = sized_fleet(given.cells, given.gpus, given.metrics, given.seed)
    engine = Engine(sized, given.observations, given.fantasies)
    serve(engine.actions, engine.absent)


if __name__ == "__main__":
    main()
