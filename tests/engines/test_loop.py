"""The whole loop, `fleetsieve run`, over servers that others wrote."""

import asyncio
import json
from contextlib import AsyncExitStack

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from fleetsieve.cli import main
from fleetsieve.events import Told
from fleetsieve.study import Study
from fleetsieve_measure import Measured

WORKLOADS = [
    {
        "name": "chat",
        "demand": 6.0,
        "slo": {"e2e_p50": 20.0},
        "requests": {"prompt_tokens": 64, "output_tokens": 16},
        "arrivals": "poisson",
        "loads": [1, 4],
    },
    {
        "name": "users",
        "demand": 0.5,
        "slo": {"e2e_p50": 20.0, "ttft_p50": 10.0},
        "requests": {"prompt_tokens": 128, "output_tokens": 8},
        "arrivals": {"concurrency": True},
        "loads": [1, 2],
    },
]
MEASURE = {"gpus": 1, "seconds": 4, "warmup_seconds": 2, "launch_seconds": 30}


def decided(folder, engine, configs, capsys):
    """Run a fleet to its decision; the decision and what the study says."""
    fleet = {
        "fleet": {"gpus": 4},
        "decision": {"tolerance": 0.2},
        "engine": engine,
        "configs": [{"gpus": 1, **config} for config in configs],
        "workloads": WORKLOADS,
        "measure": MEASURE,
    }
    path = folder / "f.yaml"
    path.write_text(yaml.safe_dump(fleet))
    code = main(["run", str(path), "--json", "-"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert code == 0, (found["stop_reason"], printed.err)
    with Study.open_read_only(folder / "f.study.db") as study:
        told = [event for event in study.events() if isinstance(event, Told)]
    return found, told


def check(folder, found, told):
    """A certificate for both workloads that rests on requests which are all there."""
    assert found["certified"]
    assert {row["workload"] for row in found["allocation"]} == {"chat", "users"}
    assert found["value"]["conservative"] > 0.5
    measured = [event for event in told if isinstance(event.outcome, Measured)]
    assert len(measured) >= 2
    for event in measured:
        assert isinstance(event.outcome, Measured)
        rows = pq.read_table(folder / "f.study.samples" / event.outcome.summary["samples"])
        table = rows.to_pandas()
        good = table[table.measured & table.ok]
        assert len(good) == event.outcome.requests
        if not event.outcome.saturated and not event.outcome.summary["ended_early"]:
            late = np.sort((good["last"] - good["due"]).to_numpy())
            middle = late[int(np.ceil(0.5 * len(late))) - 1]
            assert event.outcome.values["e2e_p50"] == pytest.approx(middle)


@pytest.mark.parametrize("name", ["mlx", "dynamo"])
def test_two_servers_that_are_up_are_measured_to_a_decision(name, start, tmp_path, capsys):
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        engines = [runner.run(stack.enter_async_context(start(name))) for _ in range(2)]
        try:
            configs = [
                {
                    "name": f"c{number}",
                    "features": {"number": number},
                    "engine": {"url": engine.server.url, "model": engine.server.model},
                }
                for number, engine in enumerate(engines)
            ]
            found, told = decided(tmp_path, {"kind": "openai"}, configs, capsys)
        finally:
            runner.run(stack.aclose())
    check(tmp_path, found, told)


def test_vllm_is_launched_in_two_configs_and_measured_to_a_decision(vllm, tmp_path, capsys):
    engine = {
        "kind": "vllm",
        "model": vllm.model,
        "command": list(vllm.command),
        "args": dict(vllm.args),
        "env": dict(vllm.env),
    }
    configs = [
        {"name": f"seqs{number}", "features": {"seqs": number}, "args": {"max-num-seqs": number}}
        for number in (2, 8)
    ]
    found, told = decided(tmp_path, engine, configs, capsys)
    check(tmp_path, found, told)
    assert all(event.outcome.summary["kv_cache_tokens"] > 0 for event in told)
