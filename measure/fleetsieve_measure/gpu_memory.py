"""Waiting until the memory of GPUs has settled after a server has gone."""

import asyncio
import importlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

Reader = Callable[[Sequence[str]], tuple[float, ...]]
"""Memory in use on each device, in MiB."""

SAMPLES = 5
_EQUAL = 64.0


def reader() -> Reader | None:
    """What can tell the memory in use here: NVML's Python binding, else nvidia-smi, else None."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        nvml = None
    if nvml is not None and _works(nvml):
        return lambda devices: tuple(_nvml(nvml, device) for device in devices)
    return _nvidia_smi if shutil.which("nvidia-smi") else None


async def settled(
    devices: Sequence[str],
    read: Reader | None,
    *,
    interval: float = 1.0,
    deadline: float = 30.0,
) -> bool:
    """Wait until the memory in use on every one of `devices` has stayed equal for some samples.

    Drivers give memory back some time after a process has ended, and not on all GPUs of a group
    at once. Sampled every `interval` seconds; False where it has not settled after `deadline`
    seconds or cannot be read.
    """
    if not devices or read is None:
        return not devices
    samples: list[tuple[float, ...]] = []
    for _ in range(max(SAMPLES, round(deadline / interval))):
        try:
            samples.append(await asyncio.to_thread(read, devices))
        except (OSError, ValueError, subprocess.SubprocessError):
            return False
        if len(samples) >= SAMPLES and _equal(samples[-SAMPLES:]):
            return True
        await asyncio.sleep(interval)
    return False


def _equal(samples: Sequence[tuple[float, ...]]) -> bool:
    return all(max(used) - min(used) <= _EQUAL for used in zip(*samples, strict=True))


def _works(nvml: Any) -> bool:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return False
    return True


def _nvml(nvml: Any, device: str) -> float:
    try:
        handle = (
            nvml.nvmlDeviceGetHandleByIndex(int(device))
            if device.isdigit()
            else nvml.nvmlDeviceGetHandleByUUID(device)
        )
        return nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20
    except nvml.NVMLError as error:
        raise OSError(str(error)) from error


def _nvidia_smi(devices: Sequence[str]) -> tuple[float, ...]:
    printed = subprocess.run(
        [
            "nvidia-smi",
            f"--id={','.join(devices)}",
            "--query-gpu=memory.used",
            "--format=csv,noheader,nounits",
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=10,
    ).stdout
    return tuple(float(line) for line in printed.split())
