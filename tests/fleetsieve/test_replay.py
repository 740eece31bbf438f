"""Replays against brute force, NumPy and hand-computed costs; and the truth that they rest on."""

import copy
import json
import math
from itertools import product

import numpy as np
import pytest

from fleetsieve.belief import Belief
from fleetsieve.columns import PLANS
from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet
from fleetsieve.grid import Grid
from fleetsieve.oracle import Oracle
from fleetsieve.policies import POLICIES
from fleetsieve.problem import Problem
from fleetsieve.replay import Replay, replay
from fleetsieve.replay_run import Case, Replayer, Run
from fleetsieve.runs import Runs
from fleetsieve.savings import saving
from fleetsieve.search import Search

FLEET = {
    "fleet": {"gpus": 8},
    "configs": [{"name": f"tp{g}", "gpus": g, "features": {"tp": g}} for g in (1, 2, 4)],
    "workloads": [
        {"name": "chat", "demand": 6.0, "slo": {"e2e_p99": 10.0, "ttft_p99": 1.0}},
        {"name": "code", "demand": 3.0, "slo": {"e2e_p99": 20.0, "ttft_p99": 2.0}},
    ],
}
SIZES, LEVELS = (1, 2, 4), (0.4, 0.8, 1.6, 3.2)
SLOS = {w["name"]: w["slo"] for w in FLEET["workloads"]}
HANDMADE = ("bisect", "exhaustive")


def rows_of(seed=0, trouble=0.0):
    """Rows by cell: throughput min(rate, mu), latency with a knee; `trouble`: share of odd rows."""
    rng = np.random.default_rng(seed)
    rows = {}
    for (workload, mu_1, base), gpus in product((("chat", 1.6, 3), ("code", 0.8, 8)), SIZES):
        mu = mu_1 * gpus**0.9 * rng.uniform(0.8, 1.25)
        for rate in LEVELS:
            rho = min(rate / mu, 0.995)
            e2e = base * gpus**-0.5 * (1 + 0.3 * rho / (1 - rho))
            row = {"workload": workload, "config": f"tp{gpus}", "gpus": gpus, "rate": rate}
            row |= {"throughput": min(rate, mu), "e2e_p99": e2e, "ttft_p99": 0.1 * e2e}
            row |= {"gpu_seconds": 100 * gpus, "status": "ok", "saturated": ""}
            rows[workload, f"tp{gpus}", rate] = row
            odd = rng.integers(5) if rng.uniform() < trouble else None
            if odd == 0:
                row |= {"status": "oom", "throughput": ""}
            elif odd == 1:
                row |= {"saturated": "true"}
            elif odd == 2:
                row |= {"e2e_p99": ""}
            elif odd == 3:
                row |= {"ttft_p99": "inf"}
            elif odd == 4 and rate != LEVELS[0]:
                del rows[workload, f"tp{gpus}", rate]
    return rows


@pytest.fixture
def grid_of(tmp_path):
    def write(rows):
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        lines = [",".join(str(row.get(c, "")) for c in columns) for row in rows.values()]
        path = tmp_path / "g.csv"
        path.write_text("\n".join([",".join(columns), *lines]))
        return Grid.read(path)

    return write


def holds(row):
    """Whether a row meets every SLO of its workload; one that was not measured is not met."""
    met = all(row[m] != "" and float(row[m]) <= x for m, x in SLOS[row["workload"]].items())
    return row["status"] == "ok" and row["saturated"] != "true" and met


def prefix(rows, workload, config):
    """The levels from the lowest up to the last before the first that does not hold."""
    found = []
    for load in LEVELS:
        row = rows.get((workload, config, load))
        if row is not None:
            if not holds(row):
                break
            found.append(row)
    return found


def capacities(rows):
    best = {
        (w, g): max((row["throughput"] for row in prefix(rows, w, f"tp{g}")), default=0.0)
        for w, g in product(SLOS, SIZES)
    }
    return np.array([[best[w, g] for g in SIZES] for w in SLOS])


