"""The fleet file: GPUs, workloads, configs and how to decide; what it may say and its errors."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from fleetsieve import yaml_text
from fleetsieve.errors import InputError
from fleetsieve.fields import Count, Feature, Fraction, Name, NonNegative, Option, Positive, Table
from fleetsieve.refusal import sentence
from fleetsieve.workload import Workload

_COUNT = "a whole number, at least 1"
_ARGS = "a mapping of the engine's option names to their values"
_KINDS = "vllm, trtllm, sglang, openai, simulated or grid"
EngineKind = Literal["vllm", "trtllm", "sglang", "openai", "simulated", "grid"]


class Hardware(Table):
    """The GPU budget and what the decision maximises."""

    gpus: Count = Field(description=_COUNT)
    gpus_per_node: Count = Field(default=8, description=_COUNT)
    objective: Literal["max-min", "aggregate", "weighted"] = Field(
        default="max-min", description="max-min, aggregate or weighted"
    )
    price_per_gpu_hour: NonNegative | None = Field(default=None, description="a number, at least 0")


class DecisionRules(Table):
    """When a decision is certified and how much measuring may cost."""

    tolerance: NonNegative = Field(
        default=0.02, lt=1, description="a gap in the objective, at least 0 and below 1"
    )
    confidence: Fraction = Field(default=0.95, description="a probability above 0 and below 1")
    budget_gpu_seconds: Positive | None = Field(default=None, description="GPU-seconds above 0")
    stop: Literal["gap", "regret"] = Field(default="gap", description="gap or regret")
    unmeasured: Literal["refuse", "allow"] = Field(default="refuse", description="refuse or allow")
    inference: Literal["map", "nuts"] = Field(default="map", description="map or nuts")


class EngineSettings(Table):
    """What an engine serves and with which options."""

    model: Name | None = Field(default=None, description="the model's name in quotes")
    path: Name | None = Field(default=None, description="the path of a file")
    url: Name | None = Field(default=None, description="the address of a running server")
    command: tuple[Name, ...] | None = Field(
        default=None,
        min_length=1,
        description="a list in place of the engine's executable, as [/opt/vllm/bin/vllm]",
    )
    args: dict[str, Option] = Field(default_factory=dict, description=_ARGS)
    env: dict[str, str] = Field(
        default_factory=dict, description="a mapping of environment variables to quoted text"
    )


class EngineOverride(EngineSettings):
    """What a config runs differently from the fleet's engine."""

    kind: EngineKind | None = Field(default=None, description=_KINDS)


class Engine(EngineSettings):
    """What serves the model; `kind: grid` replays the grid file at `path`."""

    kind: EngineKind = Field(description=_KINDS)

    @model_validator(mode="after")
    def _grid_has_a_path(self) -> Self:
        if self.kind == "grid" and self.path is None:
            raise ValueError("path is missing for kind 'grid'; give path: <grid file>")
        return self


class Config(Table):
    """A way to run one replica."""

    name: Name = Field(description="a name that no other config has")
    gpus: Count = Field(description="GPUs of one replica, a whole number, at least 1")
    features: dict[Name, Feature] = Field(
        default_factory=dict, description="finite numbers, or text for categories"
    )
    args: dict[str, Option] = Field(default_factory=dict, description=_ARGS)
    engine: EngineOverride | None = Field(default=None, description="keys of engine that differ")

    @model_validator(mode="after")
    def _tp_has_a_logarithm(self) -> Self:
        tp = self.features.get("tp", 1.0)
        if isinstance(tp, str) or tp <= 0:
            raise ValueError(f"features.tp is {tp!r}; give a number above 0")
        return self


class Measure(Table):
    """What profiling may use and how long it takes."""

    gpus: Count | None = Field(default=None, description=_COUNT)
    parallel: Count = Field(default=1, description=_COUNT)
    seconds: Positive = Field(default=300.0, description="seconds above 0, without warm-up")
    warmup_seconds: NonNegative = Field(default=30.0, description="seconds, at least 0")
    launch_seconds: NonNegative = Field(default=180.0, description="seconds, at least 0")
    repeats: Count = Field(default=5, description=_COUNT)


