"""The second stop rule: what the recommended allocation loses under joint draws (METHOD 3)."""

import math

import numpy as np
from jaxtyping import Int

from fleetsieve.belief import Belief, Hypothesis
from fleetsieve.observations import Observations

_DRAWS, _SURE, _SEED = 512, 0.99, 0


def rank(draws: int, confidence: float) -> int:
    """Which of the ascending draws is, with probability 0.99, no less than the quantile.

    The r-th is when at most r - 1 of the draws lie below the quantile, a binomial count.
    """
    from scipy.stats import binom

    return int(binom.ppf(_SURE, draws, confidence)) + 1


def fewest(confidence: float) -> int:
    """How many draws it takes: 512, or as many as give the largest of them that rank."""
    return max(_DRAWS, math.ceil(math.log(1 - _SURE) / math.log(confidence)))


def loses_little(
    belief: Belief,
    observed: Observations,
    hypothesis: Hypothesis,
    replicas: Int[np.ndarray, "W C"],
    tolerance: float,
) -> bool:
    """Whether the regret of `replicas` stays within `tolerance` at the confidence of `belief`.

    The draws are split over those of the hyperparameters, and end when too many are above.
    """
    parts = len(hypothesis.draws["amplitude"])
    each = -(-fewest(belief.confidence) // parts)
    left = parts * each - rank(parts * each, belief.confidence)
    rng = np.random.default_rng(_SEED)
    for part in range(parts):
        drawn = belief.regrets(observed, hypothesis, replicas, part, each, rng)
        left -= int((drawn > tolerance).sum())
        if left < 0:
            return False
    return True
