"""Results of other tools as a grid: units, loads, failures, twins, and what is said of the rest."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from fleetsieve.cell import Cell
from fleetsieve.cli import main
from fleetsieve.grid import Grid
from fleetsieve_measure import Failed, Measured

SAMPLES = Path(__file__).parents[3] / "shared/data/samples"
NAMES = ("--set", "workload=chat", "--set", "config=tp4", "--set", "gpus=4")
VLLM = {
    "date": "20261130-150000", "backend": "openai-chat", "model_id": "m", "num_prompts": 200,
    "request_rate": 4.0, "burstiness": 1.0, "max_concurrency": None, "duration": 50.0,
    "completed": 200, "failed": 0, "total_output_tokens": 25600, "request_throughput": 4.0,
    "request_goodput": None, "mean_ttft_ms": 210.0, "median_ttft_ms": 180.0, "std_ttft_ms": 90.0,
    "p99_ttft_ms": 480.0, "mean_tpot_ms": 19.0, "median_tpot_ms": 18.5, "p99_tpot_ms": 25.0,
    "mean_itl_ms": 19.5, "median_itl_ms": 18.0, "p99_itl_ms": 44.0, "mean_e2el_ms": 2600.0,
    "p99.9_e2el_ms": 5000.0,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def imported(folder, capsys):
    """Imports what is given, or `files` written here; rows as a plain CSV reader sees them."""

    def run(*argv, files=None, names=NAMES):
        for name, content in (files or {}).items():
            write(folder / name, content)
        out = folder / "out.csv"
        code = main(["import", *map(str, argv or [folder]), *names, "-o", str(out)])
        printed, said = capsys.readouterr()
        assert (code, printed) == (0, ""), said
        Grid.read(out)
        with out.open(newline="") as file:
            return list(csv.DictReader(file)), said

    return run


@pytest.fixture
def refused(folder, capsys):
    """The one sentence of a command that ends with exit code 2 and writes no grid."""

    def run(*argv, files=None):
        for name, content in (files or {}).items():
            write(folder / name, content)
        assert main(["import", *map(str, argv), "-o", "out.csv"]) == 2
        printed, said = capsys.readouterr()
        assert printed == ""
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert not (folder / "out.csv").exists()
        return said

    return run


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def has(row, **expected):
    """Whether the cells hold these numbers or texts, to within rounding; None: empty."""
    for name, value in expected.items():
        cell = row.get(name)
        if value is None:
            assert cell in ("", None), (name, cell)
        elif isinstance(value, str):
            assert cell == value, (name, cell)
        else:
            assert float(cell) == pytest.approx(value, rel=1e-12), (name, cell)
    return True


def test_a_vllm_result_becomes_a_row_in_seconds(imported):
    ((row,), said) = imported(files={"a.json": VLLM})
    assert has(row, workload="chat", config="tp4", gpus=4, rate=4, throughput=4, status="ok")
    assert has(row, ttft_mean=0.21, ttft_p50=0.18, ttft_p99=0.48, tpot_mean=0.019, tpot_p99=0.025)
    assert has(row, itl_mean=0.0195, itl_p99=0.044, e2e_mean=2.6)
    assert has(row, **{"e2e_p99.9": 5.0, "requests": 200, "failed": 0, "repeat": "0"})
    assert has(row, seconds=50, gpu_seconds=200, saturated=None)
    assert "1 row of 1 cell, 0 repeats among them, from vLLM" in said


def test_a_fork_that_counts_no_failures_and_names_e2e_differently_is_read_too(imported):
    fork = {k: v for k, v in VLLM.items() if k != "failed"} | {"completed": 190}
    fork |= {"request_goodput:": 1.0, "e2els": [0.5], "mean_e2e_latency_ms": 2500.0}
    del fork["mean_e2el_ms"]
    ((row,), _) = imported(files={"a.json": fork})
    assert has(row, failed=10, requests=190, throughput=190 / 50)


def test_a_run_in_which_nothing_completed_is_a_failure_and_no_latency_is_zero(imported):
    zeros = {name: 0.0 for name in VLLM if name.endswith("_ms")}
    nothing = VLLM | zeros | {"completed": 0, "failed": 200, "request_throughput": 0.0}
    ((row,), said) = imported(files={"a.json": nothing})
    assert has(row, status="error", failed=200, throughput=None, ttft_p99=None, e2e_mean=None)
    assert "failed (error): " in said
    (data,) = Grid.read("out.csv").cells.values()
    assert data.outcome == Failed(kind="error", gpu_seconds=200.0)


def test_a_zero_beside_completed_requests_is_left_empty_and_said(imported):
    ((row,), said) = imported(files={"a.json": VLLM | {"mean_ttft_ms": 0.0, "p99_ttft_ms": 0}})
    assert has(row, ttft_mean=None, ttft_p99=None, ttft_p50=0.18)
    assert "no latency is 0: ttft_mean, ttft_p99" in said


@pytest.mark.parametrize(("completed", "saturated"), [(200, None), (181, None), (179, "true")])
def test_a_run_well_below_its_rate_is_saturated(imported, completed, saturated):
    rate = {"num_prompts": completed, "completed": completed}
    ((row,), _) = imported(files={"a.json": VLLM | rate})
    assert has(row, saturated=saturated, throughput=completed / 50)


def test_failed_requests_are_late_for_ever_where_a_percentile_reaches_them(imported):
    some = VLLM | {"completed": 199, "failed": 1, "p95_ttft_ms": 400.0, "p99.9_ttft_ms": 490.0}
    ((row,), said) = imported(files={"a.json": some})
    # By nearest rank p99 is the 198th of 200 and p99.9 the 200th, which failed.
    assert has(row, ttft_p95=0.4, ttft_p99=0.48, ttft_mean=math.inf)
    assert has(row, **{"ttft_p99.9": math.inf})
    assert "some requests failed" in said


def test_one_of_two_hundred_is_no_good_result(imported):
    ((row,), said) = imported(files={"a.json": VLLM | {"completed": 1, "failed": 199}})
    assert has(row, throughput=1 / 50, saturated="true", ttft_p50=math.inf, e2e_mean=math.inf)
    assert "completed / duration" in said


def test_end_to_end_latencies_without_statistics_give_them(imported):
    latencies = np.random.default_rng(5).uniform(1, 9, 200)
    bare = {name: value for name, value in VLLM.items() if "e2el" not in name}
    ((row,), _) = imported(files={"a.json": bare | {"latencies": list(latencies)}})
    assert has(row, e2e_mean=latencies.mean(), e2e_p99=np.percentile(latencies, 99))
    failed = {"completed": 199, "failed": 1, "latencies": [0.0, *latencies[1:]]}
    ((row,), _) = imported(files={"a.json": bare | failed})
    assert has(row, e2e_mean=None, e2e_p99=None)
    ((row,), _) = imported(files={"a.json": bare | failed | {"errors": ["x", *[""] * 199]}})
    assert has(row, e2e_mean=math.inf, e2e_p90=np.percentile(latencies[1:], 90))


@pytest.mark.parametrize(("requests", "told"), [(99, True), (100, False)])
def test_a_p99_of_few_requests_is_told(imported, requests, told):
    counts = {"num_prompts": requests, "completed": requests}
    _, said = imported(files={"a.json": VLLM | counts})
    assert ("p99 of fewer than 100 requests" in said) is told


def test_other_arrivals_than_poisson_are_told(imported):
    _, said = imported(files={"a.json": VLLM | {"burstiness": 0.5}})
    assert "burstiness is 0.5" in said


def test_nan_is_an_empty_cell_and_infinity_an_infinite_percentile(imported):
    text = json.dumps(VLLM | {"p99_ttft_ms": math.nan, "p99_tpot_ms": math.inf})
    assert "NaN" in text
    ((row,), said) = imported(files={"a.json": text})
    assert has(row, ttft_p99=None, tpot_p99=math.inf)
    assert "p99_ttft_ms is NaN: " in said
    assert "without e2e_p99, ttft_p99: " in said


def test_a_missing_p99_is_an_empty_column_and_said(imported):
    ((row,), said) = imported(files={"a.json": {k: v for k, v in VLLM.items() if "p99" not in k}})
    assert row["ttft_p99"] == row["tpot_p99"] == ""
    assert "without tpot_p99, itl_p99, ttft_p99" in said.replace("e2e_p99, ", "")


@pytest.mark.parametrize("rate", ["inf", math.inf, "Infinity", None])
def test_all_at_once_is_a_closed_loop_at_max_concurrency_or_no_level(imported, refused, rate):
    both = {"request_rate": rate, "max_concurrency": 32}
    ((row,), _) = imported(files={"a.json": VLLM | both})
    assert has(row, concurrency=32, rate=None, saturated=None)
    Path("out.csv").unlink()
    files = {"a.json": VLLM | {"request_rate": rate}}
    said = refused("a.json", *NAMES, files=files)
    assert "no level" in said if rate else "no load" in said
    ((row,), _) = imported("a.json", "--set", "concurrency=24")
    assert has(row, concurrency=24)


def test_metadata_that_turned_a_number_into_text_is_read_as_the_number(imported):
    ((row,), _) = imported(files={"a.json": VLLM | {"request_rate": "4", "tp": "2"}})
    assert has(row, rate=4, tp=2)


def test_appended_results_are_repeats_and_a_cut_one_is_named(imported):
    text = json.dumps(VLLM) + json.dumps(VLLM | {"duration": 51.0}) + json.dumps(VLLM)[:99]
    rows, said = imported(files={"a.json": text})
    assert [row["repeat"] for row in rows] == ["0", "1"]
    assert has(rows[1], throughput=200 / 51)
    assert "2 rows of 1 cell, 1 repeat among them" in said
    assert "a.json, end of the file: is cut short" in said


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_obstacle(imported, encoding):
    ((row,), _) = imported(files={"a.json": json.dumps(VLLM).encode(encoding)})
    assert has(row, rate=4)


BROKEN = {
    "empty": (b"", "a.json is empty"),
    "blank": (b" \n", "a.json is empty"),
    "truncated": (json.dumps(VLLM)[:200].encode(), "a.json is cut short"),
    "no JSON": (b"{'completed': 1}", "a.json is no JSON at line 1, column 2"),
    "not UTF-8": (b'{"a": "\xff"}', "a.json is not UTF-8"),
    "no run": (b'{"benchmarks": []}', "a.json has the form of a result and holds no run"),
    "a list of numbers": (b"[1, 2]", "no JSON objects"),
    "deep": (b"[" * 100_000, "a.json is no JSON"),
    "a long number": (b'{"a": ' + b"1" * 10_000 + b"}", "a.json is no JSON"),
    "another tool": (b'{"answer": 42}', "it has the keys answer"),
    "text for a number": (json.dumps(VLLM | {"p99_ttft_ms": "x"}).encode(), "p99_ttft_ms is 'x'"),
    "negative": (json.dumps(VLLM | {"mean_ttft_ms": -1}).encode(), "mean_ttft_ms is -1"),
    "endless": (json.dumps(VLLM | {"duration": math.inf}).encode(), "duration is inf"),
    "too many": (json.dumps(VLLM | {"completed": 201, "failed": None}).encode(), "num_prompts"),
    "huge": (json.dumps(VLLM | {"p99_ttft_ms": 1e200}).encode(), "ttft_p99"),
    "no throughput": (json.dumps(VLLM | {"duration": None, "request_throughput": None}).encode(),
                      "how long it took"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_used_is_refused_by_file_and_field(refused, name):
    content, expected = BROKEN[name]
    said = refused("a.json", *NAMES, files={"a.json": content})
    assert expected in said
    assert "a.json" in said


def test_a_broken_file_among_good_ones_is_skipped_and_named(imported):
    rows, said = imported(files={"r/a.json": VLLM, "r/b.json": b"", "r/c.txt": "x"}, names=NAMES)
    assert len(rows) == 1
    assert "skipped 2:" in said
    assert "b.json: is empty" in said
    assert "c.txt: has the suffix '.txt'" in said


def test_an_old_grid_stays_where_nothing_can_be_imported(folder, capsys):
    (folder / "g.csv").write_text("old")
    (folder / "a.json").write_text("{")
    assert main(["import", "a.json", *NAMES, "-o", "g.csv"]) == 2
    assert (folder / "g.csv").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "g.csv"]


def test_parquet_holds_the_same_rows(imported):
    imported(files={"a.json": VLLM})
    assert main(["import", "a.json", *NAMES, "-o", "g.parquet"]) == 0
    assert Grid.read("g.parquet").rows == Grid.read("out.csv").rows


def sweep(folder, numbers=(0, 1)):
    """A tree as `vllm bench sweep serve` leaves it, with a summary of each cell and of all."""
    everything = []
    for seqs, (rate, duration) in ((s, r) for s in (2, 8) for r in ((4, 50.0), (8, 26.0))):
        name, runs = f"SERVE--seqs{seqs}-BENCH--r{rate}", []
        for number in numbers:
            run = VLLM | {"request_rate": rate, "duration": duration + 0.25 * number}
            run |= {"run_number": number, "_benchmark_name": f"r{rate}", "max_num_seqs": seqs}
            write(folder / name / f"run={number}.json", run)
            runs.append(run)
        write(folder / name / "summary.json", runs)
        everything += runs
    with (folder / "summary.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["", *everything[0]])
        writer.writeheader()
        writer.writerows(everything)


def test_a_sweep_is_walked_and_its_summaries_count_once(folder, imported):
    sweep(folder / "s", numbers=(0, 9, 10))
    rows, said = imported("s", names=("--set", "workload=chat", "--set", "gpus=1"))
    assert {(row["config"], row["max_num_seqs"], row["rate"]) for row in rows} == {
        (f"seqs{s}", str(s), str(r)) for s in (2, 8) for r in (4, 8)
    }
    low = [row for row in rows if (row["config"], row["rate"]) == ("seqs2", "4")]
    assert [(row["repeat"], row["seconds"]) for row in low] == [
        ("0", "50"), ("1", "52.25"), ("2", "52.5")
    ]  # fmt: skip
    assert "12 rows of 4 cells, 8 repeats among them" in said
    assert "skipped 5:" in said
    assert "the same runs are in run=0.json" in said


def test_a_summary_alone_is_a_result(folder, imported):
    sweep(folder / "s")
    rows, _ = imported("s/summary.csv")
    assert len(rows) == 8
    assert has(rows[0], rate=4, max_num_seqs=2, ttft_p99=0.48)
    rows, _ = imported("s/SERVE--seqs2-BENCH--r4/summary.json", names=NAMES[:2] + NAMES[4:])
    assert [row["config"] for row in rows] == ["seqs2", "seqs2"]


def test_what_a_sweep_says_has_failed_is_a_failed_row(imported, folder):
    failure = {
        "run_number": 0, "error_type": "RuntimeError", "error": "CUDA out of memory",
        "serve_overrides": {"tensor_parallel_size": 2}, "bench_overrides": {"request_rate": 16},
    }  # fmt: skip
    server = {k: v for k, v in failure.items() if "bench" not in k and k != "run_number"}
    files = {
        "s/SERVE--a-BENCH--r16/run=0.failure.json": failure,
        "s/SERVE--b-failure.json": server,
        "s/SERVE--a-BENCH--r4/warmup.json": VLLM | {"run_number": -1},
    }
    ((row,), said) = imported("s", files=files, names=NAMES[:2])
    assert has(row, config="a", tp=2, gpus=2, rate=16, status="oom", throughput=None)
    assert "a warm-up is no measurement" in said
    assert "the server did not start, so that there is no load: RuntimeError: CUDA" in said


@pytest.mark.parametrize("source", ["made", "sample"])
def test_an_imported_sweep_drives_a_decision(folder, capsys, source):
    if source == "sample" and not SAMPLES.is_dir():
        pytest.skip(f"{SAMPLES} exists on the founders' machines only; the made one ran")
    tree = SAMPLES / "vllm_bench_sweep" if source == "sample" else folder / "s"
    if source == "made":
        sweep(tree)
    names = ("--set", "workload=chat", "--set", "gpus=1")
    assert main(["import", str(tree), *names, "-o", "g.csv"]) == 0
    configs = [{"name": f"seqs{n}", "gpus": 1, "features": {"max_num_seqs": n}} for n in (2, 8)]
    workload = {"name": "chat", "demand": 100, "slo": {"ttft_p99": 10}}
    fleet = {"fleet": {"gpus": 4}, "configs": configs, "workloads": [workload]}
    write(folder / "f.yaml", fleet)
    assert main(["decide", "f.yaml", "--grid", "g.csv", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    with Path("g.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells = {(row["config"], row["rate"]): [] for row in rows}
    for row in rows:
        cells[row["config"], row["rate"]].append(float(row["throughput"]))
    best = max(np.median(values) for values in cells.values())
    assert found["certified"] is True
    assert found["value"]["conservative"] == pytest.approx(4 * best / 100, rel=1e-6)


TRTLLM = {
    "engine": {"model": "m"},
    "world_info": {"tp_size": 4, "pp_size": 1, "ep_size": 1, "world_size": 4},
    "request_info": {"num_requests": 100, "avg_num_concurrent_requests": 61.2},
    "performance": {
        "total_latency_ms": 10000.0, "avg_request_latency_ms": 6120.0,
        "request_throughput_req_s": 10.0,
        "request_latency_percentiles_ms": {"p50": 6000.0, "p99": 9990.0, "minimum": 400.0,
                                           "maximum": 9990.0, "average": 6120.0},
    },
    "streaming_metrics": {
        "avg_ttft_ms": 300.0, "avg_tpot_ms": 20.0, "token_output_speed_tok_s": 50.0,
        "ttft_percentiles": {"p50": 280.0, "p99": 500.0, "average": 300.0},
        "tpot_percentiles": {"p50": 19.0, "p99": 30.0, "average": 20.0},
        "gen_tps_percentiles": {"p50": 50.0},
    },
}  # fmt: skip


def test_trtllm_bench_needs_its_concurrency_said(imported, refused):
    assert "--set concurrency=N" in refused("a.json", *NAMES, files={"a.json": TRTLLM})
    ((row,), _) = imported("a.json", "--set", "concurrency=64", names=NAMES[:4])
    assert has(row, gpus=4, tp=4, concurrency=64, throughput=10, seconds=10, gpu_seconds=40)
    assert has(row, e2e_mean=6.12, e2e_p50=6, e2e_p99=9.99, ttft_p99=0.5, tpot_p99=0.03)


def test_trtllm_bench_without_streaming_has_neither_ttft_nor_tpot(imported):
    report = {k: v for k, v in TRTLLM.items() if k != "streaming_metrics"}
    ((row,), said) = imported("a.json", "--set", "concurrency=64", files={"a.json": report})
    assert has(row, ttft_mean=None, tpot_mean=None, e2e_p99=9.99)
    assert "without any tpot, any ttft" in said


def distribution(scale, count=40, **other):
    percentiles = {"p001": 1, "p01": 2, "p05": 3, "p10": 4, "p25": 5, "p50": 6, "p75": 7,
                   "p90": 8, "p95": 9, "p99": 10, "p999": 11}  # fmt: skip
    values = {name: value * scale for name, value in percentiles.items()}
    return {"successful": {"mean": 6.5 * scale, "median": 6 * scale, "count": count,
                           "percentiles": values, **other}}  # fmt: skip


def guidellm(strategy, where="config", **more):
    nothing = {"successful": {"mean": 0.0, "median": 0.0, "count": 0, "percentiles": {"p99": 0.0}}}
    metrics = {
        "request_totals": {"successful": 40, "errored": 0, "incomplete": 2, "total": 42},
        "requests_per_second": {"successful": {"mean": 4.4, "count": 40}},
        "request_latency": distribution(0.1), "time_to_first_token_ms": distribution(10),
        "time_per_output_token_ms": distribution(77), "inter_token_latency_ms": distribution(2),
    }  # fmt: skip
    benchmark = {where: {"strategy": strategy}, "metrics": metrics | more, "duration": 9.0}
    return {"metadata": {"version": 2}, "benchmarks": [benchmark]}, nothing


def test_guidellm_tpot_is_its_inter_token_latency_which_leaves_the_first_token_out(imported):
    report, nothing = guidellm({"type_": "poisson", "rate": 4.0, "max_concurrency": 10240})
    ((row,), said) = imported(files={"b.json": report})
    assert has(row, rate=4, throughput=4.4, seconds=9, requests=40, failed=0, itl_mean=None)
    assert has(row, tpot_mean=0.013, tpot_p99=0.02, ttft_p99=0.1, e2e_p99=1.0, e2e_p50=0.6)
    assert has(row, **{"e2e_p99.9": 1.1, "e2e_p1": 0.2, "ttft_p0.1": 0.01})
    assert "still open at the end" in said
    report, nothing = guidellm({"type_": "constant", "rate": 4.0}, time_to_first_token_ms=nothing)
    ((row,), _) = imported(files={"b.json": report})
    assert has(row, ttft_mean=None, ttft_p99=None)


@pytest.mark.parametrize("where", ["config", "args", "scheduler"])
@pytest.mark.parametrize(
    ("strategy", "level"),
    [({"type_": "concurrent", "streams": 16}, 16), ({"type_": "synchronous"}, 1)],
)
def test_guidellm_of_any_version_in_a_closed_loop(imported, where, strategy, level):
    report, _ = guidellm(strategy, where)
    ((row,), _) = imported(files={"b.yaml": yaml.safe_dump(report)})
    assert has(row, concurrency=level, rate=None)


def test_guidellm_that_names_its_strategy_only(imported):
    report, _ = guidellm("synchronous", "scheduler")
    ((row,), _) = imported(files={"b.json": report})
    assert has(row, concurrency=1)


def test_a_throughput_probe_is_no_level(refused):
    report, _ = guidellm({"type_": "throughput", "max_concurrency": 512})
    assert "strategy is 'throughput'" in refused("b.json", *NAMES, files={"b.json": report})


def metric(scale, unit="ms", **more):
    names = ("avg", "p1", "p50", "p90", "p99", "min", "max", "std", "count")
    values = dict(zip(names, (5.5, 1, 5, 8, 10, 1, 11, 2, 40), strict=True))
    return {"unit": unit} | {n: v * scale for n, v in values.items()} | more


def aiperf(**input_config):
    return {
        "schema_version": "1.4", "request_throughput": {"unit": "requests/sec", "avg": 4.9},
        "request_count": {"unit": "requests", "avg": 40.0},
        "request_latency": metric(100), "time_to_first_token": metric(10),
        "inter_token_latency": metric(2), "inter_chunk_latency": metric(3000, "us"),
        "benchmark_duration": {"unit": "sec", "avg": 8.0}, "input_config": input_config,
    }  # fmt: skip


LEVELS = {
    "phase": ({"phases": [{"kind": "warmup", "concurrency": 1}, {"rate": 5.0}]}, {"rate": 5}),
    "closed phase": ({"phases": [{"kind": "profiling", "concurrency": 8}]}, {"concurrency": 8}),
    "loadgen": ({"loadgen": {"request_rate": 5.0}}, {"rate": 5}),
    "genai-perf": ({"perf_analyzer": {"stimulus": {"concurrency": 8}}}, {"concurrency": 8}),
    "a list of one": ({"concurrency": [8]}, {"concurrency": 8}),
    "command": ({"cli_command": "aiperf profile --request-rate 5 --isl 3"}, {"rate": 5}),
}  # fmt: skip


@pytest.mark.parametrize("name", LEVELS)
def test_aiperf_states_its_level_in_one_of_several_places(imported, name):
    config, level = LEVELS[name]
    ((row,), _) = imported(files={"p.json": aiperf(**config)})
    assert has(row, **level, throughput=4.9, seconds=8, requests=40)
    assert has(row, e2e_mean=0.55, e2e_p99=1, ttft_p99=0.1, tpot_mean=0.011, itl_p99=0.03)


def test_an_aiperf_folder_counts_once_whatever_it_exports(imported):
    table = (
        "Metric,avg,min,max,sum,p1,p5,p50,p90,p95,p99,std\n"
        "Request Latency (ms),550,1,2,3,4,5,500,800,900,1000,7\n"
        'Time to First Token (ms),55,1,2,3,4,5,50,80,90,"1,000",7\n\n'
        "Metric,Value\nRequest Count,40.00\nRequest Throughput (requests/sec),4.90\n"
        "Benchmark Duration (sec),8.00\nError Request Count,2.00\n\n\n"
        "Endpoint,GPU_Index,Metric,avg\nx,0,Request Latency (ms),1\n"
    )
    phases = {"phases": [{"kind": "profiling", "rate": 5.0}]}
    files = {
        "a/profile_export_aiperf.json": aiperf(**phases), "a/profile_export_aiperf.csv": table,
        "a/profile_export.jsonl": "\n".join(json.dumps(record(i, 9)) for i in range(5)),
    }  # fmt: skip
    rows, said = imported("a", files=files)
    assert len(rows) == 1
    assert "the same runs are in profile_export_aiperf.json" in said
    ((row,), _) = imported("a/profile_export_aiperf.csv", "--set", "rate=5")
    assert has(row, throughput=4.9, seconds=8, requests=40, failed=2, e2e_p50=0.5, ttft_p95=0.09)
    assert has(row, ttft_p99=math.inf, rate=5)


def test_a_rate_that_rounds_to_nothing_is_taken_from_the_count(imported):
    table = (
        "Metric,avg,p99\nRequest Latency (ms),900000,990000\n\n"
        "Metric,Value\nRequest Count,3\nRequest Throughput (requests/sec),0.00\n"
        "Benchmark Duration (sec),1000\n"
    )
    names = (*NAMES, "--set", "concurrency=1")
    ((row,), _) = imported(files={"p.csv": table}, names=names)
    assert has(row, throughput=0.003, e2e_p99=990, status="ok")


def test_genai_perf_csv_is_read_by_its_header(imported):
    table = (
        "Metric,avg,min,max,p99,p95,p90,p75,p50,p25,p10,p5,p1\n"
        "Request Latency (ms),550,1,2,1000,900,800,700,500,4,3,2,1\n\n"
        "Metric,Value\nRequest Count (count),40.00\nRequest Throughput (per sec),5.00\n"
    )
    ((row,), _) = imported(files={"p_genai_perf.csv": table}, names=(*NAMES, "--set", "rate=5"))
    assert has(row, e2e_p99=1, e2e_p50=0.5, throughput=5, seconds=8, gpu_seconds=32)


def record(index, latency, error=None, phase="profiling"):
    start = 10**18 + index * 10**8
    metadata = {"request_start_ns": start, "request_end_ns": start + latency * 10**6,
                "benchmark_phase": phase, "was_cancelled": False}  # fmt: skip
    values = {"request_latency": latency, "inter_chunk_latency": [1.0, 2.0]}
    metrics = {name: {"value": value, "unit": "ms"} for name, value in values.items()}
    return {"metadata": metadata, "metrics": {} if error else metrics, "error": error}


def test_aiperf_records_give_the_percentiles_that_numpy_gives(imported):
    latencies = np.random.default_rng(3).integers(50, 500, 101)
    lines = [json.dumps(record(i, int(value))) for i, value in enumerate(latencies)]
    lines.append(json.dumps(record(0, 10_000, phase="warmup")))
    ((row,), said) = imported(
        files={"p.jsonl": "\n".join(lines)}, names=(*NAMES, "--set", "rate=9")
    )
    for percent in (50, 90, 95, 99):
        assert has(row, **{f"e2e_p{percent}": np.percentile(latencies, percent) / 1000})
    assert has(row, e2e_mean=latencies.mean() / 1000, itl_p50=0.0015, requests=101, failed=0)
    assert "1 records of warm-up" in said


def test_aiperf_records_of_failed_requests_count_as_late_for_ever(imported):
    lines = [json.dumps(record(i, 100, {"code": 500} if i < 3 else None)) for i in range(20)]
    ((row,), _) = imported(files={"p.jsonl": "\n".join(lines)}, names=(*NAMES, "--set", "rate=9"))
    assert has(row, requests=17, failed=3, e2e_p50=0.1, e2e_p90=math.inf, e2e_mean=math.inf)
    lines = [json.dumps(record(i, 100, {"code": 500})) for i in range(20)]
    ((row,), _) = imported(files={"p.jsonl": "\n".join(lines)}, names=(*NAMES, "--set", "rate=9"))
    assert has(row, status="error", failed=20, e2e_mean=None, seconds=2.0)


def stage(**load):
    values = {"mean": 0.5, "median": 0.4, "p99": 1.0, "min": 0.1, "max": 2.0}
    latency = dict.fromkeys(("request_latency", "time_to_first_token"), values)
    latency |= {"time_per_output_token": {"mean": 0.02, "p99": 0.04}, "inter_token_latency": None}
    latency |= {"normalized_time_per_output_token": {"mean": 0.5}}
    return {
        "benchmark_time_seconds": 60.0, "load_summary": {"count": 240, **load},
        "successes": {"count": 238, "latency": latency, "throughput": {"requests_per_sec": 3.97}},
        "failures": {"count": 2, "request_latency": None},
    }  # fmt: skip


def test_inference_perf_stages_are_cells_and_their_summary_is_not(imported):
    files = {
        "r/stage_0_lifecycle_metrics.json": stage(requested_rate=4.0, achieved_rate=3.9),
        "r/stage_1_lifecycle_metrics.json": stage(requested_rate=4.4, achieved_rate=3.0),
        "r/stage_2_lifecycle_metrics.json": stage(concurrency=16),
        "r/summary_lifecycle_metrics.json": stage(),
    }
    (first, second, third), said = imported("r", files=files)
    assert has(first, rate=4, throughput=3.97, requests=238, failed=2, saturated=None)
    assert has(first, ttft_p50=0.4, ttft_p99=1.0, tpot_mean=math.inf, itl_mean=None)
    assert has(second, rate=4.4, saturated="true")  # its client sent only 3.0
    assert has(third, concurrency=16)
    assert "summary_lifecycle_metrics.json: the same runs are in stage_0" in said


def test_a_summary_of_all_stages_alone_has_no_level(refused):
    assert "import the stages" in refused("s.json", *NAMES, files={"s.json": stage()})


def report_02(tool="inference-perf", replicas=1):
    engine = {"kind": "inference_engine", "replicas": replicas,
              "accelerator": {"count": 8, "parallelism": {"tp": 8}}}  # fmt: skip
    latency = {
        "time_to_first_token": {"units": "s", "mean": 0.2, "p99p9": 0.9, "p50": 0.1},
        "time_per_output_token": {"units": "ms/token", "mean": 40.0},
        "inter_token_latency": {"units": "s/token", "mean": 0.02},
        "request_latency": {"units": "ms", "mean": 3000.0},
    }
    aggregate = {"requests": {"total": 500, "failures": 0}, "latency": latency,
                 "throughput": {"request_rate": {"units": "queries/s", "mean": 9.8}}}  # fmt: skip
    load = {"standardized": {"tool": tool, "rate_qps": 10, "concurrency": math.inf, "stage": 3}}
    return {
        "version": "0.2.1", "run": {"time": {"duration": "PT1M30.5S"}},
        "scenario": {"stack": [{"standardized": engine}], "load": load},
        "results": {"request_performance": {"aggregate": aggregate}},
    }  # fmt: skip


@pytest.mark.parametrize(("tool", "tpot"), [("inference-perf", 0.04), ("guidellm", 0.02)])
def test_a_benchmark_report_keeps_the_units_and_the_sense_of_its_tool(imported, tool, tpot):
    files = {"b.yaml": yaml.safe_dump(report_02(tool))}
    ((row,), _) = imported("b.yaml", files=files, names=NAMES[:4])
    assert has(row, gpus=8, tp=8, rate=10, throughput=9.8, seconds=90.5, gpu_seconds=724)
    assert has(row, ttft_mean=0.2, ttft_p50=0.1, tpot_mean=tpot, e2e_mean=3.0)
    assert has(row, **{"ttft_p99.9": 0.9, "itl_mean": None if tool == "guidellm" else 0.02})


def test_a_report_beside_the_files_that_it_was_made_of_counts_once(imported):
    stages = {f"r/stage_{n}.json": stage(requested_rate=4.0 + n) for n in (0, 1)}
    stages["r/stage_1.json"]["successes"]["throughput"]["requests_per_sec"] = 4.9
    values = {"units": "ms", "mean": 500.0, "p50": 400.0, "p99": 1000.0}
    report = report_02()
    aggregate = report["results"]["request_performance"]["aggregate"]
    aggregate["throughput"]["request_rate"]["mean"] = 4.9
    aggregate["latency"] = {"request_latency": values, "time_to_first_token": values}
    aggregate["latency"]["time_per_output_token"] = {"units": "s/token", "mean": 0.02}
    rows, said = imported("r", files=stages | {"r/report.yaml": yaml.safe_dump(report)})
    assert len(rows) == 2
    assert "report.yaml: the same runs are in stage_1.json" in said
    rows, _ = imported("r/report.yaml", "r/stage_0.json")
    assert len(rows) == 2


def test_a_report_of_several_engines_needs_to_be_told_its_gpus(imported, refused):
    files = {"b.yaml": yaml.safe_dump(report_02(replicas=2))}
    assert "does not say gpus" in refused("b.yaml", *NAMES[:4], files=files)
    ((row,), said) = imported("b.yaml", "--set", "gpus=16", names=NAMES[:4])
    assert has(row, gpus=16)
    assert "2 engines served together" in said


def test_a_benchmark_report_of_version_01(imported):
    metrics = {
        "time": {"duration": 50.0}, "requests": {"total": 200, "failures": 50},
        "latency": {"time_to_first_token": {"units": "ms", "mean": 210.0, "p99": 480.0}},
        "throughput": {"requests_per_sec": 3.0},
    }  # fmt: skip
    host = {"accelerator": [{"count": 2, "parallelism": {"tp": 2}}]}
    load = {"name": "inference-perf", "metadata": {"stage": 1},
            "args": {"load": {"stages": [{"rate": 2.0}, {"rate": 3.0}]}}}  # fmt: skip
    report = {"version": "0.1", "scenario": {"host": host, "load": load}, "metrics": metrics}
    ((row,), _) = imported("b.json", files={"b.json": report}, names=NAMES[:4])
    assert has(row, gpus=2, tp=2, rate=3, throughput=3, requests=150, failed=50, seconds=50)
    assert has(row, ttft_p99=math.inf)


def profile(rate, tput, **latency):
    base = {"input_tokens": 128, "output_tokens": 64, "request_rate": rate, "seed": 0,
            "model": "m", "samples": 100}  # fmt: skip
    rows = [base | {"metric": "TPUT", "mean": tput}, base | {"metric": "TT", "mean": 64 * tput}]
    for name, (mean, p99) in latency.items():
        rows.append(base | {"metric": name, "mean": mean, "P50": mean, "P90": p99, "P99": p99})
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_an_aibrix_profile_is_a_run_per_rate_and_its_tpot_is_of_gaps(imported):
    latency = {"E2E": (3.0, 5.0), "TTFT": (0.2, 0.6), "TPOT": (0.03, 0.09)}
    text = profile(2.0, 1.9, **latency) + profile(4.0, 2.1, **latency) + profile(4.0, 2.2)
    (first, second, third), _ = imported(files={"p.jsonl": text}, names=NAMES[2:])
    assert has(first, workload="128x64", rate=2, throughput=1.9, requests=100, seconds=100 / 1.9)
    assert has(first, e2e_p99=5, ttft_p50=0.2, itl_p99=0.09, tpot_mean=0.03, tpot_p99=None)
    assert has(first, saturated=None)
    assert has(second, rate=4, saturated="true", repeat="0")
    assert has(third, rate=4, throughput=2.2, repeat="1", e2e_mean=None)


RAW = (
    "model,system,backend,workload,isl,osl,tp,concurrency,ttft_ms,tpot_ms,request_latency_ms,"
    "seq_per_s_per_replica,memory_ok,status\n"
)


def test_aiconfigurator_rows_are_free_and_configs_stay_apart(imported):
    text = RAW + (
        "org/A,h100,vllm,chat,1200,250,2,8,170,24,6200,1.2,1,ok\n"
        "org/A-FP8,h100,vllm,chat,1200,250,2,8,120,14,4200,1.9,1,ok\n"
        "org/A,h100,vllm,chat,1200,250,2,64,900,60,9000,3,0,kv_overflow\n"
    )
    (bf16, fp8, full), _ = imported(files={"p.csv": text}, names=())
    assert has(bf16, workload="chat", config="A-tp2", gpus=2, tp=2, concurrency=8, gpu_seconds=0)
    assert has(bf16, throughput=1.2, ttft_mean=0.17, tpot_mean=0.024, e2e_mean=6.2, ttft_p99=None)
    assert has(fp8, config="A-FP8-tp2", repeat="0")
    assert has(full, status="oom", throughput=None)


def test_aiconfigurator_in_its_own_columns(imported):
    text = (
        "model,isl,osl,concurrency,request_rate,ttft,tpot,request_latency,seq/s,seq/s/gpu,"
        "num_total_gpus,tp,pp,dp,backend,system\n"
        "m,4000,500,16,2.1,300,20,10280,1.6,0.4,4,2,2,1,trtllm,h200\n"
    )
    ((row,), _) = imported(files={"pareto.csv": text}, names=())
    assert has(row, workload="4000x500", config="tp2-pp2", gpus=4, concurrency=16, throughput=1.6)
    assert has(row, ttft_mean=0.3, tpot_mean=0.02, e2e_mean=10.28)


def test_a_dynamo_replay_is_read_once_its_load_is_said(imported):
    summary = {"num_requests": 200, "completed_requests": 200, "duration_ms": 50_000.0,
               "request_throughput_rps": 4.0, "mean_ttft_ms": 20.0, "p99_ttft_ms": 40.0,
               "mean_e2e_latency_ms": 400.0, "p99_tpot_ms": 7.0}  # fmt: skip
    files = {"d.json": {"summary": summary, "per_request": []}}
    ((row,), _) = imported(files=files, names=(*NAMES, "--set", "rate=4"))
    assert has(row, rate=4, throughput=4, e2e_mean=0.4, ttft_p99=0.04, tpot_p99=0.007)


def test_what_the_files_do_not_say_is_asked_for_at_once(refused):
    said = refused("a.json", files={"a.json": VLLM})
    assert "a.json does not say workload, config, gpus" in said
    assert "--set workload=NAME --set config=NAME --set gpus=N" in said


def test_gpus_follow_from_the_degrees_of_parallelism(imported):
    sets = ("--set", "workload=a", "--set", "config=b", "--set", "tp=4", "--set", "pp=2")
    ((row,), _) = imported(files={"a.json": VLLM}, names=sets)
    assert has(row, gpus=8, tp=4, pp=2, gpu_seconds=400)


def test_paths_say_what_files_do_not_and_set_wins(imported):
    files = {f"x/{w}/big-tp{tp}/run.json": VLLM for w in ("chat", "code") for tp in (1, 2)}
    pattern = ("--path", "{workload}/{config}-tp{tp}/*.json")
    rows, _ = imported("x", files=files, names=(*pattern, "--set", "config=c", "--set", "gpus=2"))
    assert {(r["workload"], r["config"], r["tp"]) for r in rows} == {
        (w, "c", t) for w in ("chat", "code") for t in "12"
    }
    rows, said = imported("x", names=("--path", "chat/**/{config}/*.json", *NAMES[:2], *NAMES[4:]))
    assert {row["config"] for row in rows} == {"big-tp1", "big-tp2"}
    assert "does not fit --path" in said
    assert "skipped 2:" in said


def test_a_name_that_comes_twice_in_a_pattern_is_one(imported):
    files = {f"x/{folder}/tp{tp}.json": VLLM for folder, tp in (("tp1", 1), ("tp1", 2))}
    names = ("--path", "./tp{tp}/tp{tp}.json", *NAMES[:4])
    ((row,), said) = imported("x", files=files, names=names)
    assert has(row, tp=1, gpus=1)
    assert "tp2.json does not fit" in said or "tp2.json: " in said


def test_what_is_said_replaces_what_the_file_says_and_that_is_told(imported):
    ((row,), said) = imported(files={"a.json": TRTLLM}, names=(*NAMES[:4], "--set", "rate=9",
                                                              "--set", "gpus=8"))  # fmt: skip
    assert has(row, gpus=8, rate=9, concurrency=None)
    assert "gpus is 4 in the file, 8 by --set or --path" in said
    sets = ("--set", "saturated=true", "--set", "note=a=b")
    ((row,), _) = imported(files={"a.json": VLLM}, names=(*NAMES, *sets))
    assert has(row, saturated="true", note="a=b")


WRONG = {
    "no equals sign": (["--set", "foo"], "--set is 'foo'; give COLUMN=VALUE"),
    "no value": (["--set", "foo="], "--set is 'foo='"),
    "no key": (["--set", "=3"], "--set is '=3'"),
    "twice": (["--set", "gpus=3"], "--set gives gpus as '4' and as '3'"),
    "no metric": (["--set", "ttft_best=1"], "'ttft_best' is no metric"),
    "no number": (["--set", "seconds=long"], "seconds is 'long'"),
    "a load too many": (["--set", "rate=1", "--set", "concurrency=2"], "fill exactly one"),
    "an open brace": (["--path", "{workload"], "--path is '{workload'"),
    "an empty name": (["--path", "{}/x"], "--path is '{}/x'"),
    "nothing between": (["--path", "{tp}{pp}/a.json"], "write what stands between"),
    "no name at all": (["--path", "*.json"], "name a column in it"),
    "another path": (["--path", "{tp}/b.json"], "does not fit --path {tp}/b.json"),
}


def test_what_is_not_there_is_refused(refused):
    for name in ("no/where", "x.json", "a\x1b.json", "y" * 5000):
        assert "does not exist" in refused(name, *NAMES)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_refused(refused, name):
    argv, expected = WRONG[name]
    assert expected in refused("a.json", *NAMES, *argv, files={"a.json": VLLM})


def test_a_config_with_other_gpus_in_another_file_is_refused(refused):
    files = {"b.json": VLLM | {"tp": 2}, "c.json": VLLM | {"tp": 4}}
    said = refused("b.json", "c.json", *NAMES[:4], files=files)
    assert "c.json: gpus is 4; config 'tp4' had 2 before" in said


@pytest.mark.parametrize(
    ("out", "expected"),
    [("g.txt", "suffix '.txt'"), ("no/g.csv", "does not exist"), ("d.csv", "a directory")],
)
def test_a_grid_that_cannot_be_written_is_refused_at_once(folder, capsys, out, expected):
    write(folder / "a.json", VLLM)
    (folder / "d.csv").mkdir()
    assert main(["import", "a.json", *NAMES, "-o", out]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1


def test_hostile_names_reach_the_grid_as_they_are_and_the_terminal_escaped(imported):
    names = ["<script>alert(1)</script>", 'a"b,c', "\u202eevil", "x" * 300]
    for name in names:
        sets = ("--set", f"workload={name}", "--set", "config=c", "--set", "gpus=1")
        ((row,), _) = imported(files={"a.json": VLLM}, names=sets)
        assert row["workload"] == name
    _, said = imported("b", files={"b/\x1b[31m.json": VLLM, "b/\u202e.json": "{"})
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_levels_that_are_written_differently_are_one_cell(imported):
    files = {"a.json": VLLM | {"request_rate": 4}, "b.json": VLLM | {"request_rate": "4.0"}}
    rows, said = imported(files=files)
    assert [row["repeat"] for row in rows] == ["0", "1"]
    assert "2 rows of 1 cell" in said


def test_a_file_found_twice_counts_once(imported):
    rows, _ = imported("x", "x/a.json", "x/a.json", files={"x/a.json": VLLM})
    assert len(rows) == 1


def test_a_grid_inside_the_folder_is_not_read_as_a_result(imported):
    imported(files={"a.json": VLLM})
    rows, said = imported()
    assert len(rows) == 1
    assert "skipped" not in said


EXPECTED = {
    "results": (8, "skipped 3:"),
    "vllm_bench": (6, "skipped 1:"),
    "vllm_bench_sweep": (4, "request_rate is inf"),
    "guidellm": (2, "from GuideLLM"),
    "aiperf": (1, "from AIPerf"),
    "inference-perf": (2, "from inference-perf"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_results_are_imported_whole(imported, name):
    if not SAMPLES.is_dir():
        pytest.skip(f"{SAMPLES} exists on the founders' machines only")
    count, expected = EXPECTED[name]
    rows, said = imported(SAMPLES / name)
    assert len(rows) == count
    assert expected in said
    grid = Grid.read("out.csv")
    for row in grid.rows:
        if isinstance(row.outcome, Measured):
            assert all(value > 0 for value in row.outcome.values.values())


@pytest.mark.parametrize("name", ["streams.json", "http", "dynamo_replay_synthetic.json"])
def test_recordings_of_something_else_are_refused(refused, name):
    if not SAMPLES.is_dir():
        pytest.skip(f"{SAMPLES} exists on the founders' machines only")
    assert "nothing to import" in refused(SAMPLES / name, *NAMES)


def test_guidellm_csv_and_json_of_one_run_agree(imported):
    if not SAMPLES.is_dir():
        pytest.skip(f"{SAMPLES} exists on the founders' machines only")
    stem = SAMPLES / "guidellm/poisson_4_8_1worker"
    from_json, _ = imported(stem.with_suffix(".json"))
    from_table, _ = imported(stem.with_suffix(".csv"))
    for one, other in zip(from_json, from_table, strict=True):
        assert {name: one[name] for name in other} == other


def test_cells_of_an_imported_grid_are_those_of_the_files(imported):
    imported(files={"a.json": VLLM, "b.json": VLLM | {"duration": 52.0}})
    (cell,) = (grid := Grid.read("out.csv")).cells
    assert cell == Cell("chat", "tp4", 4.0, "rate")
    assert grid.cells[cell].rows == 2
    outcome = grid.cells[cell].outcome
    assert isinstance(outcome, Measured)
    assert outcome.values["throughput"] == pytest.approx((4 + 200 / 52) / 2)


def test_a_line_of_a_table_that_is_cut_short_is_no_row(imported):
    whole = RAW + "m,h,vllm,chat,1,2,1,8,170,24,6200,1.2,1,ok\n" * 2
    rows, said = imported(files={"p.csv": whole[:-20]}, names=())
    assert len(rows) == 1
    assert "p.csv: row 3 has 9 cells for 14 columns" in said
    assert "does not end with a line end" in said


def test_settings_that_can_be_no_column_are_none(imported):
    settings = {"run_number": 0, "": 1, " x": 2, "status": "new", "seconds": 3, "ok_one": True}
    ((row,), _) = imported(files={"a.json": VLLM | settings})
    assert has(row, status="ok", seconds=50, ok_one="True")
    assert not {"", " x", "x"} & set(row)


def test_yaml_with_numbers_for_keys_is_read(imported):
    ((row,), _) = imported(files={"a.yaml": yaml.safe_dump(VLLM | {1: 2}, sort_keys=False)})
    assert has(row, rate=4)


def test_text_that_is_no_unicode_is_refused(refused):
    said = refused("a.json", *NAMES[2:], "--set", "workload=\udcff", files={"a.json": VLLM})
    assert "no Unicode text" in said


def test_the_reason_that_helps_is_given_first(refused):
    files = {"r/a.log": "x", "r/b.json": {"x": 1}, "r/c.json": VLLM | {"request_rate": "inf"}}
    said = refused("r", *NAMES, files=files)
    assert "c.json: request_rate is inf" in said
    assert "(and 2 more were skipped)" in said
    assert "there is no file" in refused("r/d", files={"r/d/.hidden": ""})


def test_a_wrong_run_does_not_keep_the_others_of_its_file_out(imported):
    runs = [VLLM, VLLM | {"mean_ttft_ms": "x"}, VLLM | {"duration": 51.0}]
    rows, said = imported(files={"a.json": "".join(map(json.dumps, runs))})
    assert [row["seconds"] for row in rows] == ["50", "51"]
    assert "a.json: record 2: mean_ttft_ms is 'x'" in said
