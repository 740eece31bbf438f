"""What a fleet file may ask for that this version does not do."""

from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet

# A table over replicas and GPUs takes this many squared entries.
_MOST_GPUS_WITH_LIMITS = 4096


def check_offered(fleet: Fleet, stop: str | None = None) -> None:
    """Refuse what is not offered; `stop` overrides the fleet's rule.

    Raises:
        InputError: it asks for a rule or a prior that this version lacks, or for
            replica limits on more GPUs than their exact tables can hold.
    """
    if (stop or fleet.decision.stop) != "gap":
        raise InputError(
            f"stop is {stop or fleet.decision.stop!r}, whose certificates have not reached the "
            "stated confidence; use 'gap'"
        )
    if fleet.prior is not None:
        raise InputError(f"{fleet.source}: prior {fleet.prior!r} is not used yet; remove the key")
    limited = any(w.min_replicas or w.max_replicas is not None for w in fleet.workloads)
    if limited and fleet.hardware.gpus > _MOST_GPUS_WITH_LIMITS:
        raise InputError(
            f"{fleet.source}: min_replicas and max_replicas are offered for up to "
            f"{_MOST_GPUS_WITH_LIMITS} GPUs and the fleet has {fleet.hardware.gpus}; leave them out"
        )
