"""What a load generator costs, ours beside others: CPU per request and token, and punctuality.

    python benchmarks/client_cost.py --vllm BIN/vllm --guidellm BIN/guidellm --aiperf BIN/aiperf

Every generator sends the same constant open-loop load to the same streaming server, it on one core
and the server on another. Its CPU time, user and system, of all its processes, is read at two
numbers of requests: the slope is what a request costs, start-up and imports do not count. Two
lengths of the reply tell a token from a request. Then the rate is raised until the 99th percentile
of how late requests are sent exceeds a limit. A generator that is not given is left out.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from load_generators import PEERS, Generator, Job, environment_of, ours, write_tokenizer

# Rates of the search in requests/s, each half as much again as the one before.
LADDER = [float(f"{10 * 1.5**step:.3g}") for step in range(15)]
LATE, TIMEOUT = 0.005, 400.0
# A run counts if this share of its requests was completed.
COMPLETE = 0.98


@dataclass(frozen=True)
class Bench:
    """What all runs have in common."""

    pace: float
    cores: tuple[int, int]
    folder: Path


@dataclass(frozen=True)
class Run:
    """One run of a generator.

    Attributes:
        cpu: seconds of its processes.
        completed: requests that went well.
        late: 99th percentile of how late they were sent, in seconds, without the first tenth of
            them, in which some generators are still starting.
        server: 99th percentile of how late the server was with its tokens, in seconds.
    """

    cpu: float
    completed: int
    late: float
    server: float


class Broken(Exception):
    """A generator that did not do what was asked for."""


@contextmanager
def serving(bench: Bench, tokens: int, seen: dict[str, float]) -> Iterator[str]:
    """The address of a fresh server; what it did is in `seen` afterwards."""
    script = str(Path(__file__).with_name("paced_server.py"))
    options = ["--tokens", str(tokens), "--pace", str(bench.pace)]
    command = [*_on(bench.cores[1]), sys.executable, script, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGTERM)
            seen |= json.loads(server.stdout.read())


def run(bench: Bench, generator: Generator, rate: float, requests: int, tokens: int) -> Run:
    """Run `generator` once.

    Raises:
        Broken: it failed, hung, or lost requests.
    """
    server: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(dir=bench.folder) as name,
        serving(bench, tokens, server) as url,
    ):
        folder = Path(name)
        job = Job(url, rate, requests, tokens, folder, bench.folder)
        cpu, printed = _spend(bench, generator, job)
        report = generator.report(job, printed)
    if report.completed < COMPLETE * requests:
        raise Broken(f"{report.completed} of {requests} requests were completed")
    settled = report.late[len(report.late) // 10 :]
    return Run(cpu, report.completed, float(np.quantile(settled, 0.99)), server["late_p99"])


def _spend(bench: Bench, generator: Generator, job: Job) -> tuple[float, str]:
    """CPU seconds of the generator and what it waited for, and what it printed."""
    command = [*_on(bench.cores[0]), *generator.command(job)]
    out, log = job.folder / "printed", job.folder / "log"
    with out.open("w") as stdout, log.open("w") as stderr:
        process = subprocess.Popen(
            command,
            stdout=stdout,
            stderr=stderr,
            env=environment_of(generator),
            start_new_session=True,
        )
        status, usage = _ended(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        said = (log.read_text() + out.read_text()).strip().splitlines() or ["nothing was printed"]
        raise Broken(f"exit {process.returncode}: {said[-1]}")
    return usage.ru_utime + usage.ru_stime, out.read_text()


def _ended(pid: int):
    """Exit status and resource usage of a child; killed with its group if it takes too long."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return status, usage
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.05)


def _on(core: int) -> list[str]:
    return ["taskset", "-c", str(core)]


@dataclass
class Costs:
    """CPU seconds per request by repeat, with short and with long replies."""

    tokens: tuple[int, int]
    short: list[float]
    long: list[float]

    def per_token(self) -> list[float]:
        """What a further token of a reply costs."""
        more = self.tokens[1] - self.tokens[0]
        return [(b - a) / more for a, b in zip(self.short, self.long, strict=True)]


def slope(
    bench: Bench, generator: Generator, rate: float, requests: Sequence[int], tokens: int
) -> float:
    """CPU seconds per further request."""
    few, many = (run(bench, generator, rate, count, tokens) for count in requests)
    return (many.cpu - few.cpu) / (many.completed - few.completed)


