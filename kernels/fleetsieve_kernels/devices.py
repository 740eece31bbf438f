"""Candidates shared out over the devices of a machine."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int

from fleetsieve_kernels.acquisition import Candidates, Fleet, Gains
from fleetsieve_kernels.posterior import Posterior, crossings

_AXIS = "candidates"


def scored(
    gains: Callable[..., Gains],
    index: Int[Array, " B"],
    posterior: Posterior,
    state: Mapping[str, Any],
    fleet: Fleet,
) -> Gains:
    """`gains` of the cells at `index`, as many on each device; B is a multiple of their number.

    `state` has all other arguments of `gains` by name. Every device holds the posterior, and works
    out the covariances of its own candidates alone.
    """
    if jax.device_count() == 1:
        return gains(candidates=_candidates(posterior, index), fleet=fleet, **state)
    mesh = Mesh(np.array(jax.devices()), (_AXIS,))
    return _shared(gains, mesh, index, posterior, state, fleet)


@partial(jax.jit, static_argnames=("gains", "mesh", "fleet"))
def _shared(
    gains: Callable[..., Gains],
    mesh: Mesh,
    index: Int[Array, " B"],
    posterior: Posterior,
    state: Mapping[str, Any],
    fleet: Fleet,
) -> Gains:
    def part(index: Array, posterior: Posterior, state: Mapping[str, Any]) -> Gains:
        return gains(candidates=_candidates(posterior, index), fleet=fleet, **state)

    mine, all_ = PartitionSpec(_AXIS), PartitionSpec()
    specs = {"in_specs": (mine, all_, all_), "out_specs": mine}
    return jax.shard_map(part, mesh=mesh, check_vma=False, **specs)(index, posterior, state)


def _candidates(posterior: Posterior, index: Int[Array, " B"]) -> Candidates:
    return Candidates(index, crossings(posterior, index))
