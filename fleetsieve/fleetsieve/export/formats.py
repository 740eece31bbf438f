"""The formats of an export, and which files each makes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fleetsieve.errors import InputError
from fleetsieve.export import compose, dynamo, kubernetes, llm_d, pod
from fleetsieve.export.deployment import Deployment
from fleetsieve.export.document import written
from fleetsieve.export.nodes import placed
from fleetsieve.export.shell import script

ENGINES = ("vllm", "trtllm", "sglang")
FORMATS = (*ENGINES, "compose", "kubernetes", "dynamo", "llm-d")
Files = dict[str, str]
"""Text by file name."""

# What the engines' projects publish; a study does not know which version it has measured.
_IMAGES = {
    "vllm": "vllm/vllm-openai:latest",
    "sglang": "lmsysorg/sglang:latest",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
}
_DYNAMO_IMAGES = {
    "vllm": "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.3.1",
    "sglang": "nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.3.1",
}


@dataclass(frozen=True)
class Head:
    """Comments at the top of each file, and what of them to warn about."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def comments(self) -> list[str]:
        """All lines, the warnings marked."""
        return [*self.lines, *(f"WARNING: {line}" for line in self.warnings)]


def files(deployment: Deployment, to: str, images: Mapping[str, str], head: Head) -> Files:
    """The files of the format `to`; `images` by engine kind, as far as they are given.

    Raises:
        InputError: the format cannot say what is to run.
    """
    if to in ENGINES:
        return _launches(deployment, to, head.comments)
    known = {**(_DYNAMO_IMAGES if to == "dynamo" else _IMAGES), **images}
    return _MAKERS[to](deployment, known, head.comments)


def unnamed_images(deployment: Deployment, to: str, images: Mapping[str, str]) -> list[str]:
    """Engine kinds whose image is the default of a format that has images."""
    kinds = {group.engine for group in deployment.groups}
    return [] if to in ENGINES else sorted(kinds - set(images))


def replaced_executables(deployment: Deployment, to: str) -> list[str]:
    """Configs whose own executable is that of the image in a format that has images."""
    configs = {group.config for group in deployment.groups if group.launch.command}
    return [] if to in ENGINES else sorted(configs)


def _launches(deployment: Deployment, to: str, head: Sequence[str]) -> Files:
    for group in deployment.groups:
        if group.engine != to:
            raise InputError(
                f"--to is {to!r} and config {group.config!r} runs {group.engine}; use --to "
                f"{group.engine}, or kubernetes or compose, which take any"
            )
    return {"launch.sh": script(placed(deployment), head)}


def _compose(deployment: Deployment, images: dict[str, str], head: Sequence[str]) -> Files:
    return {
        f"compose-node-{number}.yaml": written(
            [compose.project(replicas, images, deployment.patience)],
            [*head, f"Node {number}: docker compose -f THIS_FILE up"],
        )
        for number, replicas in enumerate(placed(deployment), start=1)
    }


def _kubernetes(deployment: Deployment, images: dict[str, str], head: Sequence[str]) -> Files:
    about = [*head, *pod.secret(deployment), "Then: kubectl apply -f THIS_FILE"]
    return {"kubernetes.yaml": written(kubernetes.manifests(deployment, images), about)}


def _dynamo(deployment: Deployment, images: dict[str, str], head: Sequence[str]) -> Files:
    about = [*head, *pod.secret(deployment), "Then: kubectl apply -f THIS_FILE"]
    return {"dynamo.yaml": written(dynamo.manifests(deployment, images), about)}


def _llm_d(deployment: Deployment, images: dict[str, str], head: Sequence[str]) -> Files:
    return {
        f"{group.name}.values.yaml": written(
            [llm_d.values(group, images[group.engine], deployment.patience)],
            [
                *head,
                *pod.secret(deployment),
                f"Then: helm install {group.name} llm-d-modelservice -f THIS_FILE",
            ],
        )
        for group in deployment.groups
    }


_MAKERS: dict[str, Callable[[Deployment, dict[str, str], Sequence[str]], Files]] = {
    "compose": _compose,
    "kubernetes": _kubernetes,
    "dynamo": _dynamo,
    "llm-d": _llm_d,
}
