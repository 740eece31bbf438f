"""llm-d: values of the llm-d-modelservice chart, a release for each workload and config."""

from typing import Any

from fleetsieve.errors import InputError
from fleetsieve.export import pod
from fleetsieve.export.deployment import Group
from fleetsieve.export.document import literal
from fleetsieve.export.nodes import PORT
from fleetsieve.export.probe import probes


def values(group: Group, image: str, patience: float) -> dict[str, Any]:
    """The values of one release.

    Raises:
        InputError: a model or an engine that the chart does not know.
    """
    _check(group)
    first, *rest = [literal(part) for part in group.command(PORT, contained=True)]
    container = {
        "name": "engine",
        "image": image,
        "modelCommand": "custom",
        "command": [first],
        "args": rest,
        "env": [_rendered(variable) for variable in pod.environment(group)],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"limits": {pod.GPU: str(group.gpus)}},
        "extraConfig": probes(PORT, patience),
        "volumeMounts": pod.storage(group)[1],
    }
    return {
        "fullnameOverride": group.name,
        "modelArtifacts": {
            "name": group.launch.model,
            "uri": f"hf://{group.launch.model}",
            "labels": {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": group.name},
        },
        "accelerator": {"type": "nvidia"},
        "routing": {"servicePort": PORT, "proxy": {"enabled": False}},
        "decode": {
            "create": True,
            "replicas": group.replicas,
            # Of which the chart makes the number of GPUs.
            "parallelism": {"tensor": group.gpus},
            "annotations": group.about,
            "podAnnotations": group.about,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "containers": [container],
            "volumes": pod.storage(group)[0],
        },
        "prefill": {"create": False},
    }


def _check(group: Group) -> None:
    if group.engine not in ("vllm", "sglang"):
        raise InputError(
            f"config {group.config!r} runs {group.engine}, which llm-d does not serve; use --to "
            "kubernetes or compose"
        )
    if group.folder is not None:
        raise InputError(
            f"config {group.config!r} has the model {group.folder!r}, and llm-d loads models by "
            "name; use --to kubernetes or compose"
        )


def _rendered(variable: dict[str, Any]) -> dict[str, Any]:
    """A variable that Helm's templates, through which the chart sends it, leave as it is."""
    if "value" not in variable:
        return variable
    return {**variable, "value": variable["value"].replace("{{", "{{`{{`}}")}
