"""Where there are many candidates, the full score is kept for those that a rough one picks."""

import numpy as np
import pytest

from fleetsieve import policies
from fleetsieve.belief import Belief
from fleetsieve.policies import sieve
from fleetsieve.problem import Problem
from fleetsieve.random_fleet import random_fleet
from fleetsieve.runs import Runs
from fleetsieve.search import Search


@pytest.fixture(scope="module")
def states():
    """Random fleets of one size with some cells measured."""
    found = []
    for seed in range(0, 80, 10):
        drawn = random_fleet(seed)
        problem = Problem.build(drawn.fleet, drawn.grid)
        rng = np.random.default_rng(seed)
        picked = rng.choice(np.flatnonzero(problem.exists), int(rng.integers(9, 17)), replace=False)
        start = Search.start(Belief(problem, confidence=0.95), 0.02)
        search = start.after(Runs.of_truth(problem.truth(drawn.grid), picked))
        if not search.certified and search.free.sum() > 40:
            found.append(search)
    return found


def test_the_screened_choice_scores_at_least_95_percent_of_the_full_scan(states, monkeypatch):
    shares, fewer = [], []
    for search in states:
        full = search.weigh(sieve, search.free).score
        monkeypatch.setattr(policies, "_MANY", 40)
        screened = search.weigh(sieve, search.free).score
        monkeypatch.undo()
        shares.append(full[np.argmax(screened)] / full.max())
        fewer.append((screened > 0).sum() < (full > 0).sum())
    assert len(shares) >= 5
    assert any(fewer)
    assert np.mean(shares) >= 0.95
