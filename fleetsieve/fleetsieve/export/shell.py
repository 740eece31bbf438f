"""A script that launches the replicas of one node, as they were measured."""

import shlex
from collections.abc import Iterator, Sequence

from fleetsieve.export.document import comments
from fleetsieve.export.nodes import Replica
from fleetsieve_measure.engines import engine_of


def script(nodes: Sequence[Sequence[Replica]], head: Sequence[str]) -> str:
    """The script; its argument is the node, which may be left out where there is one."""
    last = len(nodes)
    nodes_are = f"NODE from 1 to {last}" if last > 1 else "NODE 1"
    secrets = sorted({name for node in nodes for each in node for name in each.group.secrets})
    lines = [
        "#!/bin/sh",
        comments([*head, f"On each node: sh THIS_FILE NODE, with {nodes_are}"]).rstrip("\n"),
        "set -eu",
        *(f': "${{{name}:?set it to its secret}}"; export {name}' for name in secrets),
        "cache=${XDG_CACHE_HOME:-$HOME/.cache}/fleetsieve",
        "pids=",
        "trap 'kill $pids 2>/dev/null' INT TERM",
        'case "${1-}" in' if last > 1 else 'case "${1-1}" in',
        *(line for node in nodes for line in _node(node)),
        f'*) echo "which node? give {nodes_are}" >&2; exit 2 ;;',
        "esac",
        "wait",
    ]
    return "\n".join(lines) + "\n"


def _node(replicas: Sequence[Replica]) -> Iterator[str]:
    yield f"{replicas[0].node})"
    for replica in replicas:
        yield f"    {comments([_title(replica)])}    {_command(replica)} &"
        yield '    pids="$pids $!"'
    yield "    ;;"


def _title(replica: Replica) -> str:
    return f"replica {replica.number} of {replica.group.replicas}: {replica.group.title}"


def _command(replica: Replica) -> str:
    group = replica.group
    # Servers that share a folder of compiled code spoil it for one another.
    caches = [
        f'{name}="$cache"/{replica.name}/{part}'
        for name, part in engine_of(group.launch).caches.items()
    ]
    devices = ",".join(map(str, replica.gpus))
    variables = [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        f"CUDA_VISIBLE_DEVICES={devices}",
        *caches,
        *(shlex.quote(f"{name}={value}") for name, value in group.env.items()),
    ]
    command = shlex.join(group.command(replica.port, contained=False))
    return f"env {' '.join(variables)} {command}"
