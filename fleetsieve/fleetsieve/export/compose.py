"""Docker Compose: a file for each node, a service for each replica."""

from collections.abc import Sequence
from typing import Any

from fleetsieve.export.document import literal
from fleetsieve.export.nodes import PORT, Replica
from fleetsieve.export.probe import healthcheck


def project(replicas: Sequence[Replica], images: dict[str, str], patience: float) -> dict[str, Any]:
    """The Compose file of one node; `images` by engine kind."""
    return {
        "name": f"fleetsieve-node-{replicas[0].node}",
        "services": {
            replica.name: _service(replica, images[replica.group.engine], patience)
            for replica in replicas
        },
    }


def _service(replica: Replica, image: str, patience: float) -> dict[str, Any]:
    group = replica.group
    first, *rest = [literal(part) for part in group.command(PORT, contained=True)]
    devices = {
        "driver": "nvidia",
        "device_ids": [str(gpu) for gpu in replica.gpus],
        "capabilities": ["gpu"],
    }
    check = healthcheck(PORT, patience)
    found = {
        "image": image,
        "labels": {key: literal(value) for key, value in group.about.items()},
        "entrypoint": [first],
        "command": rest,
        "environment": {
            **{name: literal(value) for name, value in group.env.items()},
            **{name: f"${{{name}:?set it to its secret}}" for name in group.secrets},
        },
        "ports": [f"{replica.port}:{PORT}"],
        "ipc": "host",
        "restart": "unless-stopped",
        "healthcheck": {**check, "test": [literal(part) for part in check["test"]]},
        "deploy": {"resources": {"reservations": {"devices": [devices]}}},
    }
    if group.folder is not None:
        folder = literal(group.folder)
        found["volumes"] = [{"type": "bind", "source": folder, "target": folder, "read_only": True}]
    return found
