"""What to deploy from a decision: launch commands and manifests, as text by file name."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleetsieve.errors import InputError
from fleetsieve.export.decided import Decided
from fleetsieve.export.deployment import Deployment, deployment_of
from fleetsieve.export.formats import (
    ENGINES,
    Files,
    Head,
    files,
    replaced_executables,
    unnamed_images,
)
from fleetsieve.show import headline
from fleetsieve.version import installed

__all__ = ["export", "images_of"]


def export(
    decided: Decided, source: Path, to: str, images: Mapping[str, str]
) -> tuple[Files, tuple[str, ...]]:
    """The files of the format `to`, and what a reader should be warned of.

    `images` are container images by engine kind, as far as they are given.

    Raises:
        InputError: there is nothing to launch, or the format cannot say it.
    """
    found = decided.found
    deployment = deployment_of(found, decided.fleet, decided.kinds)
    warnings = (*_unsure(found), *_of_images(deployment, to, images))
    lines = (
        f"FleetSieve {installed()}: what to deploy by the decision of {source.name}",
        headline(found, 0.0),
        *(f"{group.name} × {group.replicas}: {group.title}" for group in deployment.groups),
    )
    return files(deployment, to, images, Head(lines, warnings)), warnings


def images_of(texts: Sequence[str]) -> dict[str, str]:
    """Container images by engine kind, from IMAGE for all of them or KIND=IMAGE for one.

    Raises:
        InputError: another form.
    """
    images: dict[str, str] = {}
    for text in texts:
        kind, equals, image = text.rpartition("=")
        if not image or (equals and kind not in ENGINES) or any(c.isspace() for c in text):
            raise InputError(
                f"--image is {text[:60]!r}; give an image, or KIND=IMAGE with KIND one of "
                f"{', '.join(ENGINES)}"
            )
        images.update(dict.fromkeys((kind,) if kind else ENGINES, image))
    return images


def _unsure(found: Mapping[str, Any]) -> Iterator[str]:
    if not found["certified"]:
        yield "the decision is not certified; another allocation may serve more"
    served = {row["workload"] for row in found["allocation"] if row["replicas"]}
    for workload in found["workloads"]:
        if workload["demand"] > 0 and workload["name"] not in served:
            yield f"nothing is deployed for the workload {workload['name']}"
    for row in found["allocation"]:
        if not row["measured"]:
            yield f"the load of {row['workload']} on {row['config']} was never measured"


def _of_images(deployment: Deployment, to: str, images: Mapping[str, str]) -> Iterator[str]:
    kinds = unnamed_images(deployment, to, images)
    if kinds:
        yield (
            f"the image of {' and '.join(kinds)} is a published one, which may have another "
            "version than was measured; name the one that was with --image"
        )
    configs = replaced_executables(deployment, to)
    if configs:
        yield f"the image's executable takes the place of the command of {', '.join(configs)}"
