"""Result files that are damaged in any way give a grid or one sentence, never a traceback."""

import copy
import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetsieve.errors import InputError
from fleetsieve.grid import Grid
from fleetsieve.importing.importer import import_files
from fleetsieve.importing.summary import gaps, lines
from fleetsieve.importing.writing import write

SAMPLES = Path(__file__).parents[3] / "shared/data/samples"
MOST_BYTES = 40_000
GIVEN = {"workload": "w", "config": "c", "gpus": "2", "rate": "3"}
VALUES = {
    "mean": 1.0,
    "avg": 1.0,
    "median": 1.0,
    "p99": 2.0,
    "unit": "ms",
    "units": "s",
    "count": 3,
}
DISTRIBUTION = {"successful": VALUES | {"percentiles": {"p50": 1.0, "p99": 2.0}}}
DOCUMENTS = {
    "vllm.json": {
        "completed": 10, "failed": 1, "num_prompts": 11, "duration": 5.0, "request_rate": "inf",
        "max_concurrency": 4, "request_throughput": 2.0, "mean_ttft_ms": 5.0,
        "p99_ttft_ms": math.nan, "run_number": 0, "tensor_parallel_size": 2,
    },
    "failure.json": {"error": "x", "error_type": "y", "serve_overrides": {"a": 1},
                     "bench_overrides": {"request_rate": 4}},
    "trtllm.json": {
        "world_info": {"tp_size": 4, "world_size": 4}, "request_info": {"num_requests": 10},
        "performance": {"total_latency_ms": 10.0, "request_throughput_req_s": 1.0,
                        "request_latency_percentiles_ms": {"p99": 1.0}},
    },
    "guidellm.json": {
        "benchmarks": [{
            "config": {"strategy": {"type_": "poisson", "rate": 4.0}}, "duration": 9.0,
            "metrics": {"request_totals": {"successful": 40, "errored": 1},
                        "requests_per_second": DISTRIBUTION, "request_latency": DISTRIBUTION},
        }],
    },
    "aiperf.json": {"input_config": {"phases": [{"rate": 5.0}]}, "request_count": {"avg": 40},
                    "request_throughput": {"avg": 4.0}, "request_latency": VALUES},
    "records.jsonl": {"metadata": {"request_start_ns": 1, "request_end_ns": 2},
                      "metrics": {"request_latency": {"value": 1.0, "unit": "ms"}}},
    "stage.json": {"load_summary": {"requested_rate": 4.0}, "failures": {"count": 0},
                   "successes": {"count": 3, "throughput": {"requests_per_sec": 3.0},
                                 "latency": {"request_latency": VALUES}},
                   "benchmark_time_seconds": 1.0},
    "report.yaml": {"version": "0.2", "scenario": {"load": {"standardized": {"rate_qps": 1}}},
                    "run": {"time": {"duration": "PT5S"}},
                    "results": {"request_performance": {"aggregate": {
                        "latency": {"request_latency": VALUES},
                        "throughput": {"request_rate": {"mean": 1.0}}}}}},
    "profile.jsonl": {"input_tokens": 1, "output_tokens": 2, "request_rate": 1.0, "samples": 3,
                      "metric": "TPUT", "mean": 1.0, "P99": 2.0},
    "replay.json": {"summary": {"completed_requests": 1, "request_throughput_rps": 2.0,
                                "duration_ms": 5.0, "mean_ttft_ms": 1.0}},
}  # fmt: skip
TABLES = {
    "raw.csv": "tp,concurrency,ttft_ms,tpot_ms,seq_per_s_per_replica,status\n1,8,1,2,3,ok\n",
    "sweep.csv": ",completed,duration,request_throughput,request_rate,mean_ttft_ms\n0,3,1,3,4,5\n",
    "p.csv": "Metric,avg,p99\nRequest Latency (ms),1,2\n\nMetric,Value\nRequest Count,4\n",
}
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from(["inf", "nan", "1e400", "\u202e", 10**400, [], {}, [[]], {"a": {}}, -0.0]),
)  # fmt: skip


def originals():
    made = {name: json.dumps(value).encode() for name, value in DOCUMENTS.items()}
    made |= {name: text.encode() for name, text in TABLES.items()}
    recorded = SAMPLES.rglob("*") if SAMPLES.is_dir() else []
    for path in sorted(recorded):
        if path.suffix in (".json", ".jsonl", ".csv", ".yaml") and "http" not in path.parts:
            data = path.read_bytes()
            made[str(path.relative_to(SAMPLES))] = data[:MOST_BYTES]
    return made


ORIGINALS = originals()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def imports_or_refuses(folder, name, data):
    path, out = folder / f"x{Path(name).suffix}", folder / "out.csv"
    path.write_bytes(data)
    try:
        found = import_files([path], GIVEN, None, out)
    except InputError as error:
        if not str(error).startswith("nothing to import: ") or path.name not in str(error):
            raise AssertionError("the refusal does not say of what") from error
        return
    write(found.grid, out, gaps(found))
    assert len(Grid.read(out).rows) == len(found.rows)
    assert all(lines(found, out))


quietly = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quietly
@given(name=st.sampled_from(sorted(ORIGINALS)), share=st.floats(0, 1))
def test_any_beginning_of_a_result_is_imported_or_refused(folder, name, share):
    data = ORIGINALS[name]
    imports_or_refuses(folder, name, data[: round(share * len(data))])


@quietly
@given(name=st.sampled_from(sorted(ORIGINALS)), data=st.data())
def test_flipped_bytes_are_imported_or_refused(folder, name, data):
    damaged = bytearray(ORIGINALS[name])
    for _ in range(data.draw(st.integers(1, 5)) if damaged else 0):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    imports_or_refuses(folder, name, bytes(damaged))


@quietly
@given(name=st.sampled_from(sorted(DOCUMENTS)), data=st.data())
def test_values_of_other_types_are_imported_or_refused(folder, name, data):
    value = json.loads(json.dumps(DOCUMENTS[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        replace_one(value, data)
    imports_or_refuses(folder, name, json.dumps(value).encode())


def replace_one(value, data):
    """Replace a value somewhere inside by an odd one."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = data.draw(st.sampled_from(keys))
    if isinstance(value[key], dict | list) and value[key] and data.draw(st.booleans()):
        replace_one(value[key], data)
    else:
        value[key] = copy.deepcopy(data.draw(ODD))


@quietly
@given(text=st.text(alphabet=st.sampled_from('{}[]",:.0123e-naif \n\x00\ufeff'), max_size=60))
def test_text_that_resembles_json_is_imported_or_refused(folder, text):
    for suffix in (".json", ".csv", ".yaml"):
        imports_or_refuses(folder, f"x{suffix}", text.encode())
