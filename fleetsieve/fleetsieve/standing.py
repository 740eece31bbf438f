"""Where a run stood after each measurement: the two ends of the value, as it went on."""

import hashlib
import json
from dataclasses import dataclass

from fleetsieve.fleet import Fleet

# What the value and its bounds rest on beside the measurements.
_HARDWARE = {"gpus", "gpus_per_node", "objective"}
_RULES = {"confidence", "unmeasured", "inference"}


@dataclass(frozen=True)
class Standing:
    """V after so many measurements: at least `lower` by the allocation, at most `upper` by any."""

    measurements: int
    gpu_seconds: float
    lower: float
    upper: float

    @property
    def gap(self) -> float:
        """Γ, never below 0."""
        return max(self.upper - self.lower, 0.0)


def question(fleet: Fleet) -> str:
    """What is asked of the measurements, as a digest: standings of two questions never mix."""
    asked = {
        "hardware": fleet.hardware.model_dump(mode="json", include=_HARDWARE),
        "decision": fleet.decision.model_dump(mode="json", include=_RULES),
        "rest": fleet.model_dump(mode="json", include={"configs", "workloads", "prior"}),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
