"""What a fleet file may ask for that this version does not do."""

from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet

# A table over replicas and GPUs takes this many squared entries.
_MOST_GPUS_WITH_LIMITS = 4096


def check_offered(fleet: Fleet, stop: str | None = None) -> None:
    """Refuse what is not offered; `stop` overrides the fleet's rule.

    Raises:
        InputError: it asks for an unknown rule, or for replica limits on more GPUs than their
            exact tables can hold.
    """
    if stop not in (None, "gap", "regret"):
        raise InputError(f"stop is {stop!r}; use 'gap' or 'regret'")
    limited = any(w.min_replicas or w.max_replicas is not None for w in fleet.workloads)
    if limited and fleet.hardware.gpus > _MOST_GPUS_WITH_LIMITS:
        raise InputError(
            f"{fleet.source}: min_replicas and max_replicas are offered for up to "
            f"{_MOST_GPUS_WITH_LIMITS} GPUs and the fleet has {fleet.hardware.gpus}; leave them out"
        )
