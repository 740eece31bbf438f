"""Policies that `sieve` is compared with: against loops that tell outcomes, and textbooks."""

import copy
import re
from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fleetsieve.belief import Belief
from fleetsieve.cell import Cell
from fleetsieve.clairvoyant import clairvoyant
from fleetsieve.cli import main
from fleetsieve.fleet import Fleet
from fleetsieve.observations import Observations
from fleetsieve.oracle import Oracle
from fleetsieve.policies import sieve
from fleetsieve.policy_names import POLICY_NAMES
from fleetsieve.problem import ABSENT, Problem
from fleetsieve.pruned import prune
from fleetsieve.replay_run import Case, Replayer
from fleetsieve.runs import Runs
from fleetsieve.search import Search
from fleetsieve.tuner import bo, expected_improvement, settled
from fleetsieve_measure import Failed, Measured

SIZES, RATES, GPUS = (1, 2, 4), (0.4, 0.8, 1.6, 3.2), 8
SLO = {"chat": {"e2e_p99": 10.0, "ttft_p99": 1.0}, "code": {"e2e_p99": 20.0, "ttft_p99": 2.0}}
FLEET = {
    "fleet": {"gpus": GPUS},
    "configs": [{"name": f"tp{g}", "gpus": g, "features": {"tp": g}} for g in SIZES],
    "workloads": [
        {"name": w, "demand": d, "slo": SLO[w], "loads": list(RATES)}
        for w, d in (("chat", 6.0), ("code", 3.0))
    ],
}
TOLERANCE = 0.02


def outcomes(seed, noise=0.0):
    """A knee in the load; a column that fails, a cell that saturates, an infinite percentile."""
    rng = np.random.default_rng(seed)
    found = {}
    for (w, mu_1, base), gpus in product((("chat", 1.6, 3), ("code", 0.8, 8)), SIZES):
        mu = mu_1 * gpus**0.9 * rng.uniform(0.8, 1.25)
        for rate in RATES:
            rho = min(rate / mu, 0.995)
            e2e = base * gpus**-0.5 * (1 + 0.3 * rho / (1 - rho))
            values = {"throughput": min(rate, mu), "e2e_p99": e2e, "ttft_p99": 0.1 * e2e}
            se = {name: noise * value for name, value in values.items()} if noise else {}
            found[Cell(w, f"tp{gpus}", rate, "rate")] = Measured(
                values=values, se=se, gpu_seconds=100.0 * gpus
            )
    found[Cell("code", "tp1", 0.8, "rate")] = Failed(kind="oom", gpu_seconds=100.0)
    kept_up = found[Cell("chat", "tp2", 1.6, "rate")]
    found[Cell("chat", "tp2", 1.6, "rate")] = Measured(
        values=kept_up.values, gpu_seconds=200.0, saturated=True
    )
    late = found[Cell("code", "tp4", 3.2, "rate")].values | {"ttft_p99": np.inf}
    found[Cell("code", "tp4", 3.2, "rate")] = Measured(values=late, gpu_seconds=400.0)
    return found


def started(seed, noise=0.0):
    """A search without observations, and the truth."""
    problem = Problem.build(Fleet.parse(copy.deepcopy(FLEET)), None)
    belief = Belief(problem, confidence=0.95)
    return Search.start(belief, TOLERANCE), problem.outcomes(outcomes(seed, noise))


def everything(truth):
    return Runs.of_truth(truth, np.flatnonzero(truth.status.ravel() != ABSENT))


def one(truth, index):
    return Runs.of_truth(truth, np.array([int(index)]))


def replayer(seed):
    search, truth = started(seed)
    problem = search.belief.problem
    return Replayer(Case(search.belief, truth, Oracle.of(problem, truth), TOLERANCE))


def test_the_help_names_every_policy(capsys):
    assert main(["replay", "--help"]) == 0
    words = re.findall(r"\w+", capsys.readouterr().out)
    assert set(POLICY_NAMES) <= set(words)


# Clairvoyant