def costs(
    bench: Bench, generators: Sequence[Generator], arguments: argparse.Namespace
) -> dict[str, Costs | str]:
    """Costs by generator, or why there are none.

    Repeats take turns, so that a slow minute of the machine meets all.
    """
    found: dict[str, Costs | str] = {
        each.name: Costs(tuple(arguments.tokens), [], []) for each in generators
    }
    for _ in range(arguments.repeats):
        for each in generators:
            mine = found[each.name]
            if isinstance(mine, str):
                continue
            try:
                for tokens, into in zip(mine.tokens, (mine.short, mine.long), strict=True):
                    into.append(slope(bench, each, arguments.rate, arguments.requests, tokens))
                    _say(f"{each.name}, {tokens} tokens: {1e6 * into[-1]:.0f} µs per request")
            except Broken as reason:
                found[each.name] = f"failed: {reason}"
                _say(f"{each.name} {found[each.name]}")
    return found


def sustained(
    bench: Bench, generator: Generator, tokens: int, seconds: float
) -> tuple[float, Run | None]:
    """The highest rate of the ladder that holds, and the run; bisection, two tries a rate."""
    low, high, best = -1, len(LADDER), None
    while high - low > 1:
        middle = (low + high) // 2
        held = _holds(bench, generator, LADDER[middle], tokens, seconds)
        low, high, best = (low, middle, best) if held is None else (middle, high, held)
    return (LADDER[low] if low >= 0 else 0.0), best


def _holds(
    bench: Bench, generator: Generator, rate: float, tokens: int, seconds: float
) -> Run | None:
    for _ in range(2):
        try:
            done = run(bench, generator, rate, max(200, round(rate * seconds)), tokens)
        except Broken as reason:
            _say(f"{generator.name} at {rate:g}/s: {reason}")
            continue
        _say(f"{generator.name} at {rate:g}/s: p99 {1e3 * done.late:.2f} ms late")
        if done.late <= LATE:
            return done
    return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _middle(values: Sequence[float]) -> str:
    """The median in µs, and the range."""
    low, middle, high = (1e6 * np.quantile(values, share) for share in (0, 0.5, 1))
    return f"{middle:.0f} ({low:.0f}–{high:.0f})"


def main() -> None:
    """Run the generators that are given and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in PEERS:
        default = os.environ.get(f"{name.upper()}_CLI")
        parser.add_argument(f"--{name}", default=default, help=f"or ${name.upper()}_CLI")
    parser.add_argument("--rate", type=float, default=100.0, help="requests/s where CPU is read")
    parser.add_argument("--requests", type=int, nargs=2, default=[200, 2000])
    parser.add_argument("--tokens", type=int, nargs=2, default=[16, 64], help="of a reply")
    parser.add_argument("--pace", type=float, default=0.01, help="seconds from token to token")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run in the rate search")
    parser.add_argument("--cores", type=int, nargs=2, default=[1, 0], help="generator and server")
    parser.add_argument("--only", choices=["cost", "rate"], help="one of the two tables")
    arguments = parser.parse_args()
    generators = [ours()]
    for name, make in PEERS.items():
        executable = getattr(arguments, name)
        if executable:
            generators.append(make(executable))
        else:
            print(f"{name} is left out: give --{name} EXECUTABLE or ${name.upper()}_CLI")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.pace, tuple(arguments.cores), Path(folder))
        write_tokenizer(bench.folder)
        if arguments.only != "rate":
            _print_costs(costs(bench, generators, arguments), tuple(arguments.tokens))
        if arguments.only != "cost":
            _print_rates(bench, generators, arguments)


def _print_costs(found: dict[str, Costs | str], tokens: tuple[int, int]) -> None:
    few, many = tokens
    print("\nCPU in µs, median (range) of the repeats, and the medians as multiples of ours:\n")
    print(f"| client | request, {few} tokens | × ours | request, {many} tokens | × ours | token |")
    print("| --- | --- | --- | --- | --- | --- |")
    own = next(iter(found.values()))
    for name, each in found.items():
        if isinstance(each, str) or isinstance(own, str):
            print(f"| {name} | {each if isinstance(each, str) else 'nothing to compare with'} |")
            continue
        short, long = (
            [_middle(theirs), f"{np.median(theirs) / np.median(mine):.1f}"]
            for theirs, mine in ((each.short, own.short), (each.long, own.long))
        )
        print("| " + " | ".join([name, *short, *long, _middle(each.per_token())]) + " |")


def _print_rates(bench: Bench, generators: Sequence[Generator], arguments) -> None:
    tokens = arguments.tokens[0]
    print(f"\nHighest rate with p99 lateness below {1e3 * LATE:g} ms, {tokens} tokens a reply:\n")
    print("| client | requests/s | p99 late | lateness from | server p99 late |")
    print("| --- | --- | --- | --- | --- |")
    for each in generators:
        rate, done = sustained(bench, each, tokens, arguments.seconds)
        if done is None:
            print(f"| {each.name} | below {LADDER[0]:g} | | {each.due} | |", flush=True)
            continue
        cells = [f"{rate:g}", f"{1e3 * done.late:.1f} ms", each.due, f"{1e3 * done.server:.1f} ms"]
        print("| " + " | ".join([each.name, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
