"""Replicas on nodes: which GPUs each takes, for a picture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Block:
    """A replica on a node: its first GPU, from 0, and how many it takes."""

    workload: str
    config: str
    first: int
    gpus: int


@dataclass(frozen=True)
class Node:
    """A node of so many GPUs, and the replicas on it."""

    gpus: int
    blocks: tuple[Block, ...]


def nodes(
    allocation: Sequence[Mapping[str, Any]], gpus: int, per_node: int
) -> list[tuple[int, Node]]:
    """The nodes of a fleet, like ones counted together, in the order in which they fill up.

    Replicas go side by side, large ones first. Sizes divide one another and a node, so that none
    lies across two.
    """
    counts: dict[Node, int] = {}
    blocks: list[Block] = []
    start = 0
    for workload, config, first, size in _places(allocation, per_node):
        if first >= start + per_node:
            _count(counts, Node(per_node, tuple(blocks)))
            start, blocks = start + per_node, []
        blocks.append(Block(workload, config, first - start, size))
    if blocks:
        _count(counts, Node(min(per_node, gpus - start), tuple(blocks)))
        start += per_node
    whole, rest = divmod(max(gpus - start, 0), per_node)
    _count(counts, Node(per_node, ()), whole)
    _count(counts, Node(rest, ()), min(rest, 1))
    return [(count, node) for node, count in counts.items()]


def _places(
    allocation: Sequence[Mapping[str, Any]], per_node: int
) -> Iterator[tuple[str, str, int, int]]:
    """Workload, config, first GPU of the fleet and size of each replica."""
    at = 0
    for row in sorted(allocation, key=lambda row: -(row["gpus"] // row["replicas"])):
        size = row["gpus"] // row["replicas"]
        for _ in range(row["replicas"]):
            if at % per_node + size > per_node:
                at += per_node - at % per_node
            yield row["workload"], row["config"], at, size
            at += size


def _count(counts: dict[Node, int], node: Node, times: int = 1) -> None:
    if times:
        counts[node] = counts.get(node, 0) + times
