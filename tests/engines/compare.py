"""Our client and other people's in turn on one vLLM server: what each reports, side by side.

`python tests/engines/compare.py` needs the engine vllm (see install.py); its `vllm bench serve` is
the first to compare with; GuideLLM and AIPerf take part where their executables are given.
"""

import argparse
import asyncio
import json
import os
import runpy
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from fleetsieve_measure.arrivals import poisson
from fleetsieve_measure.client import Client
from fleetsieve_measure.lengths import Constant, Independent
from fleetsieve_measure.load import OpenLoop
from fleetsieve_measure.outcome import outcome_of
from fleetsieve_measure.results import Measured
from fleetsieve_measure.server import Server
from fleetsieve_measure.source import Source
from fleetsieve_measure.trial import Rules, run_trial

ENGINES = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
PROMPT, OUTPUT = 64, 32
WARMUP, DRAIN = 1.0, 30.0
STATS = ("p50", "p99")
NAMES = tuple(f"{metric}_{stat}" for metric in ("ttft", "tpot", "e2e") for stat in STATS)
# Of one run, in seconds by METRIC_STAT; made from a server, a rate, a number of requests, a seed.
Report = dict[str, float]
Load = Callable[[Server, float, int, int], Awaitable[Report]]


async def ours(server: Server, rate: float, requests: int, seed: int) -> Report:
    """A run of our own load, repeated while the client itself is starved."""
    gaps, prompts = (np.random.default_rng([seed, part]) for part in range(2))
    load = OpenLoop(rate, lambda: poisson(rate, gaps))
    rules = Rules({}, WARMUP, requests / rate, requests / rate, DRAIN)
    source = Source(server.model, Independent(Constant(PROMPT), Constant(OUTPUT)), None, prompts)
    while True:
        async with Client(server.url) as client:
            verdict = outcome_of(await run_trial(client, source, load, rules), load, rules, 0.0)
        if isinstance(verdict.outcome, Measured):
            print(verdict.outcome.summary["dispatch_lag_seconds"], file=sys.stderr)
            return {name: verdict.outcome.values[name] for name in NAMES}
        if not verdict.spoilt:
            raise SystemExit(f"our run at {rate:g} requests/s: {verdict.outcome.reason}")
        print(f"repeated: {verdict.outcome.reason}", file=sys.stderr)


def vllm_bench(program: str) -> Load:
    """`vllm bench serve`: latencies count from the sending, percentiles are interpolated."""

    async def load(server: Server, rate: float, requests: int, seed: int) -> Report:
        found = await _report(
            "result.json",
            *(program, "bench", "serve", "--backend", "openai", "--base-url", server.url),
            *("--model", server.model, "--tokenizer", server.launch.model, "--seed", seed),
            *("--dataset-name", "random", "--random-input-len", PROMPT),
            *("--random-output-len", OUTPUT, "--ignore-eos", "--num-warmups", 1),
            *("--request-rate", rate, "--num-prompts", requests, "--disable-tqdm"),
            *("--percentile-metrics", "ttft,tpot,e2el", "--metric-percentiles", "50,99"),
            *("--save-result", "--result-filename", "result.json"),
        )
        return {name: found[f"{_bench_name(name)}_ms"] / 1000 for name in NAMES}

    return load


def aiperf(program: str) -> Load:
    """AIPerf, whose inter-token latency is one number a request, as our TPOT is."""

    async def load(server: Server, rate: float, requests: int, seed: int) -> Report:
        found = await _report(
            "artifacts/profile_export_aiperf.json",
            *(program, "profile", "--model", server.model, "--tokenizer", server.launch.model),
            *("--url", server.url, "--endpoint-type", "completions", "--streaming"),
            *("--isl", PROMPT, "--isl-stddev", 0, "--osl", OUTPUT, "--random-seed", seed),
            *("--extra-inputs", "ignore_eos:true", "--ui", "None"),
            *("--request-rate", rate, "--request-count", requests, "--warmup-request-count", 1),
            *("--output-artifact-dir", "artifacts"),
        )
        keys = {"ttft": "time_to_first_token", "tpot": "inter_token_latency"}
        return {
            name: found[keys.get(metric, "request_latency")][stat] / 1000
            for name in NAMES
            for metric, stat in [name.split("_")]
        }

    return load


def guidellm(program: str) -> Load:
    """GuideLLM, whose own `time_per_output_token_ms` includes the first token and is not used."""

    async def load(server: Server, rate: float, requests: int, seed: int) -> Report:
        asked = f"model={server.model},request_format=/v1/completions"
        tokens = f"prompt_tokens={PROMPT},output_tokens={OUTPUT}"
        found = await _report(
            "result.json",
            *(program, "run", "--profile", f"kind=poisson,rate={rate:g}"),
            *("--backend", f"kind=openai_http,target={server.url},{asked}"),
            *("--constraint", f"kind=max_requests,count={requests}"),
            *("--tokenizer", f"kind=hf_auto,model={server.launch.model}"),
            *("--data", f"kind=synthetic_text,{tokens}", "--seed", f"kind=static,value={seed}"),
            *("--output", "kind=json,path=result.json"),
        )
        (run,) = found["benchmarks"]
        keys = {
            "ttft": ("time_to_first_token_ms", 1000),
            "tpot": ("inter_token_latency_ms", 1000),
            "e2e": ("request_latency", 1),
        }
        return {
            name: seen["percentiles"][stat] / unit
            for name in NAMES
            for metric, stat in [name.split("_")]
            for key, unit in [keys[metric]]
            for seen in [run["metrics"][key]["successful"]]
        }

    return load


