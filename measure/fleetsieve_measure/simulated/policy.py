"""Scheduling policies: who is admitted next, and who gives way when the KV cache is full."""

from collections import deque
from collections.abc import Sequence as Ordered
from typing import Protocol

from fleetsieve_measure.simulated.sequence import Sequence


class Policy(Protocol):
    """The waiting queue, in the order in which it is served."""

    def __len__(self) -> int:
        """How many sequences wait."""
        ...

    def add(self, sequence: Sequence) -> None:
        """A new sequence waits."""
        ...

    def put_back(self, sequence: Sequence) -> None:
        """A preempted sequence waits again."""
        ...

    def first(self) -> Sequence:
        """The sequence to admit next; one waits."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """A sequence waits no longer: admitted, or aborted."""
        ...

    def victim(self, candidates: Ordered[Sequence]) -> Sequence:
        """Which of the running sequences that have not been scheduled in this step to preempt."""
        ...


class FirstComeFirstServed:
    """Arrival order; the latest admitted is preempted and waits before all others."""

    def __init__(self) -> None:
        self._waiting: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Wait behind all others."""
        self._waiting.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Wait before all others."""
        self._waiting.appendleft(sequence)

    def first(self) -> Sequence:
        """The one that has waited longest."""
        return self._waiting[0]

    def remove(self, sequence: Sequence) -> None:
        """Take it out, fast where it is the first."""
        self._waiting.remove(sequence)

    def victim(self, candidates: Ordered[Sequence]) -> Sequence:
        """The latest admitted."""
        return candidates[-1]
