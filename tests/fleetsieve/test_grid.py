"""The grid file: rows, cells and their truth, and one sentence for what is wrong with it."""

import math
import statistics
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve.cell import Cell
from fleetsieve.errors import InputError
from fleetsieve.grid import Grid, Row
from fleetsieve_measure import Failed, Measured

EXAMPLE = Path(__file__).parents[2] / "examples/qwen3-32b-h100/grid.csv"
HEADER = "workload,config,gpus,tp,rate,throughput,e2e_p99,e2e_p99_se,gpu_seconds,status\n"


@pytest.fixture
def read(tmp_path):
    def reader(text):
        path = tmp_path / "g.csv"
        path.write_text(text)
        return Grid.read(path)

    return reader


def test_the_example_reads_as_pandas_reads_it():
    grid, frame = Grid.read(EXAMPLE), pd.read_csv(EXAMPLE)
    assert grid.source == str(EXAMPLE)
    assert len(grid.rows) == len(grid.cells) == len(frame) == 180
    assert grid.gpus == frame.groupby("config")["gpus"].first().to_dict()
    assert grid.workloads == tuple(frame["workload"].unique())
    assert grid.metrics == ("e2e_mean", "tpot_mean", "ttft_mean")
    assert grid.features == {f"tp{n}": {"tp": float(n)} for n in (1, 2, 4, 8)}
    for row in frame.to_dict("records"):
        cell = Cell(row["workload"], row["config"], row["concurrency"], "concurrency")
        data = grid.cells[cell]
        assert isinstance(data.outcome, Measured)
        assert data.outcome.values["e2e_mean"] == row["e2e_mean"]
        assert data.outcome.se == {}
        assert (data.rows, data.gpu_seconds) == (1, row["gpu_seconds"])


def test_a_row_becomes_a_cell_with_values_and_standard_errors(read):
    grid = read(HEADER + "chat,tp2,2,2,0.5,0.49,inf,,600,ok\nchat,tp2,2,2,1,0.9,3,0.2,600,\n")
    first, second = grid.cells
    assert first == Cell("chat", "tp2", 0.5, "rate")
    assert grid.cells[first].outcome == Measured(
        values={"throughput": 0.49, "e2e_p99": math.inf}, gpu_seconds=600.0
    )
    assert grid.cells[second].outcome == Measured(
        values={"throughput": 0.9, "e2e_p99": 3.0}, se={"e2e_p99": 0.2}, gpu_seconds=600.0
    )


def test_an_empty_metric_is_not_measured_and_a_failure_needs_none(read):
    grid = read(HEADER + "a,x,1,,1,0.9,,,5,ok\na,x,1,,2,,,,7,oom\n")
    ok, oom = (data.outcome for data in grid.cells.values())
    assert ok == Measured(values={"throughput": 0.9}, gpu_seconds=5.0)
    assert oom == Failed(kind="oom", gpu_seconds=7.0)
    assert grid.features == {"x": {}}


def test_repeats_are_the_median_of_what_each_metric_has(read):
    rows = [(1.0, "5"), (3.0, ""), (2.0, "7"), (9.0, "inf")]
    text = "".join(f"a,x,1,1,1,{t},{e},,10,ok\n" for t, e in rows)
    (data,) = read(HEADER + text).cells.values()
    assert (data.rows, data.gpu_seconds) == (4, 40.0)
    assert data.outcome.values["throughput"] == statistics.median([1, 3, 2, 9])
    assert data.outcome.values["e2e_p99"] == 7.0


def test_repeats_shrink_the_standard_error(read):
    text = "".join(f"a,x,1,1,1,1,{e},0.3,10,ok\n" for e in (5, 6))
    (data,) = read(HEADER + text).cells.values()
    assert data.outcome.values["e2e_p99"] == 5.5
    assert data.outcome.se["e2e_p99"] == pytest.approx(0.3 / math.sqrt(2))


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["ok", "error"], "ok"),
        (["error", "ok"], "ok"),
        (["error", "error"], "error"),
        (["ok", "oom"], "oom"),
        (["timeout", "ok", "ok"], "timeout"),
        (["error", "unhealthy"], "unhealthy"),
    ],
)
def test_failures_decide_a_cell_and_errors_do_not(read, statuses, expected):
    text = "".join(f"a,x,1,1,1,1,2,,10,{status}\n" for status in statuses)
    (data,) = read(HEADER + text).cells.values()
    found = "ok" if isinstance(data.outcome, Measured) else data.outcome.kind
    assert found == expected
    assert data.gpu_seconds == 10.0 * len(statuses)


def test_one_saturated_repeat_saturates_the_cell(read):
    header = "workload,config,gpus,rate,throughput,gpu_seconds,saturated\n"
    grid = read(header + "a,x,1,1,1,5,\na,x,1,1,1,5,TRUE\na,x,1,2,1,5,false\n")
    assert [data.outcome.saturated for data in grid.cells.values()] == [True, False]


