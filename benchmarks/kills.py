"""Whether kill -9 at any moment loses anything: runs on simulated servers, killed and resumed.

    python benchmarks/kills.py --kills 50

A run is killed at a moment drawn uniformly over half of what an unbroken run takes from the opening
of its study, so that most kills find it at work, and resumed, over and over; once it gets to its
decision a new study begins. After every kill the whole journal as it was at the kill before has to
be the beginning of the journal as it is now. At each decision no cell may have been told twice, no
server may be left, and deciding again from the journal alone has to give the decision that the
resumed run printed, number by number.

Measured latencies are never the same twice, so that an unbroken run is no exact oracle: its
allocation is printed beside that of every study, with how many agree. In this fleet each level is
far from its SLO, on one side or the other, and a difference would need an explanation.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from fleetsieve.decide import decide
from fleetsieve.errors import InputError
from fleetsieve.events import Event, Told
from fleetsieve.inputs import Inputs
from fleetsieve.study import Study

FLEET = """\
fleet: {gpus: 8}
decision: {tolerance: 0.01}
engine: {kind: simulated, model: llama-3.1-8b, args: {max-num-seqs: 4, gpu: l40s}}
configs:
  - {name: tp1, gpus: 1}
  - {name: tp2, gpus: 2}
workloads:
  - name: chat
    demand: 200
    slo: {e2e_p50: 3}
    requests: {prompt_tokens: 50, output_tokens: 10}
    arrivals: constant
    loads: [2, 4, 8]
  - name: code
    demand: 80
    slo: {e2e_p50: 3}
    requests: {prompt_tokens: 200, output_tokens: 20}
    arrivals: constant
    loads: [1, 2, 4]
measure: {gpus: 2, parallel: 1, seconds: 1.2, warmup_seconds: 0.2, launch_seconds: 1}
"""
# How busy this machine is must not spoil runs: that is another matter than kills.
RUN = (
    "import sys, fleetsieve_measure.outcome as outcome; outcome._MOST_LATE = 1e3; "
    "from fleetsieve.cli import main; sys.exit(main())"
)
ROOTS = [str(Path(__file__).parents[1] / name) for name in ("fleetsieve", "kernels", "measure")]


@dataclass
class Run:
    """A study in a folder of its own."""

    folder: Path
    journal: list[Event] = field(default_factory=list)
    kills: int = 0

    def start(self) -> subprocess.Popen[bytes]:
        self.folder.mkdir(exist_ok=True)
        self.fleet.write_text(FLEET)
        path = os.pathsep.join([*ROOTS, os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [sys.executable, "-c", RUN, "run", str(self.fleet), "--json", str(self.out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )

    @property
    def fleet(self) -> Path:
        return self.folder / "kills.yaml"

    @property
    def opened(self) -> bool:
        """Whether a run has its study open."""
        return (self.folder / "kills.study.db.lock").exists()

    @property
    def out(self) -> Path:
        return self.folder / "decision.json"

    def events(self) -> list[Event]:
        try:
            with Study.open_read_only(self.folder / "kills.study.db") as study:
                return study.events()
        except InputError:  # killed before it was created
            return []

    def servers(self) -> list[int]:
        """Processes that run in its folder, as servers do."""
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and (process / "cwd").readlink().is_relative_to(
                    self.folder
                ):
                    found.append(int(process.name))
        return found

    def check_kept(self) -> None:
        """The journal begins with all that it said before."""
        now = self.events()
        if now[: len(self.journal)] != self.journal:
            raise AssertionError(f"{self.folder}: the journal lost or changed what it said")
        self.journal = now

    def check_decided(self) -> list[str]:
        """What is wrong with the study now that it has its decision."""
        self.check_kept()
        cells = [event.cell for event in self.journal if isinstance(event, Told)]
        inputs = Inputs.read(self.fleet, None).checked()
        again = decide(inputs, self.journal, 0).to_dict()
        first = json.loads(self.out.read_text())
        # These say how a command was ended, not what it decided.
        apart = {"stop_reason", "notes"}
        same = all(again[k] == value for k, value in first.items() if k not in apart)
        wrong = {
            "a cell was told twice": len(set(cells)) < len(cells),
            "the journal decides otherwise": not same,
            "a server was left": bool(self.servers()),
        }
        return [what for what, is_so in wrong.items() if is_so]

    def allocation(self) -> list[tuple[str, str, int]]:
        decision = json.loads(self.out.read_text())
        return sorted((a["workload"], a["config"], a["replicas"]) for a in decision["allocation"])


def unbroken(run: Run) -> float:
    """The seconds that a run takes which nobody kills, once its study is open."""
    process = run.start()
    until_opened(run, process)
    begin = time.monotonic()
    code = process.wait()
    if code not in (0, 3):
        raise AssertionError(f"the unbroken run ended with {code}")
    return time.monotonic() - begin


def until_opened(run: Run, process: subprocess.Popen[bytes]) -> None:
    while not run.opened and process.poll() is None:
        time.sleep(0.01)


def kill(run: Run, seconds: float) -> bool:
    """Kill the run after `seconds`; False where it had come to its decision before."""
    (run.folder / "kills.study.db.lock").unlink(missing_ok=True)  # of the run that was killed
    process = run.start()
    until_opened(run, process)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        run.kills += 1
        run.check_kept()
        return True
    if code not in (0, 3):
        raise AssertionError(f"a resumed run ended with {code}")
    return False


def end(run: Run) -> None:
    """End what a run left that no resume ended, so that this script leaves nothing."""
    for pid in run.servers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Kill, resume, check and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as root:
        oracle = Run(Path(root) / "unbroken")
        span = unbroken(oracle)
        wrong = oracle.check_decided()
        print(
            f"unbroken: {span:.1f} s, {len(oracle.journal)} events, {oracle.allocation()}, {wrong}"
        )
        kills, left, studies = 0, 0, []
        run = Run(Path(root) / "0")
        while kills < arguments.kills or run.kills:
            seconds = dice.uniform(0, span / 2) if kills < arguments.kills else 600.0
            if kill(run, seconds):
                kills += 1
                left += len(run.servers())
                told = sum(isinstance(event, Told) for event in run.journal)
                print(
                    f"kill {kills} after {seconds:.1f} s in study {run.folder.name}: {told} told, "
                    f"{len(run.journal)} events kept, {len(run.servers())} servers left",
                    flush=True,
                )
                continue
            wrong = run.check_decided()
            studies.append((run.allocation() == oracle.allocation(), wrong))
            print(
                f"study {run.folder.name} decided after {run.kills} kills: {run.allocation()}, "
                f"{', '.join(wrong) or 'nothing wrong'}",
                flush=True,
            )
            end(run)
            run = Run(Path(root) / str(len(studies)))
    agree = sum(same for same, _ in studies)
    bad = sum(bool(wrong) for _, wrong in studies)
    print(
        f"{kills} kills in {len(studies)} studies left {left} servers to the next run; "
        f"{bad} studies have something wrong; {agree} of {len(studies)} allocate as the unbroken "
        "run did, each on measurements of its own"
    )


if __name__ == "__main__":
    main()
