"""Operations and bytes of one ask and one refit, stage by stage, and the floor they put under it.

Counted for the design that screens all candidates and scores the best of them in full. Letters as
in `fleetsieve_kernels`: N cells, P outputs, n rows, K fantasies, S draws of the hyperparameters, W
workloads, C configs, L levels, D numeric features; besides, M candidates scored in full and s
distinct sizes of replicas. A multiplication and an addition are one operation each; a root and an
exponential, as polynomials, ten and twenty.
"""

from dataclasses import dataclass

from ceilings import Ceilings

# Gradient steps of a fit, bisections of the fulfillment, bytes of a number.
_STEPS, _BISECTIONS, _NUMBER = 40, 40, 8


@dataclass(frozen=True)
class Sizes:
    """Of one decision; see the module."""

    cells: int
    outputs: int
    rows: int
    workloads: int
    configs: int
    levels: int
    features: int
    scored: int = 128
    fantasies: int = 16
    draws: int = 32
    replica_sizes: int = 4

    @property
    def pair(self) -> int:
        """Operations of one prior covariance: trend, Matern-5/2, coupling of workloads."""
        return 5 * self.features + 45

    @property
    def outcome(self) -> int:
        """Operations of a cell under a fantasy: drawn means, both bounds, the two prefixes."""
        return 2 * self.outputs**2 + 12 * self.outputs

    @property
    def value(self) -> int:
        """Operations of V^L and V^U: each config once, then the fewest GPUs at every bisection."""
        blocks = 3 * self.workloads * self.replica_sizes
        return 2 * (self.workloads * self.configs + _BISECTIONS * blocks)


@dataclass(frozen=True)
class Stage:
    """What one pass of a stage needs at least, and how many passes there are.

    Attributes:
        call: which of refit, bounds and ask it belongs to.
        products: operations in products of matrices, factors and triangular solves.
        pointwise: other operations.
        bytes: of the arrays that are read or written, each once.
    """

    call: str
    name: str
    products: float
    pointwise: float
    bytes: float
    passes: int = 1

    def floor(self, ceilings: Ceilings) -> float:
        """Seconds; arrays that the cache holds are not moved."""
        computing = self.products / ceilings.products + self.pointwise / ceilings.pointwise
        moving = self.bytes / ceilings.bandwidth if self.bytes > ceilings.cache else 0.0
        return self.passes * max(computing, moving)


def stages(sizes: Sizes) -> list[Stage]:
    """All stages, those of a refit first."""
    return [*_refit(sizes), *_marginals(sizes, "bounds"), *_ask(sizes)]


def floor(sizes: Sizes, ceilings: Ceilings, call: str) -> float:
    """Seconds that a call takes at least."""
    return sum(stage.floor(ceilings) for stage in stages(sizes) if stage.call == call)


def _refit(s: Sizes) -> list[Stage]:
    p, square = s.outputs, s.rows**2
    # Covariances and twice that for their derivatives, a factor, an inverse.
    gradient = (7 / 3 * p * s.rows * square, 3 * p * square * s.pair, 4 * p * square * _NUMBER)
    # The product of the curvature with a vector takes two gradients, for every hyperparameter.
    of_curvature = 2 * (8 + s.features + p)
    return [
        Stage("refit", "gradient", *gradient, _STEPS),
        Stage("refit", "gradient, for the curvature", *gradient, of_curvature),
        *_marginals(s, "refit", s.draws + 1),
    ]


def _marginals(s: Sizes, call: str, passes: int = 1) -> list[Stage]:
    p, n, cells = s.outputs, s.rows, s.cells
    block = p * n * cells
    solve = p * n**3 / 3 + block * n
    per_cell = cells * s.outcome + s.value
    return [
        Stage(call, "kernel rows", 0, block * s.pair, block * _NUMBER, passes),
        Stage(call, "factor and solve", solve, 4 * block, 2 * block * _NUMBER, passes),
        Stage(call, "intervals", 0, per_cell, 4 * cells * p * _NUMBER, passes),
    ]


def _ask(s: Sizes) -> list[Stage]:
    p, n, k, m = s.outputs, s.rows, s.fantasies, s.scored
    block, own, rows = p * n * s.cells, p * s.levels * s.cells, p * m * s.cells
    screened = k * s.cells * (s.levels * s.outcome + 20 * s.replica_sizes)
    held = 2 * m * k * s.workloads * s.configs
    return [
        *_marginals(s, "ask"),
        Stage("ask", "screen", 2 * n * own, own * s.pair + screened, (block + own) * _NUMBER),
        Stage("ask", "covariance rows", 2 * n * rows, rows * s.pair, (block + rows) * _NUMBER),
        Stage("ask", "fantasies", 0, m * k * s.cells * s.outcome, rows * _NUMBER),
        Stage("ask", "allocations", 0, m * k * s.value, held * _NUMBER),
    ]