class Fleet(Table):
    """A validated fleet file; relative paths are resolved against its folder.

    `hardware` is the YAML key `fleet`. `Fleet.load` and `Fleet.parse` are the ways to make one.
    """

    hardware: Hardware = Field(alias="fleet", description="a mapping with gpus")
    decision: DecisionRules = Field(default_factory=DecisionRules, description="a mapping")
    engine: Engine | None = Field(default=None, description="a mapping with kind")
    configs: tuple[Config, ...] = Field(min_length=1, description="a list of configs")
    workloads: tuple[Workload, ...] = Field(min_length=1, description="a list of workloads")
    measure: Measure = Field(default_factory=Measure, description="a mapping")
    prior: Name | None = Field(default=None, description="the path of a grid file of predictions")

    _source: str = PrivateAttr("fleet")
    _base: Path = PrivateAttr(Path())

    @classmethod
    def load(cls, path: str | Path) -> "Fleet":
        """Read a fleet file.

        Raises:
            InputError: the file cannot be read or says something impossible.
        """
        path = Path(path)
        return cls.parse(yaml_text.read_text(path), base=path.parent, source=str(path))

    @classmethod
    def parse(
        cls, text_or_mapping: str | Mapping[str, Any], base: str | Path = ".", source: str = "fleet"
    ) -> "Fleet":
        """Validate a fleet given as YAML text or as a mapping; errors call it `source`.

        Raises:
            InputError: the first thing that is wrong.
        """
        data: Any = text_or_mapping
        if isinstance(text_or_mapping, str):
            data = yaml_text.parse(text_or_mapping, source)
        if not isinstance(data, Mapping):
            found = "is empty" if data is None else f"holds {type(data).__name__} data"
            raise InputError(f"{source} {found}; give a mapping with fleet, configs and workloads")
        try:
            fleet = cls.model_validate(dict(data))
        except ValidationError as error:
            raise InputError(sentence(error, cls, data, source)) from None
        fleet._source, fleet._base = source, Path(base)
        return fleet

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        for key, items in (("configs", self.configs), ("workloads", self.workloads)):
            names = [item.name for item in items]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"{key}: the name {twice!r} is given twice; give each its own")
        return self

    @model_validator(mode="after")
    def _overrides_are_complete(self) -> Self:
        for config in self.configs:
            kind, path = (self._merged(config).get(key) for key in ("kind", "path"))
            if config.engine and (kind is None or (kind == "grid" and path is None)):
                key, value = ("kind", "an engine") if kind is None else ("path", "a grid file")
                raise ValueError(
                    f"configs: {config.name!r} has an engine without {key}; give {key}: <{value}>"
                )
        return self

    @model_validator(mode="after")
    def _sizes_pack(self) -> Self:
        sizes = sorted({c.gpus for c in self.configs if c.name not in self.unusable})
        chain = [*sizes, self.hardware.gpus_per_node]
        for small, large in pairwise(chain):
            if large % small:
                raise ValueError(
                    f"configs: replica sizes {sizes} do not fill nodes of {chain[-1]} GPUs, as "
                    f"{small} does not divide {large}; give sizes that divide one another and "
                    "gpus_per_node"
                )
        return self

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return Path(self._source).stem

    @property
    def source(self) -> str:
        """What errors call this fleet: the path it was read from."""
        return self._source

    def price(self, gpu_seconds: float) -> float | None:
        """What so many GPU-seconds cost; None where the file has no price."""
        price = self.hardware.price_per_gpu_hour
        return None if price is None else gpu_seconds / 3600 * price

    @property
    def grid_path(self) -> Path | None:
        """The grid file that the engine replays, if it replays one."""
        replays = self.engine is not None and self.engine.kind == "grid"
        return self.resolve(self.engine.path) if replays and self.engine else None

    @property
    def prior_path(self) -> Path | None:
        """The low-fidelity grid file, if there is one."""
        return None if self.prior is None else self.resolve(self.prior)

    @property
    def unusable(self) -> dict[str, str]:
        """Configs of which no replica fits, with the reason."""
        limits = ((self.hardware.gpus, "the fleet"), (self.hardware.gpus_per_node, "a node"))
        return {
            config.name: f"a replica takes {config.gpus} GPUs and {owner} has {limit}"
            for config in self.configs
            for limit, owner in limits
            if config.gpus > limit
        }

    def engine_of(self, config: str) -> Engine | None:
        """The engine that runs `config`: the fleet's, with the config's own keys over it.

        Args and environment are merged, except those of an engine of another kind.
        """
        own = next(c for c in self.configs if c.name == config)
        return Engine.model_validate(self._merged(own)) if own.engine else self.engine

    def _merged(self, config: Config) -> dict[str, Any]:
        base, own = (
            engine.model_dump(exclude_unset=True) if engine else {}
            for engine in (self.engine, config.engine)
        )
        if own.get("kind", base.get("kind")) != base.get("kind"):
            base = {k: v for k, v in base.items() if k not in ("args", "env")}
        tables = {k: {**base.get(k, {}), **own.get(k, {})} for k in ("args", "env")}
        return {**base, **own, **tables}

    def mapping(self) -> dict[str, Any]:
        """The fleet as plain values in the form of the file, for `Fleet.parse` or a journal."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema of the fleet file."""
        dialect = "https://json-schema.org/draft/2020-12/schema"
        return {"$schema": dialect, **cls.model_json_schema(by_alias=True)}

    def resolve(self, path: str | None) -> Path:
        """A path of the file, against its folder."""
        return self._base / (path or "")