def test_cost_follows_from_seconds_where_it_is_not_given(read):
    header = "workload,config,gpus,concurrency,throughput,seconds,gpu_seconds\n"
    grid = read(header + "a,x,4,8,1,30,\na,x,4,16,1,30,99\n")
    assert [data.gpu_seconds for data in grid.cells.values()] == [120.0, 99.0]


def test_both_load_columns_may_exist_and_blank_lines_may_too(read):
    header = "workload,config,gpus,rate,concurrency,throughput,gpu_seconds\n"
    grid = read(header + "a,x,1,2,,1,5\n\nb,x,1,,8,1,5\n")
    assert list(grid.cells) == [Cell("a", "x", 2.0, "rate"), Cell("b", "x", 8.0, "concurrency")]


def test_features_are_numbers_or_categories_by_column(read):
    header = "workload,config,gpus,tp,scheduler,rate,throughput,gpu_seconds,note\n"
    rows = "a,x,1,1,boost,1,1,5,first\na,x,1,1,boost,2,1,5,second\na,y,2,2,7,1,1,5,first\n"
    grid = read(header + rows)
    assert grid.features == {
        "x": {"tp": 1.0, "scheduler": "boost"},
        "y": {"tp": 2.0, "scheduler": "7"},
    }
    assert grid.varying_columns == ("note",)


GOOD = "a,x,1,1,1,1,2,0.1,10,ok\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["is empty", "header"]),
        (HEADER, ["no rows", "give"]),
        (HEADER.replace("gpus,", "").replace("throughput,", ""), ["lacks", "gpus, throughput"]),
        (HEADER.replace(",", ";"), ["lacks", "commas"]),
        (HEADER.replace("rate,", ""), ["no load column", "rate", "concurrency"]),
        (HEADER.replace(",gpu_seconds", ""), ["no cost column", "gpu_seconds"]),
        (HEADER.replace("tp,", "gpus,"), ["'gpus'", "twice"]),
        (HEADER.replace("e2e_p99,", "e2e_p99_ms,"), ["'e2e_p99_ms'", "seconds"]),
        (HEADER.replace("e2e_p99,", "TTFT_mean,"), ["'TTFT_mean'", "ttft"]),
        (HEADER + GOOD + "a,x,1\n", ["line 3", "3 cells", "10 columns"]),
        (HEADER + GOOD + GOOD.replace("a,", ",", 1), ["line 3", "workload is empty", "name"]),
        (HEADER + "a,x,1,1,,1,2,,10,ok\n", ["line 2", "neither rate nor concurrency"]),
        (HEADER + "a,x,1,1,0,1,2,,10,ok\n", ["line 2", "rate is '0'", "above 0"]),
        (HEADER + "a,x,1,1,-1,1,2,,10,ok\n", ["line 2", "rate is '-1'"]),
        (HEADER + "a,x,1,1,inf,1,2,,10,ok\n", ["line 2", "rate is 'inf'", "finite"]),
        (HEADER + GOOD + "a,x,1,1,1,fast,2,,10,ok\n", ["line 3", "throughput is 'fast'", "number"]),
        (HEADER + "a,x,1,1,1,1_0,2,,10,ok\n", ["line 2", "throughput is '1_0'", "number"]),
        (HEADER + "a,x,1,1,1,nan,2,,10,ok\n", ["line 2", "throughput is 'nan'"]),
        (HEADER + "a,x,1,1,1,-1,2,,10,ok\n", ["line 2", "throughput is '-1'", "at least 0"]),
        (HEADER + "a,x,1,1,1,inf,2,,10,ok\n", ["line 2", "throughput is 'inf'", "finite"]),
        (HEADER + "a,x,1,1,1,,2,,10,ok\n", ["line 2", "throughput is empty", "requests/s"]),
        (HEADER + "a,x,1,1,1,1,nan,,10,ok\n", ["line 2", "e2e_p99 is 'nan'", "inf"]),
        (HEADER + "a,x,1,1,1,1,-2,,10,ok\n", ["line 2", "e2e_p99 is '-2'", "at least 0"]),
        (HEADER + "a,x,1,1,1,1,2,-1,10,ok\n", ["line 2", "e2e_p99_se is '-1'", "at least 0"]),
        (HEADER + "a,x,1,1,1,1,2,inf,10,ok\n", ["line 2", "e2e_p99_se is 'inf'", "finite"]),
        (HEADER + "a,x,1,1,1,1,2,,-3,ok\n", ["line 2", "gpu_seconds is '-3'", "at least 0"]),
        (HEADER + "a,x,1,1,1,1,2,,,ok\n", ["line 2", "gpu_seconds is empty", "seconds"]),
        (HEADER + "a,x,0,1,1,1,2,,10,ok\n", ["line 2", "gpus is '0'", "at least 1"]),
        (HEADER + "a,x,1.5,1,1,1,2,,10,ok\n", ["line 2", "gpus is '1.5'", "whole number"]),
        (HEADER + "a,x,inf,1,1,1,2,,10,ok\n", ["line 2", "gpus is 'inf'", "whole number"]),
        (HEADER + "a,x,,1,1,1,2,,10,ok\n", ["line 2", "gpus is empty", "whole number"]),
        (HEADER + GOOD + "b,x,2,1,1,1,2,,10,ok\n", ["line 3", "gpus is '2'", "'x'", "1 before"]),
        (HEADER + "a,x,1,1,1,1,2,,10,okay\n", ["line 2", "status is 'okay'", "oom"]),
        (HEADER + '"a,x,1,1,1,1,2,,10,ok\n', ["CSV", "give"]),
    ],
)
def test_a_wrong_grid_is_refused_with_its_place_its_value_and_what_would_do(read, text, names):
    with pytest.raises(InputError) as caught:
        read(text)
    for name in ["g.csv", *names]:
        assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_fills_exactly_one_load_column(read):
    header = "workload,config,gpus,rate,concurrency,throughput,gpu_seconds\n"
    with pytest.raises(InputError, match="line 2 has both rate and concurrency; fill exactly one"):
        read(header + "a,x,1,2,8,1,5\n")


