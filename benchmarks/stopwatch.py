"""Named actions in a process of their own, timed one at a time on request.

The process may belong to another interpreter, has a limit of memory, and reports its peak. That
two processes take turns lets whatever else the machine does disturb both alike.
"""

import json
import resource
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

# Seconds that a process may take to get ready.
_STARTING = 120.0
# What is not timed, such as a posterior that is asked anew, and then the call that is.
Action = Callable[[], Callable[[], float | None]]


def serve(actions: Mapping[str, Action], absent: Sequence[str] = ()) -> None:
    """Answer each line of stdin, the name of an action, with a line of JSON on stdout.

    `absent` are sentences on what this process lacks. A number that an action returns goes into
    its answer, so that two ways of computing the same can be compared.
    """
    _say({"names": list(actions), "absent": list(absent)})
    for line in sys.stdin:
        name = line.strip()
        try:
            call = actions[name]()
            start = time.perf_counter()
            number = call()
            answer = {"seconds": time.perf_counter() - start, "number": number}
        except (MemoryError, RuntimeError, ValueError) as problem:
            said = str(problem) or type(problem).__name__
            answer = {"error": said.splitlines()[0][:100]}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        _say(answer | {"peak": peak})


def _say(answer: dict) -> None:
    print(json.dumps(answer), flush=True)


@dataclass
class Timings:
    """Seconds of one action.

    Attributes:
        seconds: the first call, which compiles, then the later ones.
        error: why there are no more.
        number: what the action returned.
    """

    seconds: list[float] = field(default_factory=list)
    error: str | None = None
    number: float | None = None

    @property
    def median(self) -> float | None:
        """Of the later calls, else the first, or None."""
        return statistics.median(self.seconds[1:] or self.seconds) if self.seconds else None

    @property
    def first(self) -> float | None:
        """By how much the first call took longer; None where there is no other."""
        if len(self.seconds) < 2:
            return None
        return max(self.seconds[0] - statistics.median(self.seconds[1:]), 0.0)


class Worker:
    """A process that runs `serve`; use it as a context, which ends it.

    An action that takes too long or too much memory ends the process: the others go on in another.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        memory: int,
        patience: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; `memory` in bytes, `patience` in seconds is what an action may take in all."""
        self._command, self._environment = command, environment
        self._memory, self._patience = memory, patience
        told = self._start()
        self.timings = {name: Timings() for name in told.get("names", [])}
        self.absent: list[str] = told.get("absent", [])
        if "error" in told:
            self.absent = [f"{command[0]} cannot run {command[1]}: {told['error']}"]
        self.peak = 0

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def time(self, name: str) -> None:
        """One more call of an action, unless one failed or its time is spent."""
        found = self.timings[name]
        left = self._patience - sum(found.seconds)
        if found.error or (found.seconds and left < found.seconds[-1]):
            return
        if self._process.poll() is not None:
            self._end()
            self._start()
        if found.seconds and name not in self._compiled:
            self._answer(name)
        told = self._answer(name)
        self.peak = max(self.peak, told.get("peak", 0))
        found.error = told.get("error")
        if "seconds" in told:
            found.seconds.append(told["seconds"])
            found.number = told["number"]

    def _start(self) -> dict:
        """A process, and what it says of itself."""
        limited = ["sh", "-c", f'ulimit -d {self._memory >> 10} && exec "$0" "$@"']
        self._process = subprocess.Popen(
            [*limited, *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=self._environment,
        )
        assert self._process.stdin is not None  # as asked for
        assert self._process.stdout is not None
        self._requests, self._answers, self._unread = self._process.stdin, self._process.stdout, b""
        self._compiled: set[str] = set()
        return self._heard(_STARTING)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._answers.close()

    def _answer(self, name: str) -> dict:
        self._compiled.add(name)
        self._requests.write(f"{name}\n".encode())
        return self._heard(self._patience)

    def _heard(self, seconds: float) -> dict:
        """The next answer; the process is ended when there is none in time."""
        until = time.monotonic() + seconds
        while b"\n" not in self._unread:
            left = max(until - time.monotonic(), 0)
            if not select.select([self._answers], [], [], left)[0]:
                self._process.kill()
                self._process.wait()
                return {"error": f"more than {seconds:g} s"}
            read = self._answers.read(1 << 16)
            if not read:
                return {"error": f"ended with {self._process.wait()}"}
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)