def fewest_gpus(kappa, demand, target):
    """Fewest GPUs that fulfil `target` of one workload, all of them if none do, by enumeration."""
    counts = product(*(range(GPUS // size + 1) for size in SIZES))
    fits = [(int(np.dot(n, SIZES)), min(1.0, np.dot(n, kappa) / demand)) for n in counts]
    return min((gpus for gpus, met in fits if gpus <= GPUS and met >= target), default=GPUS)


def distance(problem, found, target):
    rows = zip(found.kappa_lower, found.kappa_upper, problem.demand, strict=True)
    apart = [
        fewest_gpus(low, demand, target) - fewest_gpus(high, demand, target)
        for low, high, demand in rows
        if high.max() > 0
    ]
    return sum(apart) / GPUS


@pytest.mark.parametrize(("seed", "noise"), [(0, 0.0), (1, 0.0), (0, 0.03)])
def test_every_reduction_is_that_of_telling_the_outcome(seed, noise):
    search, truth = started(seed, noise)
    problem = search.belief.problem
    rng = np.random.default_rng(seed)
    for index in rng.permutation(np.flatnonzero(problem.exists.ravel()))[:7]:
        search = search.after(one(truth, index))
    belief, now = search.belief, search.assessment
    target = 0.98 * now.value_upper
    apart, gap = distance(problem, now, target), now.value_upper - now.value_lower
    known = Observations.of(problem, everything(truth))
    gaps, distances = belief.true_gains(search.observed, known, search.hypothesis)
    assert search.free.sum() > 10
    expected = np.zeros((2, search.free.size))
    for index in np.flatnonzero(search.free):
        then = belief.assess(search.after(one(truth, index)).observed, search.hypothesis)
        expected[0, index] = gap - (then.value_upper - then.value_lower)
        expected[1, index] = apart - distance(problem, then, target)
    np.testing.assert_allclose(np.where(search.free, gaps, 0), expected[0], atol=1e-6)
    np.testing.assert_allclose(np.where(search.free, distances, 0), expected[1], atol=1e-6)
    assert np.ptp(expected[1]) > 0.05, "some cells bring the decision nearer, some do not"
    broken = search.free & known.broken
    assert broken.any(), "some of them fail or cannot keep up"


def test_the_policy_ranks_by_what_a_gpu_second_truly_brings():
    search, truth = started(0)
    problem = search.belief.problem
    for index in (0, 5, 9, 14, 18, 23):
        search = search.after(one(truth, index))
    choice = search.weigh(clairvoyant(truth), search.free)
    known = Observations.of(problem, everything(truth))
    gaps, distances = search.belief.true_gains(search.observed, known, search.hypothesis)
    worth = (gaps + distances) / problem.gpu_seconds.ravel().clip(1e-9)
    assert worth[search.free].max() > 0
    np.testing.assert_allclose(choice.score[search.free], worth[search.free])
    assert not choice.score[~search.free].any()


# Bayesian optimisation


@pytest.mark.parametrize("best", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize(("mean", "sd"), [(-0.2, 0.5), (0.7, 0.05), (0.0, 1.5)])
def test_expected_improvement_is_the_integral_that_defines_it(mean, sd, best):
    def integrand(x):
        return max(np.exp(x) - best, 0.0) * norm.pdf(x, mean, sd)

    kink = [np.log(best)] if best > 0 else None
    expected, _ = quad(integrand, mean - 12 * sd, mean + 12 * sd, points=kink, limit=200)
    found = expected_improvement(np.array([mean]), np.array([sd]), np.array([best]))
    assert found[0] == pytest.approx(expected, abs=1e-7)


def test_near_certainty_expected_improvement_is_the_textbook_one_of_a_normal_value():
    """EI = (μ - y*) Φ(z) + σ φ(z), z = (μ - y*) / σ (Jones et al. 1998), μ and σ in requests/s."""
    mean, sd, best = 2.0, 1e-3, 2.001
    z = (mean - best) / sd
    expected = (mean - best) * norm.cdf(z) + sd * norm.pdf(z)
    found = expected_improvement(np.array([np.log(mean)]), np.array([sd / mean]), np.array([best]))
    assert found[0] == pytest.approx(expected, rel=5e-3)


def test_scores_are_expected_improvement_times_the_probability_of_all_slos():
    """Of the workload with fewest outcomes, in units of its best cell per GPU, per GPU-second."""
    search, truth = started(1)
    problem = search.belief.problem
    cells = [("chat", "tp1", 0.4), ("chat", "tp4", 1.6), ("code", "tp1", 0.4)]
    at = [problem.index(Cell(*name, "rate")) for name in cells]
    for index in at:
        search = search.after(one(truth, np.ravel_multi_index(index, problem.exists.shape)))
    score = search.weigh(bo, search.free).score.reshape(problem.exists.shape)
    found = search.assessment
    mean, sd = (x.reshape(*problem.exists.shape, -1) for x in (found.mean, found.sd))
    best = truth.values[at[2]][0]  # code on tp1 at 0.4 requests/s holds, and is alone
    assert best == pytest.approx(0.4)
    for c, level in np.ndindex(score.shape[1:]):
        assert score[0, c, level] < 0, "chat has two outcomes"
        if (1, c, level) == at[2]:
            continue
        m, s = mean[1, c, level], sd[1, c, level]
        centre = m[0] + np.log(RATES[level] / SIZES[c] / best)
        gain, _ = quad(
            lambda x, centre=centre, s=s: max(np.exp(x) - 1, 0) * norm.pdf(x, centre, s[0]),
            *(centre - 12 * s[0], centre + 12 * s[0]),
            limit=300,
        )
        held = norm.cdf(-m[1] / s[1]) * norm.cdf(-m[2] / s[2])
        paid = score[1, c, level] * problem.gpu_seconds[1, c, level]
        assert paid == pytest.approx(gain * held, abs=1e-5)


def test_workloads_take_turns_until_none_promises_more():
    search, truth = started(0)
    problem = search.belief.problem
    shuffle = np.random.default_rng(0).random(problem.exists.size)
    count, cost = np.zeros(2, int), problem.gpu_seconds.ravel()
    while True:
        choice = search.weigh(bo, search.free)
        pick = search.pick(bo, shuffle)
        if pick is None or settled(choice, cost):
            break
        w = pick.index // (problem.exists.size // 2)
        assert pick.score * cost[pick.index] > 0
        if count.sum() < 6:
            assert count[w] == count.min(), "both are open at first"
        count[w] += 1
        search = search.after(one(truth, pick.index))
    assert count.min() >= 3
    assert count.sum() < problem.n_cells


@pytest.mark.parametrize("seed", [0, 1])
def test_alone_it_decides_by_the_cells_that_held(seed):
    """Never by a bound: allocated columns have a measured level that holds, or there are none."""
    replay = replayer(seed)
    run = replay.run("bo_alone", 0, 0)
    assert run == replay.run("bo_alone", 0, 0)
    assert run.certified
    assert run.valid == (run.regret <= TOLERANCE + 1e-9)
    assert run.gpu_seconds_to_certificate is not None
    assert 0 < run.measurements < started(seed)[0].belief.problem.n_cells


# Pruned


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_left_certifies_and_no_further_cell_can_go(seed):
    start, truth = started(seed)
    problem, belief = start.belief.problem, start.belief

    def at(cell):
        return int(np.ravel_multi_index(problem.index(cell), problem.exists.shape))

    def certified(cells):
        known = {problem.cell(*np.unravel_index(i, problem.exists.shape)) for i in cells}
        told = [(at(cell), outcome) for cell, outcome in outcomes(seed).items() if cell in known]
        observed = Observations.of(problem, Runs.of(problem, told))
        found = belief.assess(observed, belief.learn(observed))
        return found.value_upper - found.value_lower <= TOLERANCE < found.value_upper

    replay = replayer(seed)
    whole, run = replay.run("sieve", 0, 0), replay.run("pruned", 0, 0)
    search = start
    shuffle = np.random.default_rng([0, 0]).random(problem.exists.size)
    while not search.certified:
        search = search.after(one(truth, search.pick(sieve, shuffle).index))
    left = prune(start, search.told).order
    cost = float(problem.gpu_seconds.ravel()[list(left)].sum())
    assert set(left) < set(search.order)
    assert certified(left)
    for index in left:
        assert not certified(set(left) - {index})
    assert (run.measurements, run.gpu_seconds_to_certificate) == (len(left), cost)
    assert whole.gpu_seconds_to_certificate == problem.gpu_seconds.ravel()[list(search.order)].sum()
    assert run.gpu_seconds_to_oracle == (cost if run.valid else None)


def test_cells_that_do_not_certify_stay_as_they_are():
    start, truth = started(0)
    told = Runs.of_truth(truth, np.array([3, 1]))
    assert prune(start, told).order == (3, 1)
