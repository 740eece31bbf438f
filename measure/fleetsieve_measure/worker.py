"""A run of load in a process of its own, so that nothing else disturbs its clock.

The process is given a pickled `Task` and gives back a pickled `Sample`. The end of its input says
that there is no server any more, or nobody who waits: it ends the run, and gives what it saw.
"""

import asyncio
import os
import pickle
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import fleetsieve_measure
from fleetsieve_measure.client import Client
from fleetsieve_measure.lengths import Lengths
from fleetsieve_measure.load import Load
from fleetsieve_measure.prompts import Words
from fleetsieve_measure.source import Source
from fleetsieve_measure.trial import Rules, Sample, run_trial

_SIZE = struct.Struct("!Q")
# A worker that has nothing to wait for and does not end is killed after so many seconds.
_GRACE = 10.0
_ROOT = str(Path(fleetsieve_measure.__file__).resolve().parents[1])


@dataclass(frozen=True)
class Task:
    """What a worker runs; it can be pickled.

    Attributes:
        url, model, api_key: of the server; the key never appears in a command line.
        words: how prompts of text are counted; None for prompts of token ids.
        stall_seconds: a request that hears nothing for so long has failed.
        seed: of lengths and prompts.
    """

    url: str
    model: str
    api_key: str | None
    lengths: Lengths
    words: Words | None
    load: Load
    rules: Rules
    stall_seconds: float
    seed: tuple[int, ...]


class WorkerKilled(Exception):
    """Something outside, such as the kernel when memory ran out, ended the process."""


async def run_apart(task: Task, gone: asyncio.Event) -> Sample:
    """Run `task` in a process of its own; once `gone` is set, what was seen until then.

    Raises:
        WorkerKilled: a signal ended the process.
        RuntimeError: the process ended without a sample.
    """
    paths = [_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "fleetsieve_measure.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        process_group=0,
    )
    assert process.stdin is not None  # piped above, as is stdout
    assert process.stdout is not None
    reading = asyncio.ensure_future(process.stdout.read())
    ended = asyncio.ensure_future(gone.wait())
    try:
        data = pickle.dumps(task)
        process.stdin.write(_SIZE.pack(len(data)) + data)
        await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
        process.stdin.close()
        result = await asyncio.wait_for(reading, _GRACE)
        # Killing one that is about to end would race with whoever takes its exit code.
        await asyncio.wait_for(process.wait(), _GRACE)
    finally:
        ended.cancel()
        reading.cancel()
        if process.returncode is None:
            process.kill()
        await process.wait()
    code = process.returncode or 0
    if not result and code < 0:
        raise WorkerKilled(f"the process that sends requests was ended by signal {-code}")
    if not result:
        raise RuntimeError(f"the process that sends requests ended with code {code}")
    return pickle.loads(result)  # written by our own child


async def _run(task: Task) -> Sample:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()

    def ended() -> None:
        loop.remove_reader(sys.stdin.fileno())
        gone.set()

    loop.add_reader(sys.stdin.fileno(), ended)  # nothing more is sent: only its end can be read
    source = Source(task.model, task.lengths, task.words, np.random.default_rng(task.seed))
    async with Client(task.url, api_key=task.api_key, stall_seconds=task.stall_seconds) as client:
        return await run_trial(client, source, task.load, task.rules, gone.is_set)


def main() -> None:
    """Read a task from stdin, run it and write the sample to stdout."""
    (size,) = _SIZE.unpack(_read(_SIZE.size))
    sample = asyncio.run(_run(pickle.loads(_read(size))))
    try:
        sys.stdout.buffer.write(pickle.dumps(sample))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)  # nobody waits any more, and an orderly end would try to write again


def _read(size: int) -> bytes:
    """Bytes of stdin without reading ahead, which would hide its end from the event loop."""
    data = b""
    while len(data) < size:
        part = os.read(sys.stdin.fileno(), size - len(data))
        if not part:
            sys.exit("the task ended early")
        data += part
    return data


if __name__ == "__main__":
    main()
