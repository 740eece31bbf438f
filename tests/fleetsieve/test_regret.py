"""The second stop rule and the second inference, on a small replayed fleet and in arithmetic."""

# NumPy arrays stand in for JAX ones.
# pyright: reportArgumentType=false

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fleetsieve import hyperposterior
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid
from fleetsieve.regret import fewest, rank
from fleetsieve.replay import replay
from fleetsieve.sieve import Sieve
from fleetsieve_kernels.nuts import Chains

FLEET = {
    "fleet": {"gpus": 8},
    "configs": [{"name": f"tp{g}", "gpus": g, "features": {"tp": g}} for g in (1, 2, 4)],
    "workloads": [
        {"name": "chat", "demand": 6.0, "slo": {"e2e_p99": 8.0}},
        {"name": "code", "demand": 3.0, "slo": {"e2e_p99": 16.0}},
    ],
}


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Four rates on three degrees: latency with a knee at the capacity of a replica."""
    rng = np.random.default_rng(0)
    lines = ["workload,config,gpus,rate,throughput,e2e_p99,gpu_seconds,status"]
    for (name, mu_1, base), gpus in product((("chat", 1.6, 3.0), ("code", 0.8, 8.0)), (1, 2, 4)):
        mu = mu_1 * gpus**0.9 * rng.uniform(0.8, 1.25)
        for rate in (0.4, 0.8, 1.6, 3.2):
            rho = min(rate / mu, 0.98)
            latency = base * gpus**-0.5 * (1 + 0.3 * rho / (1 - rho))
            done = min(rate, mu)
            lines.append(f"{name},tp{gpus},{gpus},{rate},{done},{latency},{100 * gpus},ok")
    path = tmp_path_factory.mktemp("grid") / "g.csv"
    path.write_text("\n".join(lines))
    return Grid.read(path)


def fleet(**decision):
    return Fleet.parse({**FLEET, "decision": decision}, source="fleet.yaml")


def run(grid, **decision):
    """A study of the grid until it is done."""
    sieve = Sieve(fleet(**decision), grid=grid)
    while not sieve.done:
        for proposal in sieve.ask():
            sieve.tell(proposal.ticket, grid.cells[proposal.cell].outcome)
    return sieve


def exact_tail(draws, confidence, below):
    """P(at most `below` of the draws are under the quantile), summed term by term."""
    terms = (
        math.comb(draws, k) * confidence**k * (1 - confidence) ** (draws - k)
        for k in range(below + 1)
    )
    return math.fsum(terms)


@pytest.mark.parametrize("draws", [100, 512, 700])
@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_the_rank_is_the_first_that_bounds_the_quantile_with_probability_99(draws, confidence):
    found = rank(draws, confidence)
    assert exact_tail(draws, confidence, found - 1) >= 0.99
    assert exact_tail(draws, confidence, found - 2) < 0.99


def test_the_rank_of_512_draws_at_95_percent_is_498():
    assert rank(512, 0.95) == 498


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99, 0.999])
def test_there_are_as_many_draws_as_the_rank_needs_and_at_least_512(confidence):
    count = fewest(confidence)
    assert rank(count, confidence) <= count
    assert count == 512 or confidence ** (count - 1) > 0.01


def test_the_regret_rule_stops_no_later_than_the_gap_and_says_which_rule_it_was(grid):
    gap, regret = run(grid, stop="gap"), run(grid, stop="regret")
    assert gap.stop_reason == "gap"
    assert regret.stop_reason in ("gap", "regret")
    assert regret.measurements <= gap.measurements
    decision = regret.decision()
    assert decision.certified
    assert (decision.gap > decision.tolerance) == (regret.stop_reason == "regret")


def test_a_replay_by_the_regret_rule_costs_no_more_and_is_valid(grid):
    runs = {
        stop: replay(fleet(stop=stop), grid, ["sieve"], orders=2, workers=1).runs["sieve"]
        for stop in ("gap", "regret")
    }
    for gap, regret in zip(runs["gap"], runs["regret"], strict=True):
        assert regret.certified
        assert regret.valid
        assert (regret.gpu_seconds_to_certificate or 0) <= (gap.gpu_seconds_to_certificate or 0)


def test_nuts_reaches_a_certificate_and_the_same_data_give_the_same_fit(grid):
    sieve = run(grid, inference="nuts")
    assert sieve.stop_reason == "gap"
    assert sieve.decision().certified
    search = sieve.search
    again = search.belief.learn(search.observed)
    for name, leaf in search.hypothesis.theta.items():
        np.testing.assert_array_equal(leaf, again.theta[name])
    np.testing.assert_array_equal(search.hypothesis.inflation, again.inflation)


def chains_of(rng, apart=0.0, diverged=0):
    """Four chains of a normal, of which one lies apart."""
    draws = rng.standard_normal((4, 64, 2))
    draws[0] += apart
    return Chains({"amplitude": draws}, np.arange(256).reshape(4, 64) < diverged)


def test_chains_that_disagree_or_diverge_are_doubted_and_others_are_not():
    rng = np.random.default_rng(1)
    stuck = Chains({"amplitude": np.zeros((4, 64, 2))}, np.zeros((4, 64), bool))
    doubted = [chains_of(rng, apart=3.0), chains_of(rng, diverged=20), stuck]
    assert hyperposterior.warning_of(chains_of(rng)) is None
    for found, words in zip(doubted, ("R-hat", "20 of 256", "inf"), strict=True):
        assert words in (hyperposterior.warning_of(found) or "")


def test_a_doubt_about_the_chains_is_a_note_of_the_decision(grid):
    sieve = Sieve(fleet(), grid=grid)
    search = sieve.search
    doubted = replace(search.hypothesis, warning="chains have not settled")
    search.fits[()] = doubted
    vars(search).pop("_on_all", None)
    vars(search).pop("_now", None)
    assert sieve.decision().notes == ("chains have not settled",)
