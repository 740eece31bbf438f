"""The decision that is exported: that of a study, or one that `--json` wrote."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleetsieve.cell import LoadKind
from fleetsieve.decision import SCHEMA
from fleetsieve.errors import InputError
from fleetsieve.fields import Count, Fraction, Name, Natural, NonNegative, Positive
from fleetsieve.fleet import Fleet
from fleetsieve.inputs import Inputs
from fleetsieve.refusal import sentence
from fleetsieve.study import is_database
from fleetsieve.yaml_text import read_text

_JSON = "the JSON of run or decide"


class _Part(BaseModel):
    """A mapping of which more may be said than is read."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Ends(_Part):
    conservative: NonNegative
    optimistic: NonNegative


class _Capacity(_Part):
    lower: NonNegative


class _Row(_Part):
    workload: Name
    config: Name
    replicas: Natural
    gpus: Natural
    load: Positive
    measured: bool
    capacity: _Capacity


class _Workload(_Part):
    name: Name
    demand: NonNegative
    feasible: bool


class _Decision(_Part):
    schema_: Literal["fleetsieve.decision/1"] = Field(alias="schema", description=SCHEMA)
    objective: Literal["max-min", "aggregate", "weighted"]
    gap: NonNegative
    tolerance: NonNegative
    confidence: Fraction
    certified: bool
    stop_reason: Literal[
        "gap", "regret", "budget", "exhausted", "infeasible", "within_noise", "interrupted"
    ] | None = None  # fmt: skip
    gpu_seconds: NonNegative
    gpus: Count
    value: _Ends
    workloads: tuple[_Workload, ...]
    allocation: tuple[_Row, ...]


@dataclass(frozen=True)
class Decided:
    """A decision in its JSON form, the fleet whose engines serve it, and the kinds of its loads."""

    found: Mapping[str, Any]
    fleet: Fleet
    kinds: Mapping[str, LoadKind]


def decided(source: Path, fleet: Path | None, grid: Path | None) -> Decided:
    """The decision of a study, or of a JSON file about `fleet`.

    Of a study the last run's fleet is decided; `fleet` says what serves instead of its engines,
    and `grid` takes the place of the grid that was replayed.

    Raises:
        InputError: it is neither, or what it needs is missing or does not fit.
    """
    if is_database(source):
        return _of_study(source, fleet, grid)
    text = read_text(source)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(
            f"{source} is neither a study nor JSON; name a study that run wrote, or {_JSON}"
        ) from None
    found = _checked(data, str(source))
    if fleet is None:
        raise InputError(f"{source} is a decision without a fleet; give --fleet FLEET as well")
    inputs = Inputs.read(fleet, grid)
    own: dict[str, LoadKind] = {
        workload.name: workload.load_kind for workload in inputs.fleet.workloads
    }
    return Decided(found, inputs.fleet, inputs.units if inputs.grid is not None else own)


def _checked(data: Any, source: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise InputError(f"{source} holds no decision; name {_JSON}")
    try:
        return _Decision.model_validate(dict(data)).model_dump(by_alias=True)
    except ValidationError as error:
        raise InputError(f"{sentence(error, _Decision, data, source)} ({_JSON})") from None


def _of_study(path: Path, fleet: Path | None, grid: Path | None) -> Decided:
    from fleetsieve.decide import decide
    from fleetsieve.study import Study

    with Study.open_read_only(path) as study:
        inputs = Inputs.of_study(study, grid)
        serving = Fleet.load(fleet) if fleet is not None else inputs.fleet
        if _has_engines(inputs.fleet):  # what serves has to be what was measured
            study.check(serving)
        found = decide(inputs, study.events(), study.seed).to_dict()
    return Decided(found, serving, inputs.units)


def _has_engines(fleet: Fleet) -> bool:
    """Whether every config has an engine; a grid is none."""
    engines = [fleet.engine_of(config.name) for config in fleet.configs]
    return all(engine is not None and engine.kind != "grid" for engine in engines)
