"""The pacer: lets the batching core run in real time, on a schedule of absolute times."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from fleetsieve_measure.simulated.batching import Batching, Step
from fleetsieve_measure.simulated.sequence import Sequence
from fleetsieve_measure.simulated.step_time import StepTime


class Generation:
    """The output of one request, token by token as it comes out of the engine."""

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self._tokens: asyncio.Queue[None] = asyncio.Queue()

    async def token(self) -> None:
        """Wait for the next token."""
        await self._tokens.get()

    def emit(self) -> None:
        """A token came out."""
        self._tokens.put_nowait(None)


class Pacer:
    """Runs steps one after another, each for its step time.

    A step ends its own duration after the end of the one before, however late the process woke up:
    lateness does not add up, it is caught up with. After an idle time the schedule starts anew.

    Attributes:
        batching: the state of the engine.
        prompt_tokens, generation_tokens: how many were submitted, and came out, so far.
        finished, aborted: how many requests ended so.
    """

    def __init__(
        self,
        batching: Batching,
        step_time: StepTime,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.batching = batching
        self.prompt_tokens = self.generation_tokens = 0
        self.finished = self.aborted = 0
        self._step_time = step_time
        self._clock = clock
        self._sleep = sleep
        self._generations: dict[int, Generation] = {}
        self._aborted: list[Sequence] = []
        self._submitted = asyncio.Event()
        self._next_key = 0

    def submit(self, prompt_tokens: int, output_tokens: int) -> Generation:
        """Hand a request to the engine.

        Raises:
            InputError: it could never be served.
        """
        sequence = Sequence(self._next_key, prompt_tokens, output_tokens)
        self.batching.add(sequence)
        generation = self._generations[sequence.key] = Generation(sequence)
        self._next_key += 1
        self.prompt_tokens += prompt_tokens
        self._submitted.set()
        return generation

    def abort(self, generation: Generation) -> None:
        """Drop a request unless it is finished; its KV cache is free from the next step on."""
        if self._generations.pop(generation.sequence.key, None) is not None:
            self._aborted.append(generation.sequence)
            self.aborted += 1

    async def run(self) -> None:
        """Serve until cancelled."""
        end = self._clock()
        while True:
            self._drop_aborted()
            step = self.batching.plan()
            if step is None:
                self._submitted.clear()
                await self._submitted.wait()
                end = self._clock()
                continue
            end += self._step_time(step.tokens, step.pairs, step.kv_tokens)
            # Even when late, so that requests and disconnects get their turn.
            await self._sleep(max(0.0, end - self._clock()))
            self._emit(step)

    def _emit(self, step: Step) -> None:
        self.generation_tokens += len(step.emitting)
        for sequence in step.emitting:
            generation = self._generations.get(sequence.key)
            if generation is not None:
                generation.emit()
        for sequence in self.batching.complete(step):
            if self._generations.pop(sequence.key, None) is not None:
                self.finished += 1

    def _drop_aborted(self) -> None:
        for sequence in self._aborted:
            if not sequence.finished:
                self.batching.abort(sequence)
        self._aborted.clear()
