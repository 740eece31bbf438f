"""The GPUs that this process may use, as CUDA names them."""

from collections.abc import Mapping, Sequence

from fleetsieve_measure.errors import InputError


def device_names(gpus: Sequence[int], outer: Mapping[str, str]) -> tuple[str, ...]:
    """The devices at places `gpus`, counted from 0, among those that `outer` leaves visible.

    A scheduler that gives a job some of a node's GPUs says which in CUDA_VISIBLE_DEVICES, by
    number or by UUID; a server launched from the job must stay among them.

    Raises:
        InputError: there are fewer visible devices.
    """
    visible = outer.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(str(gpu) for gpu in gpus)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if gpus and max(gpus) >= len(names):
        raise InputError(
            f"CUDA_VISIBLE_DEVICES is {visible!r}, which leaves {len(names)} GPUs visible; "
            f"use at most that many instead of {max(gpus) + 1}"
        )
    return tuple(names[gpu] for gpu in gpus)
