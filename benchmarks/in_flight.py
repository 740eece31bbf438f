"""What several cells in flight cost: GPU-seconds and wall-clock to a certificate, beside one.

    python benchmarks/in_flight.py --random 30
    python benchmarks/in_flight.py --fleet FLEET.yaml --fleet OTHER.yaml

`sieve` is replayed in virtual time with 1, 2, 4 and 8 cells in flight. A cell takes its GPU-seconds
over the GPUs of its config; launches cost nothing. Cells that end together are told together, then
every free slot asks, the cells still in flight being pending; a slot stays free while no cell
promises anything if those turn out as expected (`--hasty` fills it). The certificate ends it: what
is in flight then has cost its GPUs up to that moment. A cell in flight is never cut short, also
when a lower level of its column turns out to break.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fleetsieve.belief import Belief, use_compilation_cache
from fleetsieve.inputs import Inputs
from fleetsieve.policies import sieve
from fleetsieve.problem import Problem, Truth
from fleetsieve.random_fleet import random_fleet
from fleetsieve.runs import Runs
from fleetsieve.search import Search

SLOTS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Flight:
    """A replay: what it cost and how long it took, in GPU-seconds and seconds."""

    certified: bool
    gpu_seconds: float
    seconds: float
    told: int


def fly(search: Search, truth: Truth, slots: int, seed: int, *, patient: bool = True) -> Flight:
    """Measure with up to `slots` cells in flight until nothing is left to ask or to know."""
    problem = search.belief.problem
    shuffle = np.random.default_rng(seed).random(problem.exists.size)
    cost = problem.gpu_seconds.ravel()
    gpus = np.broadcast_to(problem.sizes[None, :, None], problem.exists.shape).ravel()
    now, paid, ends = 0.0, 0.0, {}
    while not (search.certified or search.infeasible):
        while len(ends) < slots:
            pick = search.pick(sieve, shuffle, pending=tuple(ends), patient=patient)
            if pick is None:
                break
            ends[pick.index] = now + cost[pick.index] / gpus[pick.index]
        if not ends:
            break
        now = min(ends.values())
        for index in [index for index, end in ends.items() if end == now]:
            del ends[index]
            paid += cost[index]
            search = search.after(Runs.of_truth(truth, np.array([index])))
    paid += sum(cost[index] - (end - now) * gpus[index] for index, end in ends.items())
    return Flight(search.certified, float(paid), float(now), len(search.order))


def main() -> None:
    """Fly over the fleets and print means relative to one cell in flight, with 95 % intervals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fleet", action="append", type=Path, default=[], help="with a grid")
    parser.add_argument("--random", type=int, default=0, help="how many random fleets")
    parser.add_argument("--first", type=int, default=0, help="seed of the first random fleet")
    parser.add_argument("--hasty", action="store_true", help="never wait, always fill every slot")
    arguments = parser.parse_args()
    use_compilation_cache()
    given = [(str(path), Inputs.read(path)) for path in arguments.fleet]
    cases = [(name, inputs.fleet, inputs.needed_grid()) for name, inputs in given]
    for seed in range(arguments.first, arguments.first + arguments.random):
        drawn = random_fleet(seed)
        cases.append((f"random {seed}", drawn.fleet, drawn.grid))
    rows = []
    for seed, (name, fleet, grid) in enumerate(cases):
        problem = Problem.build(fleet, grid)
        belief = Belief(problem, confidence=fleet.decision.confidence)
        start, truth = Search.start(belief, fleet.decision.tolerance), problem.truth(grid)
        flights = [fly(start, truth, n, seed, patient=not arguments.hasty) for n in SLOTS]
        whole = problem.gpu_seconds.sum()
        text = [f"{f.gpu_seconds / whole:.3f} {f.seconds:.0f} s {f.told}" for f in flights]
        print(f"{name}: {'; '.join(text)}", flush=True)
        if all(flight.certified and flight.seconds > 0 for flight in flights):
            rows.append([(flight.gpu_seconds, flight.seconds) for flight in flights])
    print(f"{len(rows)} of {len(cases)} fleets certified every time; beside one in flight:")
    for slots, ratios in zip(SLOTS, _beside_one(np.array(rows)), strict=True):
        print(f"{slots} in flight: {_interval(ratios[0])} GPU-seconds, {_interval(ratios[1])} time")


def _beside_one(rows: np.ndarray) -> np.ndarray:
    """Ratios by slots and by GPU-seconds or time, over fleets."""
    return np.moveaxis(rows / rows[:, :1], 0, -1)


def _interval(ratios: np.ndarray) -> str:
    picks = np.random.default_rng(0).integers(0, ratios.size, (2000, ratios.size))
    low, high = np.percentile(ratios[picks].mean(axis=1), [2.5, 97.5])
    return f"{ratios.mean():.2f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    main()
