"""Whether measuring leaks: cells are measured over and over, and memory, files, processes watched.

    python benchmarks/soak.py --minutes 20

Two configs of the simulated engine take turns on a node with room for one, so that servers are
launched and stopped all the time. The table has a row a minute; the slopes are least-squares lines
through all samples after the first fifth, in which caches fill, with two standard errors.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from fleetsieve.cell import Cell
from fleetsieve.fleet import Fleet
from fleetsieve.live_engine import LiveEngine
from fleetsieve.samples import SampleFolder
from fleetsieve_measure import Measured

FLEET = """\
fleet: {gpus: 1}
engine: {kind: simulated, model: llama-3.1-8b, args: {max-num-seqs: 32}}
configs:
  - {name: a, gpus: 1}
  - {name: b, gpus: 1, args: {max-num-seqs: 16}}
workloads:
  - name: chat
    demand: 1
    slo: {e2e_p50: 60}
    requests: {prompt_tokens: 100, output_tokens: 20}
    arrivals: constant
measure: {gpus: 1, seconds: 2, warmup_seconds: 0.5, launch_seconds: 2}
"""
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Watch:
    """What this process holds; `server_mib` is the memory of its largest child."""

    seconds: float
    cells: int
    failed: int
    rss_mib: float
    files: int
    sockets: int
    children: int
    server_mib: float


def watch(begin: float, cells: int, failed: int) -> Watch:
    links = open_files()
    below = descendants(os.getpid())
    return Watch(
        time.monotonic() - begin,
        cells,
        failed,
        memory(os.getpid()),
        len(links),
        sum(link.startswith("socket:") for link in links),
        len(below),
        max(map(memory, below), default=0.0),
    )


def open_files() -> list[str]:
    """What the descriptors of this process lead to, but for the one that lists them."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(path.readlink()))
    return [link for link in found if not link.startswith(f"/proc/{os.getpid()}/fd")]


def memory(pid: int) -> float:
    """Resident memory in MiB; 0 where the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20
    except OSError:
        return 0.0


def descendants(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields_after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields_after_name[1])
    found, front = [], [pid]
    while front:
        front = [child for child, parent in parents.items() if parent in front]
        found += front
    return found


def cells() -> Iterator[Cell]:
    """Three cells on one config, then three on the other."""
    for config in itertools.cycle("ab"):
        for rate in (2.0, 5.0, 10.0):
            yield Cell("chat", config, rate, "rate")


async def soak(minutes: float, folder: Path) -> list[Watch]:
    samples = SampleFolder(folder / "soak.study.db")
    engine = LiveEngine(Fleet.parse(FLEET), folder / "servers", on_sample=samples.write)
    begin = time.monotonic()
    seen, failed, minute = [], 0, 0
    async with engine:
        for number, cell in enumerate(cells(), 1):
            failed += not isinstance(await engine.measure(cell), Measured)
            seen.append(watch(begin, number, failed))
            if seen[-1].seconds >= 60 * minute:
                minute += 1
                print(row(seen[-1]), flush=True)
            if seen[-1].seconds >= 60 * minutes:
                break
    left = watch(begin, seen[-1].cells, failed)
    print(f"{row(left)}  after the end", flush=True)
    return seen


def row(seen: Watch) -> str:
    return " ".join(f"{value:>10.1f}" for value in astuple(seen))


def slopes(seen: list[Watch]) -> Iterator[str]:
    steady = seen[len(seen) // 5 :]
    if len(steady) < 4:
        return
    hours = np.array([one.seconds for one in steady]) / 3600
    for name in ("rss_mib", "files", "sockets", "children", "server_mib"):
        values = np.array([getattr(one, name) for one in steady], float)
        (slope, _), covariance = np.polyfit(hours, values, 1, cov=True)
        each = slope * (hours[-1] - hours[0]) / (steady[-1].cells - steady[0].cells)
        yield (
            f"{name}: {slope:+.2f} ± {2 * np.sqrt(covariance[0, 0]):.2f} an hour, "
            f"{each:+.5f} a cell"
        )


def main() -> None:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    arguments = parser.parse_args()
    print(" ".join(f"{field.name:>10}" for field in fields(Watch)), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(soak(arguments.minutes, Path(folder)))
    print(*slopes(seen), sep="\n")


if __name__ == "__main__":
    main()
