"""How often certificates hold, and what they cost, on random fleets whose truth is known.

    python benchmarks/calibration.py run --fleets 500 --minutes 170
    python benchmarks/calibration.py report --folder docs/calibration

`run` appends a line of JSON for each fleet, policy, confidence and noise to --results, and leaves
out what is there already, so that it may be stopped and started again; fleets come in turn, so that
what is there is a sample at any moment. `report` makes tables and, with the extra `bench`, a plot.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from fleetsieve.belief import Belief, Hypothesis, use_compilation_cache
from fleetsieve.observations import Observations
from fleetsieve.oracle import Oracle
from fleetsieve.policy_names import POLICY_NAMES
from fleetsieve.problem import Problem
from fleetsieve.random_fleet import RunNoise, random_fleet
from fleetsieve.replay_run import Case, Replayer

CONFIDENCES = (0.8, 0.9, 0.95, 0.99)
TOLERANCE, REPEATS = 0.02, 5
# Fleets that a process replays before another takes its place.
_TASKS = 8
# What is run: (noise, policies, confidences, the first so many fleets of every hundred).
PLAN = (
    (0.0, ("sieve", "bisect"), (0.95,), 100),
    (0.0, ("sieve",), (0.8, 0.9, 0.99), 100),
    (0.0, ("random",), CONFIDENCES, 30),
    (0.15, ("sieve", "bisect"), (0.95,), 20),
    (0.05, ("sieve", "bisect"), (0.95,), 20),
    (0.0, ("clairvoyant", "bo", "pruned", "uncertainty"), (0.95,), 20),
)


@dataclass(frozen=True)
class Job:
    """One replay; `repeats` is how often a cell may be measured, or by bisect is."""

    seed: int
    noise: float
    policy: str
    confidence: float
    repeats: int


class Remembering(Belief):
    """Fits of one fleet, shared by its jobs: they depend on the observations alone."""

    fits: dict[bytes, Hypothesis]

    def learn(self, observed: Observations, best: Hypothesis | None = None) -> Hypothesis:
        parts = (observed.value, observed.noise, observed.runs, observed.seen, observed.broken)
        key = b"".join(part.tobytes() for part in parts)
        if key not in self.fits:
            self.fits[key] = super().learn(observed, best)
        return self.fits[key]


def jobs_of(fleets: int) -> Iterator[list[Job]]:
    """The jobs of each fleet, fleet by fleet within each row of the plan."""
    for noise, policies, confidences, share in PLAN:
        for seed in range(fleets):
            if seed % 100 < share:
                yield [
                    Job(seed, noise, policy, confidence, repeats)
                    for policy in policies
                    if policy in POLICY_NAMES
                    for confidence in confidences
                    for repeats in _repeats(policy, noise)
                ]


def _repeats(policy: str, noise: float) -> tuple[int, ...]:
    if not noise:
        return (1,)
    return (1, 3, 5) if policy == "bisect" else (REPEATS,)


def replay(jobs: list[Job]) -> list[dict]:
    """Run the jobs of one fleet and noise."""
    drawn = random_fleet(jobs[0].seed)
    problem = Problem.build(drawn.fleet, drawn.grid)
    truth = problem.truth(drawn.grid)
    oracle, fits = Oracle.of(problem, truth), {}
    whole = float(problem.gpu_seconds.sum())
    rows = []
    for job in jobs:
        belief = Remembering(problem, confidence=job.confidence)
        belief.fits = fits
        noise = RunNoise(truth, job.noise) if job.noise else None
        case = Case(belief, truth, oracle, TOLERANCE, noise, job.repeats)
        start = time.process_time()
        run = asdict(Replayer(case).run(job.policy, 0, job.seed))
        about = {
            "columns": len(run.pop("allocation")),
            "cells": problem.n_cells,
            "best": oracle.best.value,
            "monotone": drawn.monotone,
            "knife_edge": drawn.knife_edge,
            "grid": whole,
            "seconds": time.process_time() - start,
        }
        rows.append(asdict(job) | about | run)
    return rows


def _begin() -> None:
    use_compilation_cache()


def measure(fleets: int, results: Path, minutes: float, workers: int) -> None:
    """Run what is not in `results` yet, for at most so many minutes."""
    end = time.monotonic() + 60 * minutes
    known = {_key(row) for row in read(results)}
    waiting = [[job for job in jobs if _key(asdict(job)) not in known] for jobs in jobs_of(fleets)]
    waiting = [jobs for jobs in waiting if jobs]
    context = multiprocessing.get_context("spawn")
    start = time.monotonic()
    # A process that has compiled many programs runs out of memory maps.
    with context.Pool(workers, _begin, maxtasksperchild=_TASKS) as pool, results.open("a") as out:
        for done, rows in enumerate(pool.imap_unordered(replay, waiting), 1):
            for row in rows:
                out.write(json.dumps(row) + "\n")
            out.flush()
            if done % 20 == 0:
                left = (time.monotonic() - start) / done * (len(waiting) - done)
                print(f"{done} fleets done, about {left / 60:.0f} minutes left", flush=True)
            if time.monotonic() > end:
                return


def read(results: Path) -> list[dict]:
    """The rows so far, one for each job."""
    if not results.exists():
        return []
    rows = (json.loads(line) for line in results.read_text().splitlines())
    return list({_key(row): row for row in rows}.values())


def _key(row: dict) -> tuple:
    return tuple(row[field.name] for field in fields(Job))


def wilson(valid: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    if not count:
        return 0.0, 1.0
    z, p = 1.96, valid / count
    middle, half = p + z**2 / (2 * count), z * np.sqrt(p * (1 - p) / count + (z / 2 / count) ** 2)
    return (middle - half) / (1 + z**2 / count), (middle + half) / (1 + z**2 / count)


def validity(rows: list[dict]) -> str:
    """What became of certificates.

    "right": runs whose recommended allocation is within the tolerance, certified or not, and what
    all lose on average; then valid certificates, in all and by monotony; runs within all bounds;
    runs that give a config a load over an SLO, and by how much at most.
    """
    header = "noise, policy, stated, right, regret, certified, valid, 95 %, monotone, not, bounds"
    header += ", over, by"
    keys = ("noise", "policy", "repeats", "confidence")
    groups = _grouped([row for row in rows if row["best"] > TOLERANCE], *keys)
    return _table(header.split(", "), [_fate(*key, part) for key, part in groups])


def _fate(noise: float, policy: str, repeats: int, stated: float, part: list[dict]) -> list[str]:
    sure = [row for row in part if row["certified"]]
    valid = sum(row["valid"] for row in sure)
    kinds = [[row for row in sure if row["monotone"] == kind] for kind in (True, False)]
    covered = [row["covered"] for row in sure if row["covered"] is not None]
    return [
        _percent(noise),
        _name(noise, policy, repeats),
        f"{stated}",
        _percent(np.mean([row["regret"] <= TOLERANCE + 1e-9 for row in part])),
        f"{np.mean([row['regret'] for row in part]):.3f}",
        f"{len(sure)}/{len(part)}",
        _percent(valid / max(len(sure), 1)),
        "–".join(_percent(end) for end in wilson(valid, len(sure))),
        *(f"{sum(row['valid'] for row in kind)}/{len(kind)}" for kind in kinds),
        _percent(np.mean(covered)) if covered else "",
        _percent(np.mean([row["violations"] > 0 for row in part])),
        _percent(max(row["excess"] for row in part)),
    ]


def costs(rows: list[dict]) -> str:
    """GPU-seconds of sieve over those of the others, mean over mean.

    To a certificate where outcomes are exact, else until the policy stops.
    """
    at = [row for row in rows if row["confidence"] == 0.95 and row["best"] > TOLERANCE]
    mine = {(row["noise"], row["seed"]): _cost(row) for row in at if row["policy"] == "sieve"}
    lines = []
    for (noise, policy, repeats), part in _grouped(at, "noise", "policy", "repeats"):
        both = [row for row in part if policy != "sieve" and (noise, row["seed"]) in mine]
        if not both:
            continue
        pairs = np.array([(mine[noise, row["seed"]], _cost(row)) for row in both])
        picks = np.random.default_rng(0).integers(0, len(pairs), (2000, len(pairs)))
        means = pairs[picks].mean(axis=1)
        low, high = np.percentile(means[:, 0] / means[:, 1], [2.5, 97.5])
        ratio = pairs[:, 0].mean() / pairs[:, 1].mean()
        name = _name(noise, policy, repeats)
        interval = f"{low:.3f}–{high:.3f}"
        lines.append([_percent(noise), name, f"{len(pairs)}", f"{ratio:.3f}", interval])
    return _table(["noise", "sieve over", "fleets", "ratio", "95 % interval"], lines)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _name(noise: float, policy: str, repeats: int) -> str:
    return f"{policy} × {repeats}" if noise and policy == "bisect" else policy


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _cost(row: dict) -> float:
    """GPU-seconds; of an exact run without a certificate the whole grid."""
    return row["spent"] if row["noise"] else row["gpu_seconds_to_certificate"] or row["grid"]


def plot(rows: list[dict], path: Path) -> None:
    """Validity and coverage against the stated confidence."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([0.75, 1], [0.75, 1], color="grey", lw=1, label="as stated")
    exact = [r for r in rows if not r["noise"] and r["certified"] and r["best"] > TOLERANCE]
    for policy, part in _grouped([r for r in exact if r["covered"] is not None], "policy"):
        by = [(c, p) for (c,), p in _grouped(part, "confidence")]
        if len(by) < 2:
            continue
        x = [c for c, _ in by]
        y = [np.mean([r["valid"] for r in p]) for _, p in by]
        ends = np.array([wilson(sum(r["valid"] for r in p), len(p)) for _, p in by]).T
        error = np.abs(ends - y)
        line = axes.errorbar(x, y, error, marker="o", capsize=3, label=f"{policy[0]}: certificates")
        bounds = [np.mean([r["covered"] for r in p]) for _, p in by]
        axes.plot(x, bounds, ls="--", color=line[0].get_color(), label=f"{policy[0]}: all bounds")
    axes.set(xlabel="stated confidence", ylabel="share that holds")
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def _grouped(rows: Iterable[dict], *keys: str) -> list[tuple[tuple, list[dict]]]:
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return sorted(groups.items())


def main() -> None:
    """Run the study, or report what it found so far."""
    parser = argparse.ArgumentParser(description="Certificates on random fleets: run or report.")
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--results", type=Path, default=Path("calibration.jsonl"))
    parser.add_argument("--fleets", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=170)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="where the plot goes")
    args = parser.parse_args()
    if args.command == "run":
        measure(args.fleets, args.results, args.minutes, args.workers)
        return
    rows = read(args.results)
    print(validity(rows), costs(rows), sep="\n\n")
    if args.folder:
        args.folder.mkdir(parents=True, exist_ok=True)
        plot(rows, args.folder / "reliability.svg")


if __name__ == "__main__":
    main()
