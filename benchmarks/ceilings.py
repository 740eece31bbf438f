"""How fast a machine multiplies and moves numbers, as the floor under what an algorithm takes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ceilings:
    """What a machine cannot exceed, in float64.

    Attributes:
        products: operations/s in products of matrices.
        pointwise: operations/s elsewhere.
        bandwidth: bytes/s between memory and what computes.
        cache: bytes that are kept nearer, so that the bandwidth is no limit.
    """

    name: str
    products: float
    pointwise: float
    bandwidth: float
    cache: int


# As published by NVIDIA: FP64 on tensor cores and on vector units, HBM3 and HBM3e, level 2 cache.
H100 = Ceilings("H100 SXM", 67e12, 34e12, 3.35e12, 50 << 20)
H200 = Ceilings("H200 SXM", 67e12, 34e12, 4.8e12, 50 << 20)
_SIDE, _LENGTH, _REPEATS = 2048, 1 << 26, 20
_LAST_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


def measured() -> Ceilings:
    """This machine, with as many threads as the engine has.

    The vector units give at most what the best product of matrices gets out of them.
    """
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        product = _fastest(jax.jit(lambda a: a @ a), jnp.eye(_SIDE))
        # In place, since new memory would first have to be cleared.
        triad = jax.jit(lambda a, b: a + 3.0 * b, donate_argnums=0)
        others = jnp.ones(_LENGTH)
        move = _fastest(lambda numbers: triad(numbers, others), jnp.ones(_LENGTH))
    operations = 2 * _SIDE**3 / product
    kind = jax.devices()[0].device_kind
    # Two arrays are read and one is written, each of numbers of 8 bytes.
    return Ceilings(f"this {kind}", operations, operations, 3 * 8 * _LENGTH / move, _cache())


def _fastest(compiled: Callable[[Any], Any], start: Any) -> float:
    """Seconds of a call, each on what the last one returned."""
    value = compiled(start).block_until_ready()
    seconds = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        value = compiled(value).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _cache() -> int:
    """Bytes of the last level of the CPU's cache, 0 where the system does not tell."""
    text = _LAST_CACHE.read_text().strip() if _LAST_CACHE.exists() else "0K"
    return int(text.rstrip("K")) * 1024
