"""A fleet and a grid as arrays, and whether they fit each other."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve.cell import Cell
from fleetsieve.design import Design
from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet
from fleetsieve.fleet_grid import check_against
from fleetsieve.grid import Grid
from fleetsieve.metric import is_metric, order
from fleetsieve.problem import ABSENT, FAILED, MEASURED, Problem

EXAMPLE = Path(__file__).parents[2] / "examples/qwen3-32b-h100"
FLEET = """\
fleet: {gpus: 16}
configs:
  - {name: x, gpus: 1, features: {tp: 1}}
  - {name: y, gpus: 2, features: {tp: 2}}
workloads:
  - {name: a, demand: 2, headroom: 0.5, slo: {e2e_p99: 30, ttft_mean: 1}}
  - {name: b, demand: 1, weight: 3, max_replicas: 2, slo: {e2e_p99: 10}}
  - {name: c, demand: 0, min_replicas: 1, slo: {e2e_p99: 40}}
"""
GRID = """\
workload,config,gpus,rate,concurrency,throughput,e2e_p99,e2e_p99_se,ttft_mean,gpu_seconds,status,saturated
a,x,1,2,,1.5,20,0.5,0.4,10,ok,
a,x,1,1,,0.9,inf,,0.3,10,ok,true
a,y,2,1,,0.9,5,,,20,ok,
a,y,2,4,,,,,,20,oom,
a,y,2,2,,1.9,6,,,20,ok,
b,x,1,,8,3,7,,,10,ok,
b,x,1,,8,5,9,,,15,ok,
c,y,2,1,,0.7,3,,,20,ok,
"""


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "g.csv"
    path.write_text(GRID)
    return Grid.read(path)


def build(grid, old="", new="", text=FLEET):
    assert old in text
    return Problem.build(Fleet.parse(text.replace(old, new) if old else text), grid)


def test_cells_are_ascending_levels_packed_to_the_left(grid):
    problem = build(grid)
    assert (problem.workloads, problem.configs) == (("a", "b", "c"), ("x", "y"))
    assert problem.kind == ("rate", "concurrency", "rate")
    expected = np.zeros((3, 2, 3))
    expected[0, 0, :2] = [1, 2]
    expected[0, 1] = [1, 2, 4]
    expected[1, 0, 0] = 8
    expected[2, 1, 0] = 1
    np.testing.assert_array_equal(problem.load, expected)
    np.testing.assert_array_equal(problem.exists, expected > 0)
    assert problem.n_cells == 7


def test_a_cell_costs_all_its_rows(grid):
    cost = build(grid).gpu_seconds
    assert cost[1, 0, 0] == 25
    np.testing.assert_array_equal(cost[0], [[10, 10, 0], [20, 20, 20]])


def test_demand_limits_and_bounds_are_the_files(grid):
    problem = build(grid)
    assert problem.outputs == ("throughput", "e2e_p99", "ttft_mean")
    np.testing.assert_array_equal(problem.demand, [3, 1, 0])
    np.testing.assert_array_equal(problem.weight, [1, 3, 1])
    np.testing.assert_array_equal(problem.min_replicas, [0, 0, 1])
    np.testing.assert_array_equal(problem.max_replicas, [16, 2, 16])
    np.testing.assert_array_equal(problem.limit, [[30, 1], [10, np.inf], [40, np.inf]])
    np.testing.assert_allclose(problem.reference, [[30, 1], [10, 1], [40, 1]])
    np.testing.assert_array_equal(problem.sizes, [1, 2])
    assert (problem.gpus, problem.gpus_per_node, problem.objective) == (16, 8, "max-min")


def test_a_missing_limit_is_referred_to_the_geometric_mean_of_the_others(grid):
    problem = build(grid, "slo: {e2e_p99: 40}", "slo: {}")
    assert problem.reference[2, 0] == pytest.approx(math.sqrt(30 * 10))
    assert problem.limit[2, 0] == np.inf


def test_truth_has_what_each_cell_says(grid):
    problem = build(grid)
    truth = problem.truth(grid)
    at = problem.index
    first = at(Cell("a", "x", 1.0, "rate"))
    np.testing.assert_array_equal(truth.values[first], [0.9, np.inf, 0.3])
    assert truth.saturated[first]
    second = at(Cell("a", "x", 2.0, "rate"))
    np.testing.assert_array_equal(truth.se[second], [np.nan, 0.5, np.nan])
    repeats = at(Cell("b", "x", 8.0, "concurrency"))
    np.testing.assert_array_equal(truth.values[repeats], [4, 8, np.nan])
    broken = at(Cell("a", "y", 4.0, "rate"))
    assert truth.status[broken] == FAILED
    assert np.isnan(truth.values[broken]).all()
    assert (truth.status == ABSENT).sum() == truth.status.size - problem.n_cells
    assert (truth.status == MEASURED).sum() == 6
    assert truth.saturated.sum() == 1


def test_cells_and_indices_are_inverse(grid):
    problem = build(grid)
    cells = problem.cells()
    assert len(set(cells)) == problem.n_cells
    assert [problem.cell(*problem.index(cell)) for cell in cells] == cells
    with pytest.raises(IndexError):
        problem.cell(1, 1, 0)
    for stranger in (Cell("a", "x", 3.0, "rate"), Cell("a", "x", 1.0, "concurrency")):
        with pytest.raises(KeyError):
            problem.index(stranger)


def test_the_example_has_the_cells_that_pandas_finds():
    fleet = Fleet.load(EXAMPLE / "fleet.yaml")
    grid = Grid.read(EXAMPLE / "grid.csv")
    frame = pd.read_csv(EXAMPLE / "grid.csv")
    frame = frame[frame.workload.isin([w.name for w in fleet.workloads])]
    problem = Problem.build(fleet, grid)
    assert problem.n_cells == len(frame)
    assert problem.gpu_seconds.sum() == frame.gpu_seconds.sum()
    truth = problem.truth(grid)
    assert np.nansum(truth.values[..., 0]) == pytest.approx(frame.throughput.sum())
    e2e = problem.outputs.index("e2e_mean")
    assert np.nansum(truth.values[..., e2e]) == pytest.approx(frame.e2e_mean.sum())
    np.testing.assert_array_equal(problem.features, [[0], [1], [2], [3]])
    assert problem.feature_names == ("tp",)


def test_listed_levels_are_those_that_the_grid_has(grid):
    problem = build(grid, "headroom: 0.5", "loads: [1.0000000000001, 2, 3]")
    np.testing.assert_array_equal(problem.load[0], [[1, 2], [1, 2]])
    problem = build(grid, "headroom: 0.5", "loads: {per_gpu: [1, 2]}")
    np.testing.assert_array_equal(problem.load[0], [[1, 2], [2, 4]])
    problem = build(grid, "headroom: 0.5", "loads: {auto: 2}")
    np.testing.assert_array_equal(problem.load[0], [[1, 2, 0], [1, 2, 4]])


def test_configs_that_fit_nowhere_are_left_out_and_named(grid):
    problem = build(grid, "  - {name: y, ", "  - {name: z, gpus: 16}\n  - {name: y, ")
    assert problem.configs == ("x", "y")
    assert list(problem.unusable) == ["z"]
    nothing = build(None, "{gpus: 16}", "{gpus: 1}", NO_GRID.replace("name: x, gpus: 1", NO_X))
    assert nothing.load.shape == (1, 0, 1)
    assert nothing.features.shape == (0, 0)
    assert set(nothing.unusable) == {"x", "y"}


NO_X = "name: x, gpus: 2"
NO_GRID = """\
fleet: {gpus: 16}
configs:
  - {name: x, gpus: 1, features: {tp: 1}}
  - {name: y, gpus: 2, features: {tp: 2}}
