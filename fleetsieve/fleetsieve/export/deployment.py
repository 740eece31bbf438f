"""What is to run: the replicas of a decision with the launches that were measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleetsieve.cell import LoadKind
from fleetsieve.errors import InputError
from fleetsieve.export.names import names
from fleetsieve.export.secret import check
from fleetsieve.fleet import Config, Fleet
from fleetsieve.launches import launch_of
from fleetsieve.nearest import hint
from fleetsieve.secret import is_secret
from fleetsieve.show import UNITS, number
from fleetsieve_measure.engines import Launch, engine_of

# A replica is reached from other machines, while a measured server is reached from its own.
_ADDRESS = ("--host", "0.0.0.0", "--port")
_LAUNCHED = ("vllm", "trtllm", "sglang")
_CANNOT = {
    "grid": "replays a grid",
    "openai": "uses a server that is already up",
    "simulated": "runs a simulated engine, which serves nothing",
}


@dataclass(frozen=True)
class Group:
    """Replicas of one config for one workload.

    Attributes:
        name: a DNS label that no other group has.
        gpus: of one replica.
        load: what one replica should carry at most, in requests/s or as open requests by `kind`.
        capacity: requests/s that one replica is sure to serve at that load.
        share: of the workload's requests that these replicas should get.
        launch: what was measured, without a place.
    """

    name: str
    workload: str
    config: str
    replicas: int
    gpus: int
    load: float
    kind: LoadKind
    capacity: float
    share: float
    launch: Launch

    @property
    def engine(self) -> str:
        """The engine's kind."""
        return self.launch.kind

    @property
    def folder(self) -> str | None:
        """The model where it is a folder of this machine, not a name."""
        return self.launch.model if Path(self.launch.model).is_absolute() else None

    @property
    def secrets(self) -> list[str]:
        """Environment variables that are referred to, not written."""
        return [name for name, value in self.launch.env.items() if is_secret(name, value)]

    @property
    def env(self) -> dict[str, str]:
        """The environment variables of the fleet file that are no secrets."""
        return {k: v for k, v in self.launch.env.items() if k not in self.secrets}

    @property
    def about(self) -> dict[str, str]:
        """What a reader of a manifest should know, as annotations."""
        unit = "requests-per-second" if self.kind == "rate" else "open-requests"
        return {
            "fleetsieve/workload": self.workload,
            "fleetsieve/config": self.config,
            f"fleetsieve/load-{unit}": f"{self.load:.12g}",
            "fleetsieve/capacity-requests-per-second": f"{self.capacity:.12g}",
            "fleetsieve/share-of-workload": f"{self.share:.4f}",
        }

    @property
    def title(self) -> str:
        """One line on who it is for and what each replica should carry."""
        return (
            f"{self.workload} on {self.config}: up to {number(self.load)} {UNITS[self.kind]} each, "
            f"{self.share:.1%} of the workload's requests"
        )

    def command(self, port: int, *, contained: bool) -> list[str]:
        """The command line that was measured, on another port, and reachable.

        In a container, the engine's own executable takes the place of one of the fleet file.
        """
        launch = replace(self.launch, port=port, command=() if contained else self.launch.command)
        return replace(engine_of(launch), address=_ADDRESS).command(launch)


@dataclass(frozen=True)
class Deployment:
    """All groups, those of many GPUs first; `gpus` may be used, `per_node` of them on a node."""

    groups: tuple[Group, ...]
    gpus: int
    per_node: int
    patience: float


def deployment_of(
    found: Mapping[str, Any], fleet: Fleet, kinds: Mapping[str, LoadKind]
) -> Deployment:
    """The deployment of a decision in its JSON form, with the launches that `fleet` says.

    Raises:
        InputError: there is nothing to run, an engine cannot be launched, or the two do not fit.
    """
    rows = [row for row in found["allocation"] if row["replicas"] > 0]
    if not rows:
        raise InputError(
            "the decision allocates no replica, so that there is nothing to deploy; measure more, "
            "or ask for less"
        )
    labels = names([(row["workload"], row["config"]) for row in rows])
    if len(labels) < len(rows):
        raise InputError("the decision names a workload and config twice; give each pair once")
    groups = [
        _group(row, labels[row["workload"], row["config"]], _share(row, rows), fleet, kinds)
        for row in rows
    ]
    used = sum(group.gpus * group.replicas for group in groups)
    if used > found["gpus"]:
        raise InputError(
            f"the decision's replicas take {used} GPUs and it has {found['gpus']}; give one whose "
            "replicas fit"
        )
    return Deployment(
        groups=tuple(sorted(groups, key=lambda group: -group.gpus)),
        gpus=found["gpus"],
        per_node=fleet.hardware.gpus_per_node,
        patience=fleet.measure.launch_seconds,
    )


def _group(
    row: Mapping[str, Any],
    name: str,
    share: float,
    fleet: Fleet,
    kinds: Mapping[str, LoadKind],
) -> Group:
    if row["workload"] not in kinds:
        raise InputError(
            f"{fleet.source} has no workload {row['workload']!r}, which the decision has; "
            f"{hint(row['workload'], kinds)}"
        )
    config = _config(fleet, row["config"])
    if row["gpus"] != row["replicas"] * config.gpus:
        raise InputError(
            f"{fleet.source}: a replica of config {config.name!r} takes {config.gpus} GPUs and in "
            f"the decision {row['replicas']} take {row['gpus']}; give the fleet file that was "
            "decided"
        )
    if config.name in fleet.unusable:
        raise InputError(
            f"{fleet.source}: config {config.name!r} does not fit: {fleet.unusable[config.name]}; "
            "give the fleet file that was decided"
        )
    launch = _launch(fleet, config)
    check(f"{fleet.source}: config {config.name!r}", launch.args, launch.env)
    return Group(
        name=name,
        workload=row["workload"],
        config=config.name,
        replicas=row["replicas"],
        gpus=config.gpus,
        load=row["load"],
        kind=kinds[row["workload"]],
        capacity=row["capacity"]["lower"],
        share=share,
        launch=launch,
    )


def _share(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float:
    """By what is sure to be served, or by replicas where nothing is."""
    own = [other for other in rows if other["workload"] == row["workload"]]
    served = [other["replicas"] * other["capacity"]["lower"] for other in own]
    parts = served if sum(served) > 0 else [other["replicas"] for other in own]
    return parts[own.index(row)] / sum(parts)


def _config(fleet: Fleet, name: str) -> Config:
    for config in fleet.configs:
        if config.name == name:
            return config
    known = [config.name for config in fleet.configs]
    raise InputError(
        f"{fleet.source} has no config {name!r}, which the decision has; {hint(name, known)}"
    )


def _launch(fleet: Fleet, config: Config) -> Launch:
    engine = fleet.engine_of(config.name)
    kind = engine.kind if engine is not None else None
    if kind not in _LAUNCHED:
        cannot = _CANNOT[kind] if kind else "has no engine"
        raise InputError(
            f"{fleet.source}: config {config.name!r} {cannot}, so that there is nothing to launch; "
            "give --fleet FLEET with an engine of kind vllm, trtllm or sglang, its model and args"
        )
    return launch_of(fleet, config)
