"""Continuous batching at the level of tokens, as in vLLM: no clock, no input or output."""

from dataclasses import dataclass, field

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.simulated.policy import FirstComeFirstServed, Policy
from fleetsieve_measure.simulated.sequence import Sequence


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What bounds a batch.

    Attributes:
        kv_tokens: room in the KV cache; only whole blocks of `block_size` tokens count.
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: tokens per step; longer prompts are prefilled in chunks.
    """

    kv_tokens: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_size: int = 16

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is less than max_num_seqs "
                f"{self.max_num_seqs}; each running sequence needs one token per step"
            )

    @property
    def blocks(self) -> int:
        """Whole blocks of the KV cache."""
        return self.kv_tokens // self.block_size

    @property
    def capacity(self) -> int:
        """Tokens in them."""
        return self.blocks * self.block_size


@dataclass(slots=True)
class Step:
    """The work of one step.

    Attributes:
        tokens, pairs, kv_tokens: the arguments of `StepTime`.
        emitting: sequences that get a token at its end.
        first: those of them whose first one it is.
    """

    tokens: int = 0
    pairs: int = 0
    kv_tokens: int = 0
    emitting: list[Sequence] = field(default_factory=list)
    first: list[Sequence] = field(default_factory=list)


class Batching:
    """Waiting and running sequences, step by step: `plan`, let the time pass, `complete`.

    Running sequences go first, each with all tokens that are not in the KV cache yet: one in
    decode, the rest of the prompt in prefill. Then waiting ones are admitted, if no sequence was
    preempted for want of blocks. A preempted sequence loses its KV cache and recomputes it, output
    tokens included. The step that computes the last known token emits the next one.
    """

    def __init__(self, limits: Limits, policy: Policy | None = None) -> None:
        self.limits = limits
        self.waiting: Policy = FirstComeFirstServed() if policy is None else policy
        self.running: list[Sequence] = []
        self.free_blocks = limits.blocks
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait.

        Raises:
            InputError: it has no tokens, or could never finish.
        """
        if not 0 < sequence.prompt_tokens < sequence.total_tokens:
            output = sequence.total_tokens - sequence.prompt_tokens
            raise InputError(
                f"a request has {sequence.prompt_tokens} prompt tokens and {output} output "
                "tokens; give at least one of each"
            )
        capacity = self.limits.capacity
        # The last token is emitted, never computed.
        if sequence.total_tokens - 1 > capacity:
            raise InputError(
                f"a request of {sequence.total_tokens} tokens does not fit in the KV cache of "
                f"{capacity} tokens; shorten it or use more GPUs"
            )
        self.waiting.add(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence that has been added and is not finished; only between two steps."""
        if sequence.room:
            self._release(sequence)
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def plan(self) -> Step | None:
        """The next step; None when there is nothing to do."""
        step = Step()
        budget = self.limits.max_num_batched_tokens
        preemptions = self.preemptions
        running = self.running
        index = 0
        while index < len(running) and budget:
            sequence = running[index]
            tokens = sequence.known - sequence.computed
            if tokens > budget:
                tokens = budget
            end = sequence.computed + tokens
            if end > sequence.room and not self._make_room(sequence, end, index):
                continue
            self._schedule(step, sequence, tokens)
            budget -= tokens
            index += 1
        if preemptions == self.preemptions:
            self._admit(step, budget)
        return step if step.tokens else None

    def complete(self, step: Step) -> list[Sequence]:
        """Emit the tokens of the planned step; the sequences that it finished."""
        finished = []
        for sequence in step.emitting:
            sequence.known += 1
            if sequence.known == sequence.total_tokens:
                self._release(sequence)
                finished.append(sequence)
        if finished:
            self.running = [sequence for sequence in self.running if sequence.room]
        return finished

    def _admit(self, step: Step, budget: int) -> None:
        limits, waiting, running = self.limits, self.waiting, self.running
        while budget and len(waiting) and len(running) < limits.max_num_seqs:
            sequence = waiting.first()
            # The whole prompt must fit now, although it gets its blocks chunk by chunk: otherwise
            # a long prompt would be admitted, preempted and recomputed again and again.
            if -(-sequence.known // limits.block_size) > self.free_blocks:
                return
            waiting.remove(sequence)
            running.append(sequence)
            tokens = min(sequence.known, budget)
            self._grow(sequence, tokens)
            self._schedule(step, sequence, tokens)
            budget -= tokens

    def _schedule(self, step: Step, sequence: Sequence, tokens: int) -> None:
        end = sequence.computed + tokens
        step.tokens += tokens
        step.pairs += tokens * sequence.computed + tokens * (tokens + 1) // 2
        step.kv_tokens += end
        sequence.computed = end
        if end == sequence.known:
            step.emitting.append(sequence)
            if end == sequence.prompt_tokens:
                step.first.append(sequence)

    def _make_room(self, sequence: Sequence, end: int, index: int) -> bool:
        """Whether it holds blocks for `end` tokens now; if not, it was preempted itself."""
        while not self._grow(sequence, end):
            victim = self.waiting.victim(self.running[index:])
            self.running.remove(victim)
            self._release(victim)
            victim.computed = 0
            self.waiting.put_back(victim)
            self.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _grow(self, sequence: Sequence, end: int) -> bool:
        block_size = self.limits.block_size
        blocks = -(-(end - sequence.room) // block_size)
        if blocks > self.free_blocks:
            return False
        self.free_blocks -= blocks
        sequence.room += blocks * block_size
        return True

    def _release(self, sequence: Sequence) -> None:
        self.free_blocks += sequence.room // self.limits.block_size
        sequence.room = 0