workloads:
  - {name: a, demand: 8, loads: [4, 1]}
measure: {seconds: 100, warmup_seconds: 20}
"""


def test_without_a_grid_the_loads_are_the_cells_at_the_price_of_measuring():
    problem = build(None, text=NO_GRID)
    np.testing.assert_array_equal(problem.load, [[[1, 4], [1, 4]]])
    np.testing.assert_array_equal(problem.gpu_seconds, [[[120, 120], [240, 240]]])
    assert (problem.kind, problem.outputs) == (("rate",), ("throughput",))
    assert problem.limit.shape == (1, 0)


def test_automatic_rates_surround_what_a_replica_must_carry():
    levels = build(None, "[4, 1]", "{auto: 3}", NO_GRID).load[0]
    even = 8 / 16
    np.testing.assert_allclose(levels[0], [even / 4, even, even * 4])
    np.testing.assert_allclose(levels[1], 2 * levels[0])
    text = NO_GRID.replace("[4, 1]", "{auto: 3}, arrivals: {concurrency: true}")
    problem = build(None, text=text)
    np.testing.assert_array_equal(problem.load[0], [[1, 2, 4], [2, 4, 8]])
    assert problem.kind == ("concurrency",)


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("loads: [4, 1]", "weight: 1", ["workload 'a'", "no loads", "give"]),
        ("demand: 8, loads: [4, 1]", "demand: 0, loads: {auto: 3}", ["'a'", "demand 0", "list"]),
        ("{tp: 2}", "{pp: 2}", ["config 'y'", "'tp'", "every config"]),
    ],
)
def test_a_fleet_without_a_grid_must_say_enough(old, new, names):
    with pytest.raises(InputError) as caught:
        build(None, old, new, NO_GRID)
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("name: a", "name: d", ["workload 'd'", "no row", "a, b, c"]),
        ("name: y", "name: z", ["config 'z'", "no row", "x, y"]),
        ("name: x, gpus: 1", "name: x, gpus: 2", ["config 'x'", "gpus 2", "has 1"]),
        ("ttft_mean: 1", "tpot_p99: 1", ["workload 'a'", "tpot_p99", "ttft_mean"]),
        ("slo: {e2e_p99: 10}", "slo: {ttft_mean: 1}", ["workload 'b'", "ttft_mean"]),
        ("headroom: 0.5", "loads: [3, 5]", ["workload 'a'", "no load level", "1, 2, 4"]),
        ("headroom: 0.5", "arrivals: {concurrency: true}", ["'a'", "'concurrency'", "'rate'"]),
    ],
)
def test_a_fleet_that_the_grid_cannot_answer_is_refused(grid, old, new, names):
    fleet = Fleet.parse(FLEET.replace(old, new), source="f.yaml")
    with pytest.raises(InputError) as caught:
        check_against(fleet, grid)
    for name in [*names, "g.csv"]:
        assert name in str(caught.value)


def test_both_kinds_of_load_need_arrivals_to_choose(tmp_path):
    path = tmp_path / "g.csv"
    path.write_text(GRID + "a,x,1,,8,3,7,,1,10,ok,\n")
    grid = Grid.read(path)
    with pytest.raises(InputError, match=r"'a' has rates and concurrencies .* arrivals"):
        build(grid)
    assert build(grid, "headroom: 0.5", "arrivals: poisson").kind[0] == "rate"
    assert build(grid, "headroom: 0.5", "arrivals: {concurrency: true}").kind[0] == "concurrency"


def test_what_the_fleet_does_not_use_is_one_note(grid):
    fleet = Fleet.parse(FLEET)
    assert check_against(fleet, grid) is None
    fewer = Fleet.parse(FLEET[: FLEET.index("  - {name: b")].replace("  - {name: y", "#"))
    note = check_against(fewer, grid)
    assert note is not None
    assert note.count("\n") == 0
    assert "workloads b, c" in note
    assert "configs y" in note


def test_features_of_the_grid_stand_in_for_those_of_the_fleet():
    grid = Grid.read(EXAMPLE / "grid.csv")
    text = (EXAMPLE / "fleet.yaml").read_text()
    for tp in (1, 2, 4, 8):
        text = text.replace(f", features: {{tp: {tp}}}", "")
    problem = Problem.build(Fleet.parse(text, base=EXAMPLE), grid)
    assert problem.feature_names == ("tp",)
    np.testing.assert_array_equal(problem.features.ravel(), [0, 1, 2, 3])


def test_wide_positive_features_count_in_octaves_and_others_are_standardised():
    configs = {
        "x": {"tp": 1, "batch": 64, "share": 0.1, "same": 3, "scheduler": "fcfs"},
        "y": {"tp": 4, "batch": 512, "share": 0.3, "same": 3, "scheduler": "boost"},
        "z": {"tp": 4, "batch": 128, "share": 0.2, "same": 3, "scheduler": "fcfs"},
    }
    design = Design.build(configs, [1, 4, 4])
    assert design.names == ("tp", "batch", "share")
    np.testing.assert_allclose(design.features[:, 0], [0, 2, 2])
    np.testing.assert_allclose(design.features[:, 1], [6, 9, 7])
    assert design.features[:, 2].mean() == pytest.approx(0)
    assert design.features[:, 2].std() == pytest.approx(1)
    assert design.category_names == ("scheduler",)
    np.testing.assert_array_equal(design.categories, [[0], [1], [0]])


def test_configs_without_features_differ_in_size_and_twins_in_name():
    design = Design.build({"x": {}, "y": {}}, [1, 4])
    assert design.names == ("gpus",)
    np.testing.assert_array_equal(design.features, [[0], [2]])
    assert design.category_names == ()
    twins = Design.build({"x": {"tp": 2}, "y": {"tp": 2}}, [2, 2])
    assert (twins.names, twins.category_names) == ((), ("config",))
    np.testing.assert_array_equal(twins.categories, [[0], [1]])
    alone = Design.build({"x": {"tp": 2}}, [2])
    assert (alone.features.shape, alone.categories.shape) == ((1, 0), (1, 0))


def test_metrics_are_ordered_by_family_then_statistic():
    names = ["ttft_p99", "e2e_p99", "itl_mean", "e2e_mean", "tpot_p50", "e2e_p9.5", "tpot_p100"]
    expected = ["e2e_mean", "e2e_p9.5", "e2e_p99", "tpot_p50", "tpot_p100", "itl_mean", "ttft_p99"]
    assert sorted(names, key=order) == expected


@given(st.floats(0, 200).map(lambda p: round(p, 3)))
def test_a_percentile_is_above_0_and_at_most_100(p):
    assert is_metric(f"ttft_p{p:.3f}") == (0 < p <= 100)