def splits(gpus=8):
    rows = [r for r in product(*(range(gpus // s + 1) for s in SIZES)) if np.dot(r, SIZES) <= gpus]
    pairs = np.array(list(product(rows, rows)))
    return pairs[(pairs @ np.array(SIZES)).sum(axis=1) <= gpus]


SPLITS = splits()


def values(kappa, demand=(6.0, 3.0)):
    """max-min V of every split; 0 where no workload can be served."""
    asked = kappa.max(axis=1) > 0
    if not asked.any():
        return np.zeros(len(SPLITS))
    share = np.minimum((SPLITS * kappa).sum(axis=2) / np.array(demand), 1.0)
    return share[:, asked].min(axis=1)


def oracle_of(rows, grid):
    problem = Problem.build(Fleet.parse(FLEET), grid)
    return Oracle.of(problem, problem.truth(grid))


# The truth


@pytest.mark.parametrize("seed", range(12))
def test_the_oracle_is_the_best_split_of_the_true_capacities(grid_of, seed):
    rows = rows_of(seed, trouble=0.25)
    oracle = oracle_of(rows, grid_of(rows))
    kappa = capacities(rows)
    np.testing.assert_allclose(oracle.kappa, kappa)
    found = values(kappa)
    assert oracle.best.value == pytest.approx(found.max(), abs=1e-9)
    np.testing.assert_array_equal(oracle.active, kappa.max(axis=1) > 0)
    for at in np.random.default_rng(seed).integers(0, len(SPLITS), 20):
        assert oracle.value(SPLITS[at]) == pytest.approx(found[at])
        assert oracle.regret(SPLITS[at]) == pytest.approx(found.max() - found[at], abs=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_a_violation_is_an_allocated_column_with_a_broken_level_up_to_its_own(grid_of, seed):
    rows = {k: r for k, r in rows_of(seed, trouble=0.2).items() if r["status"] == "ok"}
    oracle = oracle_of(rows, grid_of(rows))
    problem = oracle.problem
    rng = np.random.default_rng(seed)
    for n in SPLITS[rng.integers(0, len(SPLITS), 20)]:
        level = rng.integers(0, problem.exists.sum(axis=-1))
        expected = 0
        for w, c in np.argwhere(n > 0):
            load = problem.load[w, c, level[w, c]]
            column = [r for (x, y, q), r in rows.items() if (x, y) == name(w, c) and q <= load]
            expected += not all(holds(row) for row in column)
        assert oracle.violations(n, level) == expected


def name(w, c):
    return list(SLOS)[w], f"tp{SIZES[c]}"


# What is reported


@pytest.fixture(scope="module")
def handmade(tmp_path_factory):
    """A replay without a model, its rows and a function that repeats it."""
    rows = rows_of(3)
    path = tmp_path_factory.mktemp("replay") / "g.csv"
    columns = list(next(iter(rows.values())))
    text = [",".join(str(row[c]) for c in columns) for row in rows.values()]
    path.write_text("\n".join([",".join(columns), *text]))
    grid = Grid.read(path)

    def again(orders=4, workers=1, policies=HANDMADE, **options):
        return replay(Fleet.parse(FLEET), grid, policies, orders, workers=workers, **options)

    return again(), rows, again


def test_the_json_has_the_documented_shape(handmade):
    found, rows, _ = handmade
    data = json.loads(json.dumps(found.to_dict()))
    assert list(data) == [
        "schema", "cells", "grid_gpu_seconds", "tolerance", "oracle", "policies", "savings",
    ]  # fmt: skip
    assert data["schema"] == "fleetsieve.replay/1"
    assert (data["cells"], data["tolerance"], data["savings"]) == (24, 0.02, {})
    assert data["grid_gpu_seconds"] == sum(row["gpu_seconds"] for row in rows.values())
    assert data["oracle"]["value"] == pytest.approx(values(capacities(rows)).max())
    for policy in HANDMADE:
        runs = data["policies"][policy]["runs"]
        assert [run["order"] for run in runs] == [0, 1, 2, 3]
        for run in runs:
            assert list(run) == [
                "order", "gpu_seconds_to_oracle", "gpu_seconds_to_certificate", "measurements",
                "certified", "valid", "regret", "violations", "allocation",
            ]  # fmt: skip
            for row in run["allocation"]:
                assert list(row) == ["workload", "config", "replicas"]


def test_exhaustive_costs_the_whole_grid_and_is_right(handmade):
    found, rows, _ = handmade
    for run in found.runs["exhaustive"]:
        assert run.measurements == len(rows)
        assert run.gpu_seconds_to_certificate == found.grid_gpu_seconds
        assert run.gpu_seconds_to_oracle <= found.grid_gpu_seconds
        assert (run.certified, run.valid, run.violations) == (True, True, 0)
        assert run.regret == pytest.approx(0, abs=1e-9)
        assert run.allocation == found.oracle_allocation


def test_bisection_needs_a_logarithm_of_the_levels_and_is_right_where_they_are_monotone(handmade):
    found, rows, _ = handmade
    kappa = capacities(rows)
    for run in found.runs["bisect"]:
        assert 6 * math.log2(4) <= run.measurements <= 6 * math.ceil(math.log2(5))
        assert (run.certified, run.valid, run.violations) == (True, True, 0)
        n = np.zeros((2, 3), int)
        for row in run.allocation:
            n[list(SLOS).index(row["workload"]), SIZES.index(int(row["config"][2:]))] = row[
                "replicas"
            ]
        every = values(kappa)
        regret = every.max() - every[(n == SPLITS).all(axis=(1, 2))][0]
        assert run.regret == pytest.approx(regret, abs=1e-9)


def test_orders_differ_and_repeat(handmade):
    found, _, again = handmade
    costs = [run.gpu_seconds_to_oracle for run in found.runs["exhaustive"]]
    assert len(set(costs)) > 1
    assert again().to_dict() == found.to_dict()
    assert again(seed=1).runs["exhaustive"] != found.runs["exhaustive"]
    assert again(orders=2).runs["exhaustive"] == found.runs["exhaustive"][:2]


def test_the_number_of_processes_changes_nothing(handmade, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _, _, again = handmade
    progress = []
    shared = again(orders=2, workers=2, on_progress=lambda *step: progress.append(step))
    assert shared.to_dict() == again(orders=2).to_dict()
    assert sorted(progress) == [(policy, done, 2) for policy in HANDMADE for done in (1, 2)]


def test_a_replay_of_nothing_is_refused(handmade):
    _, _, again = handmade
    with pytest.raises(InputError, match=r"'guess' is unknown; there are sieve, random"):
        again(policies=("bisect", "guess"))
    with pytest.raises(InputError, match="orders is 0; give a number of at least 1"):
        again(orders=0)
    with pytest.raises(InputError, match="no policy is given"):
        again(policies=())


def test_a_fleet_without_any_allocation_is_refused(grid_of):
    data = copy.deepcopy(FLEET)
    data["workloads"][0]["min_replicas"] = 9
    with pytest.raises(InputError, match="9 GPUs in all, and the fleet has 8"):
        replay(Fleet.parse(data), grid_of(rows_of()), ["bisect"], 1, workers=1)


# Costs, on columns small enough for pen and paper

ONE = """\
fleet: {gpus: 1}
configs: [{name: a, gpus: 1, features: {tp: 1}}, {name: b, gpus: 1, features: {tp: 2}}]
workloads: [{name: chat, demand: 1, slo: {e2e_p99: 10}}]
"""
HEAD = "workload,config,gpus,rate,throughput,e2e_p99,gpu_seconds\n"


def replay_of(tmp_path, lines, policy, orders=12):
    path = tmp_path / "g.csv"
    path.write_text(HEAD + "\n".join(f"chat,{line}" for line in lines))
    return replay(Fleet.parse(ONE), Grid.read(path), [policy], orders, workers=1)


def test_cost_to_the_oracle_counts_until_the_allocation_is_right(tmp_path):
    """a serves 0.5 and b 0.9: right once b is known to hold and until a is believed better."""
    lines = ["a,1,1,0.5,5,10", "b,1,1,0.9,5,300"]
    found = replay_of(tmp_path, lines, "exhaustive")
    assert found.oracle_value == pytest.approx(0.9)
    assert {run.gpu_seconds_to_oracle for run in found.runs["exhaustive"]} == {300.0, 310.0}
    assert {run.gpu_seconds_to_certificate for run in found.runs["exhaustive"]} == {310.0}


def test_a_level_above_an_unmeasured_one_does_not_count_for_exhaustive(tmp_path):
    """Alone, level 1 gives nothing yet: both orders of its two levels end at 30."""
    lines = ["a,1,1,0.5,5,10", "a,1,2,0.9,5,20", "b,1,1,0.1,50,0"]
    found = replay_of(tmp_path, lines, "exhaustive")
    costs = {run.gpu_seconds_to_oracle for run in found.runs["exhaustive"]}
    assert costs == {10.0, 30.0}, "one replica of a is right as soon as its lowest level is known"


NON_MONOTONE = [
    *("a,1,1,0.5,5,10", "a,1,2,0.6,5,10", "a,1,4,0.7,50,10", "a,1,8,0.7,50,10"),
    *("b,1,1,0.9,50,10", "b,1,2,0.9,5,10", "b,1,4,0.9,5,10", "b,1,8,0.9,5,10"),
]


def test_bisection_is_wrong_where_a_low_level_breaks_and_says_so(tmp_path):
    """b's lowest level breaks, so that b serves nothing; bisection never looks there."""
    found = replay_of(tmp_path, NON_MONOTONE, "bisect")
    assert found.oracle_value == pytest.approx(0.6)
    assert found.oracle_allocation == [{"workload": "chat", "config": "a", "replicas": 1}]
    for run in found.runs["bisect"]:
        assert run.allocation == [{"workload": "chat", "config": "b", "replicas": 1}]
        assert (run.certified, run.valid, run.violations) == (True, False, 1)
        assert run.regret == pytest.approx(0.6)


def test_an_allocation_that_was_right_and_is_given_up_never_reached_the_oracle(tmp_path):
    """Half of the orders see a first and recommend it, rightly, until b deceives them."""
    runs = replay_of(tmp_path, NON_MONOTONE, "bisect").runs["bisect"]
    assert {run.gpu_seconds_to_oracle for run in runs} == {None}
    assert {run.gpu_seconds_to_certificate for run in runs} == {50.0}, "2 cells of a, 3 of b"


def test_a_fleet_that_nothing_serves_costs_no_certificate(tmp_path):
    lines = ["a,1,1,0.5,50,10", "b,1,1,0.9,50,10"]
    (run, *_) = replay_of(tmp_path, lines, "exhaustive").runs["exhaustive"]
    assert (run.regret, run.allocation, run.violations) == (0, [], 0)


# Policies with a model, in the shape that the other tests have compiled


def test_policies_with_a_model_pay_for_what_they_measure_and_certify(grid_of):
    rows = rows_of(3)
    found = replay(Fleet.parse(FLEET), grid_of(rows), list(POLICIES), 2, workers=1)
    for runs in found.runs.values():
        for run in runs:
            assert run.certified
            assert run.valid == (run.regret <= 0.02 + 1e-9)
            paid = run.gpu_seconds_to_certificate
            assert paid is not None
            assert 100 * run.measurements <= paid <= found.grid_gpu_seconds
            if run.valid:
                assert run.gpu_seconds_to_oracle is not None
                assert run.gpu_seconds_to_oracle <= paid
            assert run.violations == 0, "levels are monotone here"
    first, second = found.runs["random"]
    assert first.gpu_seconds_to_certificate != second.gpu_seconds_to_certificate
    again = replay(Fleet.parse(FLEET), grid_of(rows), ["sieve", "random"], 2, workers=1)
    assert all(again.runs[policy] == found.runs[policy] for policy in again.runs)
    assert set(found.savings) == {f"sieve_vs_{p}" for p in POLICIES if p != "sieve"}


@pytest.mark.parametrize("memory", [2**27, 0], ids=["all steps kept", "one step kept"])
def test_steps_that_orders_share_change_no_run(grid_of, monkeypatch, memory):
    problem = Problem.build(Fleet.parse(FLEET), grid := grid_of(rows_of(3)))
    truth = problem.truth(grid)
    case = Case(Belief(problem, confidence=0.95), truth, Oracle.of(problem, truth), 0.02)
    monkeypatch.setattr("fleetsieve.replay_run._MEMORY", memory)
    together = Replayer(case)
    for policy, order in product(("cheapest", "sieve"), range(3)):
        assert together.run(policy, order, 0) == Replayer(case).run(policy, order, 0)


def test_what_is_left_out_while_the_gap_is_open_changes_no_run(grid_of, monkeypatch):
    problem = Problem.build(Fleet.parse(FLEET), grid := grid_of(rows_of(5)))
    truth = problem.truth(grid)
    case = Case(Belief(problem, confidence=0.95), truth, Oracle.of(problem, truth), 0.02)
    left_out, learn = [], Belief.learn

    def counting(belief, observed, best=None):
        left_out.append(observed.n_measured)
        return learn(belief, observed, best)

    monkeypatch.setattr(Belief, "learn", counting)
    short = [Replayer(case).run(policy, 1, 0) for policy in ("random", "cheapest")]
    few = len(left_out)
    monkeypatch.setattr("fleetsieve.replay_run.BLIND", ())
    assert [Replayer(case).run(policy, 1, 0) for policy in ("random", "cheapest")] == short
    assert few < len(left_out) - few


@pytest.mark.parametrize("seed", range(3))
def test_a_gap_that_is_surely_open_is_no_smaller_by_the_true_bounds(grid_of, seed):
    problem = Problem.build(Fleet.parse(FLEET), grid := grid_of(rows_of(seed)))
    truth, rng = problem.truth(grid), np.random.default_rng(seed)
    search = Search.start(Belief(problem, confidence=0.95), 0.02)
    seen = set()
    for index in rng.permutation(np.flatnonzero(problem.exists.ravel())):
        search = search.after(Runs.of_truth(truth, np.array([index])))
        seen.add(search.surely_open)
        assert not (search.surely_open and (search.certified or search.infeasible))
    assert seen == {True, False}


def test_a_demand_of_nothing_stops_every_model_at_once(grid_of):
    data = copy.deepcopy(FLEET)
    for workload in data["workloads"]:
        workload["demand"] = 0
    found = replay(Fleet.parse(data), grid_of(rows_of()), ["sieve", "random"], 1, workers=1)
    for (run,) in found.runs.values():
        assert (run.measurements, run.certified, run.valid, run.allocation) == (0, False, None, [])
        assert run.gpu_seconds_to_certificate is None


# Savings


@pytest.mark.parametrize("seed", range(3))
def test_savings_are_the_means_and_their_bootstrap_interval(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(1, 5, 60), rng.uniform(4, 9, 60)
    found = saving(a, b)
    each = 1 - a / b
    assert found.mean == pytest.approx(each.mean())
    assert found.ratio == pytest.approx(1 - a.sum() / b.sum())
    resampled = [rng.choice(each, each.size).mean() for _ in range(4000)]
    spread = float(np.std(resampled))
    expected = np.percentile(resampled, [2.5, 97.5])
    np.testing.assert_allclose(found.ci95, expected, atol=0.25 * spread)


def test_costs_of_nothing_save_nothing():
    found = saving(np.zeros(3), np.zeros(3))
    assert (found.mean, found.ci95, found.ratio) == (0, (0, 0), 0)


def run_of(order, oracle, certificate):
    return Run(order, oracle, certificate, 1, certificate is not None, None, 0.0, 0, [])


def test_savings_pair_orders_and_what_never_happened_costs_the_whole_grid():
    runs = {
        "sieve": [run_of(0, 10.0, 20.0), run_of(1, 30.0, None), run_of(3, 1.0, 1.0)],
        "random": [run_of(0, 40.0, 80.0), run_of(1, None, None), run_of(2, 5.0, 5.0)],
    }
    found = Replay(4, 200.0, 0.02, 1.0, [], runs).to_dict()["savings"]
    assert list(found) == ["sieve_vs_random"]
    oracle, certificate = (found["sieve_vs_random"][f"to_{k}"] for k in ("oracle", "certificate"))
    assert oracle["mean"] == pytest.approx(((1 - 10 / 40) + (1 - 30 / 200)) / 2)
    assert oracle["ratio"] == pytest.approx(1 - 40 / 240)
    assert certificate["mean"] == pytest.approx(((1 - 20 / 80) + (1 - 200 / 200)) / 2)
    assert certificate["ratio"] == pytest.approx(1 - 220 / 280)


# Plans


@pytest.mark.parametrize("levels", [1, 2, 3, 4, 7, 8])
def test_bisection_finds_the_last_level_that_holds(levels):
    data = copy.deepcopy(FLEET)
    for workload in data["workloads"]:
        workload["loads"] = [float(k) for k in range(1, levels + 1)]
    problem = Problem.build(Fleet.parse(data), None)
    for last in range(levels + 1):
        known, asked = {}, []
        plan = PLANS["bisect"](problem, np.random.default_rng(last))
        index = next(plan)
        try:
            while True:
                asked.append(index)
                known.setdefault(index[:2], []).append(index[2])
                index = plan.send(index[2] < last)
        except StopIteration:
            pass
        assert len(set(asked)) == len(asked)
        for column in known.values():
            assert len(column) <= math.ceil(math.log2(levels + 1))
            assert max((k for k in column if k < last), default=-1) == last - 1
            assert min((k for k in column if k >= last), default=levels) == last