async def _report(result: str, *command: object) -> Any:
    """Run a program in a folder of its own, and read the JSON that it leaves there."""
    # With more worker processes than cores GuideLLM sends more than it is asked to.
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    with tempfile.TemporaryDirectory() as folder:
        child = await asyncio.create_subprocess_exec(
            *map(str, command),
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        output, _ = await child.communicate()
        try:
            return json.loads((Path(folder) / result).read_text())
        except FileNotFoundError:
            raise SystemExit(f"{command}\n{output.decode()[-4000:]}") from None


def _bench_name(name: str) -> str:
    metric, stat = name.split("_")
    return f"{stat}_{metric.replace('e2e', 'e2el')}"


async def in_turn(
    server: Server, loads: dict[str, Load], rate: float, requests: int, seed: int
) -> dict[str, Report]:
    """One client after the other."""
    found = {}
    for part, (name, load) in enumerate(loads.items()):
        await server.reset_cache()
        found[name] = await load(server, rate, requests, seed * len(loads) + part)
    return found


async def at_once(
    server: Server, loads: dict[str, Load], rate: float, requests: int, seed: int
) -> dict[str, Report]:
    """Ours while the other client is sending too, each its share of the rate.

    What else disturbs the machine disturbs both.
    """
    (name, mine), (other, theirs) = loads.items()
    await server.reset_cache()
    before = served(server)
    # The other client begins a little earlier, and should not end earlier.
    more = requests + round(rate * WARMUP) + 20
    running = asyncio.ensure_future(theirs(server, rate / 2, more, 2 * seed))
    while served(server) < before + 5 and not running.done():
        await asyncio.wait({running}, timeout=0.1)
    return {name: await mine(server, rate / 2, requests, 2 * seed + 1), other: await running}


def served(server: Server) -> float:
    """How many requests have got their first token, as vLLM counts."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    name = "vllm:time_to_first_token_seconds_count"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def compare(server: Server, loads: dict[str, Load], args: argparse.Namespace) -> list[str]:
    """The lines of a table, a row for each rate and statistic."""
    others = list(loads)[1:]
    lines = [f"| requests/s | ms | ours | repeats | {' | | '.join(others)} | |"]
    lines.append("| --- " * (4 + 2 * len(others)) + "|")
    run = at_once if args.at_once else in_turn
    for rate in args.rates:
        runs = []
        for repeat in range(args.repeats):
            runs.append(await run(server, loads, rate, args.requests, repeat))
            print(rate, runs[-1], file=sys.stderr)
        found = {name: [reports[name] for reports in runs] for name in loads}
        lines += [
            f"| {rate:g} | {name.replace('_', ' ')} | {_cells(name, found)} |" for name in NAMES
        ]
    return lines


def _cells(name: str, found: dict[str, list[Report]]) -> str:
    mine, *theirs = ([report[name] for report in reports] for reports in found.values())
    cells = [f"{1000 * mean(mine):.2f}", f"{100 * (max(mine) / min(mine) - 1):.0f} %"]
    for values in theirs:
        cells += [f"{1000 * mean(values):.2f}", f"{100 * (mean(mine) / mean(values) - 1):+.1f} %"]
    return " | ".join(cells)


async def main(args: argparse.Namespace) -> None:
    """Launch the server, run everything and print the tables."""
    installed = ENGINES["Installed"]()
    loads = {"ours": ours, "vllm bench": vllm_bench(installed.program("vllm", "vllm"))}
    if not args.at_once:
        loads |= {"GuideLLM": guidellm(args.guidellm)} if args.guidellm else {}
        loads |= {"AIPerf": aiperf(args.aiperf)} if args.aiperf else {}
    with tempfile.TemporaryDirectory() as folder:
        model = installed.tiny_model(Path(folder) / "model")
        launch = ENGINES["vllm_launch"](installed, model, Path(folder) / "server")
        async with Server(launch, deadline=300) as server:
            lines = await compare(server, loads, args)
    print("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[2.0, 5.0, 10.0])
    parser.add_argument("--requests", type=int, default=300, help="in each run")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--at-once", action="store_true", help="ours and vllm bench together, for a busy machine"
    )
    parser.add_argument("--guidellm", help="its executable")
    parser.add_argument("--aiperf", help="its executable")
    asyncio.run(main(parser.parse_args()))
