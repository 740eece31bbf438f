"""The decision: what to run, how sure that is, and what to measure next."""

from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "fleetsieve.decision/1"


@dataclass(frozen=True)
class Range:
    """A lower bound, the posterior mean and an upper bound."""

    conservative: float
    expected: float
    optimistic: float


@dataclass(frozen=True)
class Capacity:
    """Requests/s of one replica."""

    lower: float
    mean: float
    upper: float


@dataclass(frozen=True)
class WorkloadOutcome:
    """What a workload gets; `served` in requests/s."""

    name: str
    demand: float
    feasible: bool
    fulfillment: Range
    served: Range


@dataclass(frozen=True)
class Assignment:
    """Replicas of a config for a workload; `load` is the level per replica, as measured."""

    workload: str
    config: str
    replicas: int
    gpus: int
    load: float
    measured: bool
    capacity: Capacity


@dataclass(frozen=True)
class Alternative:
    """Replicas of an allocation that is not recommended."""

    workload: str
    config: str
    replicas: int
    gpus: int


@dataclass(frozen=True)
class RunnerUp:
    """The best allocation without one of the recommended choices, and its value's bounds."""

    value: dict[str, float]
    allocation: list[Alternative]


@dataclass(frozen=True)
class UnmeasuredColumn:
    """A workload on a config with cells that were never measured.

    `could_add` is the most that the value could rise if this column alone reached its upper bound.
    """

    workload: str
    config: str
    cells: int
    capacity_upper: float
    could_add: float


@dataclass(frozen=True)
class Unmeasured:
    """All that was never measured, and what measuring it would cost."""

    cells: int
    gpu_seconds: float
    columns: list[UnmeasuredColumn]


@dataclass(frozen=True)
class Miss:
    """How closely a workload that no config can serve missed.

    `config` and `load` are None where no config fits, the rest where no cell kept up with its load.
    """

    workload: str
    config: str | None
    load: float | None
    metric: str | None
    value: float | None
    limit: float | None


@dataclass(frozen=True)
class CellName:
    """A cell in words."""

    workload: str
    config: str
    load: float


@dataclass(frozen=True)
class Next:
    """A proposal."""

    workload: str
    config: str
    load: float
    gpu_seconds: float
    expected_gap_reduction: float
    score: float


@dataclass(frozen=True)
class Decision:
    """The recommended allocation with its certificate; `to_dict` gives the JSON form.

    `price` is that of `gpu_seconds`, by the fleet's price per GPU-hour; None where it has none.
    """

    objective: str
    gap: float
    tolerance: float
    confidence: float
    certified: bool
    stop_reason: str | None
    measurements: int
    gpu_seconds: float
    gpus: int
    gpus_used: int
    value: Range
    workloads: list[WorkloadOutcome]
    allocation: list[Assignment]
    within_noise: list[CellName]
    next: list[Next]
    runner_up: RunnerUp | None
    unmeasured: Unmeasured
    infeasible: list[Miss]
    non_monotone: list[CellName]
    unusable: dict[str, str]
    notes: tuple[str, ...] = ()
    price: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"schema": SCHEMA, **asdict(self)}
