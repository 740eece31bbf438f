"""NVIDIA Dynamo: a DynamoGraphDeployment for each workload and config.

A graph's front end spreads requests over all of its workers alike, so that replicas of different
capacity, or of different workloads, cannot share one.
"""

from collections.abc import Iterator
from typing import Any

from fleetsieve.errors import InputError
from fleetsieve.export import pod
from fleetsieve.export.deployment import Deployment, Group
from fleetsieve.export.document import literal
from fleetsieve_measure.engines.arguments import flags

# Dynamo's workers take the arguments of these engines, and start them in their own process.
_WORKERS = {"vllm": "--model", "sglang": "--model-path"}


def manifests(deployment: Deployment, images: dict[str, str]) -> Iterator[dict[str, Any]]:
    """All graphs; `images` by engine kind.

    Raises:
        InputError: an engine whose arguments Dynamo's workers do not take.
    """
    for group in deployment.groups:
        if group.engine not in _WORKERS:
            raise InputError(
                f"config {group.config!r} runs {group.engine}, whose arguments Dynamo's workers do "
                "not take as they were measured; use --to kubernetes or compose"
            )
        yield _graph(group, images[group.engine])


def _graph(group: Group, image: str) -> dict[str, Any]:
    metadata = {"labels": pod.labels(group), "annotations": group.about}
    front = {"name": "main", "image": image, "env": pod.environment(group)}
    components = [
        _component("Frontend", "frontend", 1, front, group),
        _component("Worker", "worker", group.replicas, _worker(group, image), group),
    ]
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": group.name, **metadata},
        "spec": {"backendFramework": group.engine, "components": components},
    }


def _component(
    name: str, kind: str, replicas: int, container: dict[str, Any], group: Group
) -> dict[str, Any]:
    # The operator gives the pod its shared memory.
    volumes = [volume for volume in pod.storage(group)[0] if volume["name"] != "shm"]
    spec: dict[str, Any] = {"containers": [container], **({"volumes": volumes} if volumes else {})}
    if volumes:
        mounts = [mount for mount in pod.storage(group)[1] if mount["name"] != "shm"]
        spec["containers"] = [{**container, "volumeMounts": mounts}]
    return {"name": name, "type": kind, "replicas": replicas, "podTemplate": {"spec": spec}}


def _worker(group: Group, image: str) -> dict[str, Any]:
    args = [_WORKERS[group.engine], group.launch.model, *flags(group.launch.args)]
    return {
        "name": "main",
        "image": image,
        "command": ["python3", "-m", f"dynamo.{group.engine}"],
        "args": [literal(part) for part in args],
        "env": pod.environment(group),
        "resources": {"limits": {pod.GPU: str(group.gpus)}},
    }
