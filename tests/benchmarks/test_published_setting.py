"""The published setting: what its grid means, and what other ways of deciding are worth."""

import numpy as np
import pytest
from other_ways import best_way, capacity_only, joint, sparse, worth
from published_grid import SLO, alone, made, setting
from published_setting import certified, savings

from fleetsieve.fleet import Fleet
from fleetsieve.fleet_grid import check_against
from fleetsieve.grid import Grid
from fleetsieve.oracle import Oracle
from fleetsieve.problem import Problem
from fleetsieve.replay import Replay
from fleetsieve.replay_run import Run
from fleetsieve_measure import Measured

# Prompts of one token and short replies of one length on a machine that is never full.
TINY = {"prompt_tokens": 1, "output_tokens": 50}


def tiny(demand):
    """Two degrees, two workloads, three levels, of which the setting makes its cells."""
    data = setting()
    workloads = [
        w | {"demand": demand, "requests": TINY, "loads": {"auto": 3}}
        for w in data["workloads"][:2]
    ]
    return data | {"configs": data["configs"][:2], "workloads": workloads}


def test_a_quiet_cell_takes_as_long_as_its_tokens_do_alone(tmp_path):
    fleet, grid = made(tiny(0.8), tmp_path, seed=0, workers=1)
    assert check_against(fleet, grid) is None
    # A decode step of 32.76e9 16-bit weights over 75 % of 3.35 TB/s per GPU, and 64 layers of
    # 35 µs; with two GPUs 128 all-reduces of 10 µs more.
    for gpus, hops in ((1, 0.0), (2, 128 * 10e-6)):
        step = 2 * 32.76e9 / gpus / (0.75 * 3.35e12) + 64 * 35e-6 + hops
        rows = [row for row in grid.rows if row.gpus == gpus]
        assert len(rows) == 2 * 3
        for row in rows:
            assert isinstance(row.outcome, Measured)
            assert row.outcome.values["throughput"] == row.cell.load
            assert row.outcome.values["e2e_p99"] == pytest.approx(50 * step, rel=0.03)
            assert row.outcome.gpu_seconds == 300 * gpus


def test_what_was_made_once_is_read_and_what_has_changed_is_made_anew(tmp_path):
    _, first = made(tiny(0.8), tmp_path, seed=0, workers=1)
    _, again = made(tiny(0.8), tmp_path, seed=1, workers=1)
    assert again.rows == first.rows
    _, other = made(tiny(1.6), tmp_path, seed=0, workers=1)
    assert other.rows != first.rows


def test_a_workload_alone_has_as_much_demand_per_gpu_as_an_even_split_gives():
    data = setting()
    one = Fleet.parse(alone(data, "code"))
    demand = {workload["name"]: workload["demand"] for workload in data["workloads"]}
    assert one.hardware.gpus == 8
    assert [w.name for w in one.workloads] == ["code"]
    assert one.workloads[0].demand / 8 == demand["code"] / (16 / 4)


def by_hand(tmp_path):
    """Two configs of one GPU; the fast one sustains a load at which its p99 breaks the SLO."""
    rows = ["workload,config,tp,gpus,rate,throughput,e2e_p99,gpu_seconds,status,saturated"]
    latency = {("slow", 1): 20, ("slow", 2): 25, ("slow", 4): 40, ("slow", 8): 200}
    latency |= {("fast", 1): 28, ("fast", 2): 35, ("fast", 4): 46.4, ("fast", 8): 300}
    for (config, rate), p99 in latency.items():
        done, behind = (rate, "") if rate < 8 else (5 if config == "slow" else 6, "true")
        rows.append(f"chat,{config},1,1,{rate},{done},{p99},300,ok,{behind}")
    (tmp_path / "g.csv").write_text("\n".join(rows))
    fleet = Fleet.parse(
        {
            "fleet": {"gpus": 2},
            "configs": [{"name": name, "gpus": 1} for name in ("fast", "slow")],
            "workloads": [{"name": "chat", "demand": 8.0, "slo": {"e2e_p99": SLO}}],
        }
    )
    grid = Grid.read(tmp_path / "g.csv")
    problem = Problem.build(fleet, grid)
    truth = problem.truth(grid)
    return fleet, grid, problem, truth, Oracle.of(problem, truth)


def test_throughput_alone_picks_what_breaks_the_slo(tmp_path):
    *_, problem, truth, oracle = by_hand(tmp_path)
    best = worth(oracle, truth, best_way(oracle, truth))
    # Two slow replicas at 2 requests/s each.
    assert (best.value, best.served, best.worst, best.broken) == (0.5, 4.0, 25.0, 0)
    blind = capacity_only(problem, truth, problem.exists, sustained=False)
    assert worth(oracle, truth, blind).worst == 300
    # Where they kept up, both reach 4/s, and the config listed first wins.
    kept_up = capacity_only(problem, truth, problem.exists, sustained=True)
    found = worth(oracle, truth, kept_up)
    assert (found.value, found.served, found.worst, found.broken) == (0.25, 2.0, 46.4, 1)


@pytest.mark.parametrize(
    ("levels", "value", "worst"),
    # Level 2 holds on the slow config alone; at level 3 nothing holds; level 1 ties, so that
    # the config listed first is taken.
    [([1], 0.5, 25.0), ([2], 0.0, 0.0), ([0], 0.25, 28.0), ([0, 2], 0.25, 28.0)],
)
def test_a_sparse_profile_knows_what_its_levels_show(tmp_path, levels, value, worst):
    *_, truth, oracle = by_hand(tmp_path)
    found = worth(oracle, truth, sparse(oracle, truth, levels))
    assert (found.value, found.worst) == (value, worst)


def test_the_engine_decides_within_the_slo(tmp_path):
    fleet, grid, problem, truth, oracle = by_hand(tmp_path)
    sieve, told = certified(fleet, grid)
    found = worth(oracle, truth, joint(problem, sieve.decision()))
    assert sieve.stop_reason == "gap"
    assert (found.value, found.worst, found.broken) == (0.5, 25.0, 0)
    assert told.sum() == sieve.measurements


def test_savings_are_those_of_the_costs_and_what_never_happened_costs_the_grid(capsys):
    def run(order, cost, certified=True):
        return Run(order, cost, cost if certified else None, 3, certified, certified, 0.0, 0, [])

    ours, theirs = [run(0, 100.0), run(1, 150.0)], [run(0, 200.0), run(1, 300.0, certified=False)]
    found = Replay(9, 1000.0, 0.02, 0.5, [], {"sieve": ours, "random": theirs})
    figures = savings(found, "together")
    assert figures["together: sieve_vs_random to_oracle, %"] == pytest.approx(50.0)
    certificate = 100 * np.mean([1 - 100 / 200, 1 - 150 / 1000])
    assert figures["together: sieve_vs_random to_certificate, %"] == pytest.approx(certificate)
    assert (
        "random: oracle decision after 250 GPU-seconds, certificate after 600, valid in 1 of 1"
        in (capsys.readouterr().out)
    )
