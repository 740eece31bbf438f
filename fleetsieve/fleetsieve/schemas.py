"""The JSON that commands write, as types: for checks and for `fleetsieve schema`."""

from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from fleetsieve.decision import SCHEMA, Decision

_CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False)
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(config=_CLOSED, kw_only=True, frozen=True)
class Replicas:
    """Replicas of a config for a workload."""

    workload: str
    config: str
    replicas: int
    gpus: int | None = None


@dataclass(config=_CLOSED, kw_only=True, frozen=True)
class Oracle:
    """The decision that the truth gives."""

    value: float
    allocation: list[Replicas]


@dataclass(config=_CLOSED, kw_only=True, frozen=True)
class Run:
    """One policy in one order; null is what never happened."""

    order: int
    gpu_seconds_to_oracle: float | None
    gpu_seconds_to_certificate: float | None
    measurements: int
    certified: bool
    valid: bool | None
    regret: float
    violations: int
    allocation: list[Replicas]


@dataclass(config=_CLOSED, kw_only=True, frozen=True)
class PolicyRuns:
    """The runs of a policy."""

    runs: list[Run]


@dataclass(config=_CLOSED, kw_only=True, frozen=True)
class Saving:
    """A saving as a share of the other policy's cost."""

    mean: float
    ci95: tuple[float, float]
    ratio: float


@dataclass(config=_CLOSED, kw_only=True, frozen=True)
class Savings:
    """The savings of a policy over another."""

    to_oracle: Saving
    to_certificate: Saving


@dataclass(config=_CLOSED, kw_only=True, frozen=True)
class ReplayJson:
    """The output of `replay`."""

    schema: Literal["fleetsieve.replay/1"]
    cells: int
    grid_gpu_seconds: float
    tolerance: float
    oracle: Oracle
    policies: dict[str, PolicyRuns]
    savings: dict[str, Savings]


def decision_schema() -> dict[str, Any]:
    """The JSON schema of the output of `run` and `decide`."""
    made = TypeAdapter(Decision).json_schema()
    made["properties"] = {"schema": {"const": SCHEMA}, **made["properties"]}
    made["required"] = ["schema", *made["required"]]
    return {"$schema": _DIALECT, **made}


def replay_schema() -> dict[str, Any]:
    """The JSON schema of the output of `replay`."""
    return {"$schema": _DIALECT, **TypeAdapter(ReplayJson).json_schema()}
