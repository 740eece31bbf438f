"""What containers of a Kubernetes pod have in common, whoever creates the pod."""

from typing import Any

from fleetsieve.export.deployment import Deployment, Group
from fleetsieve.export.document import literal
from fleetsieve.export.secret import SECRET

GPU = "nvidia.com/gpu"


def labels(group: Group) -> dict[str, str]:
    """That tell the pods of a group from all others."""
    return {"app.kubernetes.io/name": group.name, "app.kubernetes.io/managed-by": "fleetsieve"}


def environment(group: Group) -> list[dict[str, Any]]:
    """Variables, and references to the Secret for those that are secrets."""
    plain = [{"name": name, "value": literal(value)} for name, value in group.env.items()]
    referred = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": name}}}
        for name in group.secrets
    ]
    return [*plain, *referred]


def secret(deployment: Deployment) -> list[str]:
    """How to create the Secret, as a line for the head of a file, where one is referred to."""
    names = sorted({name for group in deployment.groups for name in group.secrets})
    values = " ".join(f"--from-literal={name}=.." for name in names)
    return [f"First: kubectl create secret generic {SECRET} {values}"] if names else []


def storage(group: Group) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes of the pod and their mounts: shared memory, and the model where it is a folder.

    Processes of one replica exchange tensors through /dev/shm, for which 64 MiB are too few.
    """
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    if group.folder is not None:
        host = {"path": group.folder, "type": "Directory"}
        volumes.append({"name": "model", "hostPath": host})
        mounts.append({"name": "model", "mountPath": group.folder, "readOnly": True})
    return volumes, mounts
