"""Which GPUs are free, handed out in aligned blocks."""

from collections.abc import Sequence

from fleetsieve_measure.errors import InputError


class Slots:
    """`gpus` GPUs, numbered from 0, on nodes of `per_node` each, the last perhaps with fewer.

    A block of n GPUs lies on one node and starts at a multiple of n there, as fast links between
    neighbours want it. Sizes that divide one another, such as powers of two, then never fragment
    more than their own order of coming and going demands.
    """

    def __init__(self, gpus: int, per_node: int = 8) -> None:
        if gpus < 0 or per_node < 1:
            raise InputError(f"{gpus} GPUs, {per_node} per node: give at least 0 and at least 1")
        self._nodes = tuple(
            range(first, min(first + per_node, gpus)) for first in range(0, gpus, per_node)
        )
        self._free = set(range(gpus))

    @property
    def largest(self) -> int:
        """The most GPUs that one block can have."""
        return max((len(node) for node in self._nodes), default=0)

    @property
    def free(self) -> int:
        """How many GPUs are in no block."""
        return len(self._free)

    def take(self, n: int) -> tuple[int, ...] | None:
        """A free block of `n` GPUs, out of as small a free block as there is; None without one.

        Raises:
            InputError: no block has that many GPUs, even when all are free.
        """
        if not 0 <= n <= self.largest:
            raise InputError(
                f"{n} GPUs were asked for, and one node has {self.largest}; ask for at most that"
            )
        if n == 0:
            return ()
        free = [
            (self._around(node, block), block)
            for node in self._nodes
            for block in _blocks(node, n)
            if self._free.issuperset(block)
        ]
        if not free:
            return None
        _, block = min(free, key=lambda one: (one[0], one[1].start))
        self._free.difference_update(block)
        return tuple(block)

    def give(self, block: Sequence[int]) -> None:
        """Take back a block that `take` handed out.

        Raises:
            RuntimeError: some of it was never handed out, or was given back before.
        """
        known = {gpu for node in self._nodes for gpu in node}
        if not known.issuperset(block) or self._free.intersection(block):
            raise RuntimeError(f"GPUs {tuple(block)} are not all in use")
        self._free.update(block)

    def _around(self, node: range, block: range) -> int:
        """The size of the largest free block, n times a power of two, that `block` is part of."""
        size = len(block)
        while (wider := _enclosing(node, block, 2 * size)) and self._free.issuperset(wider):
            size *= 2
        return size


def _blocks(node: range, n: int) -> list[range]:
    return [range(first, first + n) for first in range(node.start, node.stop - n + 1, n)]


def _enclosing(node: range, block: range, size: int) -> range | None:
    first = node.start + (block.start - node.start) // size * size
    return range(first, first + size) if first + size <= node.stop else None
