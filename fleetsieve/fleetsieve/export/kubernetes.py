"""Kubernetes: a Deployment and a Service for each workload and config."""

from collections.abc import Iterator
from typing import Any

from fleetsieve.export import pod
from fleetsieve.export.deployment import Deployment, Group
from fleetsieve.export.document import literal
from fleetsieve.export.nodes import PORT
from fleetsieve.export.probe import probes

_PORT = {"name": "http", "containerPort": PORT}


def manifests(deployment: Deployment, images: dict[str, str]) -> Iterator[dict[str, Any]]:
    """All manifests; `images` by engine kind."""
    for group in deployment.groups:
        yield _deployment(group, images[group.engine], deployment.patience)
        yield _service(group)


def _metadata(group: Group) -> dict[str, Any]:
    return {"name": group.name, "labels": pod.labels(group), "annotations": group.about}


def _deployment(group: Group, image: str, patience: float) -> dict[str, Any]:
    volumes, mounts = pod.storage(group)
    command = [literal(part) for part in group.command(PORT, contained=True)]
    container = {
        "name": "engine",
        "image": image,
        "command": command,
        "env": pod.environment(group),
        "ports": [_PORT],
        "resources": {"limits": {pod.GPU: group.gpus}},
        **probes(PORT, patience),
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(group),
        "spec": {
            "replicas": group.replicas,
            # No GPU is left for a replica beyond them.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "progressDeadlineSeconds": 7200,
            "selector": {"matchLabels": pod.labels(group)},
            "template": {
                "metadata": {"labels": pod.labels(group), "annotations": group.about},
                "spec": {"containers": [container], "volumes": volumes},
            },
        },
    }


def _service(group: Group) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(group),
        "spec": {
            "selector": pod.labels(group),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
        },
    }
