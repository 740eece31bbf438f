"""Which GPUs of which node each replica gets."""

from collections.abc import Iterator
from dataclasses import dataclass

from fleetsieve.errors import InputError
from fleetsieve.export.deployment import Deployment, Group

PORT = 8000
# More than that would take ports that there are not.
_MOST = 50_000


@dataclass(frozen=True)
class Replica:
    """One replica on a node; `number` counts those of its group from 1, `node` too."""

    group: Group
    number: int
    node: int
    gpus: tuple[int, ...]
    port: int

    @property
    def name(self) -> str:
        """A DNS label that no other replica has."""
        return f"{self.group.name}-{self.number}"


def placed(deployment: Deployment) -> list[list[Replica]]:
    """The replicas of each node, the GPUs of a replica side by side.

    Sizes divide one another and a node, so that large ones first leave no gap that is of no use.

    Raises:
        InputError: there are too many replicas to name them.
    """
    if (many := sum(group.replicas for group in deployment.groups)) > _MOST:
        raise InputError(
            f"the decision has {many} replicas, and this format names each of up to {_MOST}; use "
            "--to kubernetes"
        )
    nodes: list[list[Replica]] = []
    free: list[int] = []
    for group, number in _each(deployment):
        at = next((node for node, left in enumerate(free) if left >= group.gpus), None)
        if at is None:
            at = len(nodes)
            nodes.append([])
            free.append(_size(deployment, at))
        first = _size(deployment, at) - free[at]
        gpus = tuple(range(first, first + group.gpus))
        nodes[at].append(Replica(group, number, at + 1, gpus, PORT + len(nodes[at])))
        free[at] -= group.gpus
    return nodes


def _each(deployment: Deployment) -> Iterator[tuple[Group, int]]:
    for group in deployment.groups:
        for number in range(1, group.replicas + 1):
            yield group, number


def _size(deployment: Deployment, node: int) -> int:
    return min(deployment.per_node, deployment.gpus - node * deployment.per_node)
