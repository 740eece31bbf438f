"""Workloads of the fleet file: demand, SLOs, requests, arrivals and load levels."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_serializer, model_validator

from fleetsieve.cell import LoadKind
from fleetsieve.fields import Count, Metric, Name, Natural, NonNegative, Positive, Table


class Lognormal(Table):
    """A log-normal distribution of token counts."""

    median: Positive = Field(description="the median in tokens, a number above 0")
    sigma: NonNegative = Field(description="the standard deviation of the log, at least 0")


def _lengths(value: Any) -> Any:
    plain = isinstance(value, int | float | str) and not isinstance(value, bool)
    return {"constant": value} if plain else value


class TokenCount(Table):
    """How many tokens a request has: a constant, or a distribution cut off at `max`."""

    constant: Count | None = Field(default=None, description="a whole number of tokens, at least 1")
    lognormal: Lognormal | None = Field(
        default=None, description="{median: <tokens>, sigma: <number>}"
    )
    max: Count | None = Field(default=None, description="a whole number of tokens, at least 1")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.constant is None) == (self.lognormal is None):
            raise ValueError("give a whole number, or {lognormal: {median, sigma}, max}")
        return self


_COUNT_SCHEMA = {"type": "integer", "minimum": 1}
_TOKENS_SCHEMA = {
    "anyOf": [
        _COUNT_SCHEMA,
        {
            "type": "object",
            "required": ["lognormal"],
            "additionalProperties": False,
            "properties": {
                "lognormal": {
                    "type": "object",
                    "required": ["median", "sigma"],
                    "additionalProperties": False,
                    "properties": {
                        "median": {"type": "number", "exclusiveMinimum": 0},
                        "sigma": {"type": "number", "minimum": 0},
                    },
                },
                "max": _COUNT_SCHEMA,
            },
        },
        {"type": "null"},
    ]
}
Tokens = Annotated[TokenCount | None, BeforeValidator(_lengths), WithJsonSchema(_TOKENS_SCHEMA)]
_LEVELS = "distinct numbers above 0"
_LOADS = "distinct numbers above 0 as a list, {per_gpu: [..]}, or {auto: <how many>}"
_TOKENS = "a whole number of tokens, or {lognormal: {median: .., sigma: ..}, max: ..}"


class Requests(Table):
    """What the requests look like: token counts, or a trace file."""

    prompt_tokens: Tokens = Field(default=None, description=_TOKENS)
    output_tokens: Tokens = Field(default=None, description=_TOKENS)
    trace: Name | None = Field(default=None, description="the path of a trace file")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        counts = [self.prompt_tokens is not None, self.output_tokens is not None]
        if any(counts) if self.trace is not None else not all(counts):
            raise ValueError("give prompt_tokens and output_tokens, or trace alone")
        return self


def _arrivals(value: Any) -> Any:
    """The YAML forms `poisson`, `{gamma: {cv: 2}}` and `{concurrency: true}` as fields."""
    match value:
        case "poisson" | "constant" | "trace":
            return {"kind": value}
        case {"gamma": Mapping() as gamma, **rest} if not rest and set(gamma) == {"cv"}:
            return {"kind": "gamma", "cv": gamma["cv"]}
        case {"concurrency": True, **rest} if not rest:
            return {"kind": "concurrency"}
        case {"kind": _}:
            raise ValueError("the key 'kind' is unknown")
        case None | Arrivals():
            return value
    raise ValueError("this form of arrivals is unknown")


class Arrivals(Table):
    """When requests arrive: open loop at a rate, or closed loop at a concurrency."""

    kind: Literal["poisson", "constant", "gamma", "trace", "concurrency"]
    cv: Positive | None = Field(default=None, description="{gamma: {cv: <number above 0>}}")

    @property
    def load_kind(self) -> LoadKind:
        """What a load level means under these arrivals."""
        return "concurrency" if self.kind == "concurrency" else "rate"

    @model_serializer
    def _yaml(self) -> Any:
        if self.kind == "gamma":
            return {"gamma": {"cv": self.cv}}
        return {"concurrency": True} if self.kind == "concurrency" else self.kind


def _loads(value: Any) -> Any:
    return {"per_replica": value} if isinstance(value, list | tuple) else value


class Loads(Table):
    """The load levels of one replica: listed, listed per GPU, or a number of them."""

    per_replica: tuple[Positive, ...] | None = Field(default=None, description=_LEVELS)
    per_gpu: tuple[Positive, ...] | None = Field(default=None, description=_LEVELS)
    auto: Count | None = Field(
        default=None, description="how many levels, a whole number, at least 1"
    )

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = [form for form in (self.per_replica, self.per_gpu, self.auto) if form is not None]
        if len(given) != 1:
            raise ValueError(f"{len(given)} forms of loads are given; give {_LOADS}")
        levels = self.per_replica if self.per_replica is not None else self.per_gpu
        if levels is not None and (not levels or len(set(levels)) < len(levels)):
            found = "has a level twice" if levels else "is empty"
            raise ValueError(f"the list {list(levels)} {found}; give {_LEVELS}")
        return self

    def of(self, gpus: int) -> tuple[float, ...]:
        """The listed levels of a replica of `gpus` GPUs, ascending; none for `auto`."""
        if self.per_gpu is not None:
            return tuple(sorted(level * gpus for level in self.per_gpu))
        return tuple(sorted(self.per_replica or ()))

    @model_serializer
    def _yaml(self) -> Any:
        if self.auto is not None:
            return {"auto": self.auto}
        return {"per_gpu": list(self.per_gpu)} if self.per_gpu else list(self.per_replica or ())


_ARRIVALS = "poisson, constant, trace, {gamma: {cv: <number>}} or {concurrency: true}"
_ARRIVALS_SCHEMA = {
    "anyOf": [
        {"enum": ["poisson", "constant", "trace"]},
        {
            "type": "object",
            "required": ["gamma"],
            "additionalProperties": False,
            "properties": {
                "gamma": {
                    "type": "object",
                    "required": ["cv"],
                    "additionalProperties": False,
                    "properties": {"cv": {"type": "number", "exclusiveMinimum": 0}},
                }
            },
        },
        {
            "type": "object",
            "required": ["concurrency"],
            "additionalProperties": False,
            "properties": {"concurrency": {"const": True}},
        },
        {"type": "null"},
    ]
}
_LEVELS_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "uniqueItems": True,
    "items": {"type": "number", "exclusiveMinimum": 0},
}
_LOADS_SCHEMA = {
    "anyOf": [
        _LEVELS_SCHEMA,
        {
            "type": "object",
            "required": ["per_gpu"],
            "additionalProperties": False,
            "properties": {"per_gpu": _LEVELS_SCHEMA},
        },
        {
            "type": "object",
            "required": ["auto"],
            "additionalProperties": False,
            "properties": {"auto": {"type": "integer", "minimum": 1}},
        },
        {"type": "null"},
    ]
}


class Workload(Table):
    """A request class with its demand and its SLOs."""

    name: Name = Field(description="a name that no other workload has")
    demand: NonNegative = Field(description="requests/s to serve, a finite number at least 0")
    weight: Positive = Field(default=1.0, description="a finite number above 0")
    headroom: NonNegative = Field(
        default=0.0, description="a share of the demand, at least 0 (0.2: 20 %)"
    )
    min_replicas: Natural = Field(default=0, description="a whole number, at least 0")
    max_replicas: Natural | None = Field(
        default=None, description="a whole number, at least min_replicas"
    )
    slo: dict[Metric, Positive] = Field(
        default_factory=dict,
        description="upper limits in seconds, finite numbers above 0, as {e2e_p99: 30.0}",
    )
    requests: Requests | None = Field(default=None, description="token counts or a trace")
    arrivals: Annotated[
        Arrivals | None, BeforeValidator(_arrivals), WithJsonSchema(_ARRIVALS_SCHEMA)
    ] = Field(default=None, description=_ARRIVALS)
    loads: Annotated[Loads | None, BeforeValidator(_loads), WithJsonSchema(_LOADS_SCHEMA)] = Field(
        default=None, description=_LOADS
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas is {self.max_replicas}, below min_replicas {self.min_replicas}; "
                "give a larger max_replicas or a smaller min_replicas"
            )
        traced = self.requests is not None and self.requests.trace is not None
        if self.arrivals is not None and self.arrivals.kind == "trace" and not traced:
            raise ValueError("arrivals are 'trace' without a trace; give requests: {trace: <path>}")
        if not math.isfinite(self.total_demand):
            raise ValueError("demand times 1 + headroom overflows; give smaller numbers")
        return self

    @property
    def load_kind(self) -> LoadKind:
        """What its loads are without a grid that says."""
        return "rate" if self.arrivals is None else self.arrivals.load_kind

    @property
    def total_demand(self) -> float:
        """Requests/s to serve, headroom included."""
        return self.demand * (1 + self.headroom)
