"""A policy that knows what every cell would tell, but not what it would teach (METHOD 5)."""

import numpy as np

from fleetsieve.observations import Observations
from fleetsieve.policies import Choice, Policy, Situation, by_gains
from fleetsieve.problem import ABSENT, Truth
from fleetsieve.runs import Runs


def clairvoyant(truth: Truth) -> Policy:
    """`sieve` with the outcome of each cell in `truth` in place of fantasies.

    Greedy, one cell ahead and with hyperparameters as they are: no bound on what any policy can do.
    Where runs are noisy it still counts on the truth, as if one run showed it.
    """

    told = Runs.of_truth(truth, np.flatnonzero(truth.status.ravel() != ABSENT))

    def policy(situation: Situation) -> Choice:
        belief = situation.belief
        known = Observations.of(belief.problem, told)
        gap, distance = belief.true_gains(situation.observed, known, situation.hypothesis)
        return by_gains(situation, gap, distance)

    return policy