def test_a_truth_value_is_true_or_false(read):
    header = "workload,config,gpus,rate,throughput,gpu_seconds,saturated\n"
    with pytest.raises(InputError, match="line 2: saturated is 'maybe'; give true or false"):
        read(header + "a,x,1,2,1,5,maybe\n")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("g.csv", None, "does not exist"),
        ("g.parquet", None, "does not exist"),
        ("g.csv", b"\xff\xfe\x00", "UTF-8"),
        ("g.parquet", b"workload,config\n", "not Parquet"),
        ("g.xlsx", b"", "suffix"),
    ],
)
def test_a_file_that_cannot_be_a_grid_is_refused(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Grid.read(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_parquet_file_of_pandas_is_the_same_grid(tmp_path):
    frame = pd.read_csv(EXAMPLE)
    frame["e2e_mean_se"] = float("nan")
    frame.to_parquet(tmp_path / "g.parquet")
    assert Grid.read(tmp_path / "g.parquet").rows == Grid.read(EXAMPLE).rows


def test_a_wrong_row_of_a_parquet_file_is_named(tmp_path):
    frame = pd.read_csv(EXAMPLE)
    frame.loc[2, "throughput"] = -1.0
    frame.to_parquet(tmp_path / "g.parquet")
    with pytest.raises(InputError, match=r"g.parquet, row 3: throughput is -1.0; give"):
        Grid.read(tmp_path / "g.parquet")


names = st.text("abcxyz,\"' é", min_size=1, max_size=6).map(str.strip).filter(bool)
positive = st.floats(1e-9, 1e9)
amounts = st.just(0.0) | st.floats(1e-12, 1e12)
METRICS = ("e2e_p99", "ttft_mean", "tpot_p99.9")


@st.composite
def outcomes(draw):
    cost = draw(amounts)
    if draw(st.booleans()):
        return Failed(kind=draw(st.sampled_from(["oom", "unhealthy", "error"])), gpu_seconds=cost)
    latency = st.one_of(amounts, st.just(math.inf))
    metrics = draw(st.dictionaries(st.sampled_from(METRICS), latency))
    values = {"throughput": draw(amounts), **metrics}
    return Measured(
        values=values,
        se=draw(st.dictionaries(st.sampled_from(sorted(values)), amounts)),
        gpu_seconds=cost,
        saturated=draw(st.booleans()),
        requests=draw(st.none() | st.integers(0, 10**9)),
    )


@st.composite
def grids(draw):
    gpus = draw(st.dictionaries(names, st.integers(1, 1024), min_size=1, max_size=3))
    features = {
        config: draw(st.fixed_dictionaries({}, optional={"tp": positive, "scheduler": names}))
        for config in gpus
    }

    def row():
        config = draw(st.sampled_from(sorted(gpus)))
        kind = draw(st.sampled_from(["rate", "concurrency"]))
        return Row(
            cell=Cell(draw(names), config, draw(positive), kind),
            gpus=gpus[config],
            outcome=draw(outcomes()),
            seconds=draw(st.none() | amounts),
            failed=draw(st.none() | st.integers(0, 10**9)),
            repeat=draw(st.none() | st.sampled_from(["0", "1", "b"])),
            features=features[config],
        )

    return Grid(tuple(row() for _ in range(draw(st.integers(1, 5)))))


@settings(max_examples=60, deadline=None)
@given(grid=grids(), suffix=st.sampled_from([".csv", ".parquet"]))
def test_a_written_grid_reads_as_itself(tmp_path_factory, grid, suffix):
    path = tmp_path_factory.mktemp("grid") / f"g{suffix}"
    grid.write(path)
    assert Grid.read(path).rows == grid.rows
