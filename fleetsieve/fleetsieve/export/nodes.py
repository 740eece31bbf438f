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

    Large ones come first, and sizes divide one another and a node: a node that has too little left
    for the next replica has nothing left.

    Raises:
        InputError: there are too many replicas to name them.
    """
    if (many := sum(group.replicas for group in deployment.groups)) > _MOST:
        raise InputError(
            f"the decision has {many} replicas, and this format names each of up to {_MOST}; use "
            "--to kubernetes"
        )
    nodes: list[list[Replica]] = []
    first = deployment.per_node
    for group, number in _each(deployment):
        if first + group.gpus > deployment.per_node:
            nodes.append([])
            first = 0
        gpus = tuple(range(first, first + group.gpus))
        nodes[-1].append(Replica(group, number, len(nodes), gpus, PORT + len(nodes[-1])))
        first += group.gpus
    return nodes


def _each(deployment: Deployment) -> Iterator[tuple[Group, int]]:
    for group in deployment.groups:
        for number in range(1, group.replicas + 1):
            yield group, number
