"""Scores of candidates are the same on one device and shared out over eight."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json
import jax, numpy as np
from fleetsieve import Fleet, Grid
from fleetsieve.belief import Belief
from fleetsieve.observations import Observations
from fleetsieve.problem import Problem
from fleetsieve.runs import Runs
from fleetsieve.search import Search
from fleetsieve_kernels import devices

fleet = Fleet.load("examples/qwen3-32b-h100/fleet.yaml")
grid = Grid.read("examples/qwen3-32b-h100/grid.csv")
problem = Problem.build(fleet, grid)
truth = problem.truth(grid)
cells = np.flatnonzero(problem.exists.ravel())
told = Runs.of_truth(truth, np.random.default_rng(1).permutation(cells)[:12])
belief = Belief(problem, confidence=0.95)
search = Search.start(belief, 0.02).after(told)
seen, gains = [], devices._shared

def watched(*arguments):
    found = gains(*arguments)
    seen.append(len(found.gap.sharding.device_set))
    return found

devices._shared = watched
found = belief.gains(search.observed, search.hypothesis)
outcomes = Observations.of(problem, Runs.of_truth(truth, cells))
true = belief.true_gains(search.observed, outcomes, search.hypothesis)
print(json.dumps([jax.device_count(), seen, np.stack([*found, *true]).tolist()]))
"""


def on(devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    paths = [str(ROOT / name) for name in ("fleetsieve", "kernels", "measure")]
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, check=True
    )
    count, shared, gains = json.loads(done.stdout)
    assert count == devices
    return shared, np.array(gains)


def test_eight_devices_score_as_one_does():
    alone, one = on(1)
    shared, eight = on(8)
    assert not alone
    assert shared
    assert set(shared) == {8}
    np.testing.assert_allclose(eight, one, rtol=1e-9, atol=1e-12)
    assert (np.abs(one).max(axis=1) > 1e-3).all()
