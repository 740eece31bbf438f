"""From a config of the fleet file to the launch of a server."""

import os
import shutil
from pathlib import Path

from fleetsieve.errors import InputError
from fleetsieve.fleet import Config, Engine, Fleet
from fleetsieve_measure.api_key import api_key_name
from fleetsieve_measure.engines import Launch, engine_of

# What stands in where a fleet names no engine, on a machine without a GPU.
_DEFAULT = Engine(kind="simulated", model="qwen3-32b")
_TP = "tensor-parallel-size"


def engine_for(fleet: Fleet, config: Config) -> Engine:
    """The engine of `config`: on a machine without a GPU the simulated one is the default.

    Raises:
        InputError: there is none, and there are GPUs to measure on.
    """
    engine = fleet.engine_of(config.name)
    if engine is not None:
        return engine
    if gpus_here():
        raise InputError(
            f"{fleet.source}: there is no engine for config {config.name!r}; give engine: "
            "{kind: vllm, model: <name>}, or {kind: simulated} for a simulation"
        )
    return _DEFAULT


def launch_of(fleet: Fleet, config: Config) -> Launch:
    """How `config` is launched; args of the config go over those of the engine.

    Raises:
        InputError: the engine is one that nothing launches, or lacks what it needs.
    """
    engine = engine_for(fleet, config)
    if engine.kind == "grid":
        raise InputError(
            f"{fleet.source}: config {config.name!r} replays a grid while others are measured; "
            "give --grid GRID for all, or another engine"
        )
    args = {**engine.args, **config.args}
    if engine.kind == "simulated" and not {_TP, _TP.replace("-", "_")} & set(args):
        args[_TP] = config.gpus
    launch = Launch(
        kind=engine.kind,
        model=_model(fleet, engine),
        args=args,
        env=engine.env,
        command=tuple(engine.command or ()),
        url=engine.url or "",
        api_key_env=api_key_name() or "",
    )
    try:
        engine_of(launch).command(launch)
    except InputError as error:
        raise InputError(f"{fleet.source}: config {config.name!r}: {error}") from None
    return launch


def simulated(fleet: Fleet) -> str | None:
    """A sentence on configs whose numbers come from the simulation; None without any."""
    default = None if gpus_here() else _DEFAULT
    engines = {config.name: fleet.engine_of(config.name) or default for config in fleet.configs}
    found = {name: e for name, e in engines.items() if e is not None and e.kind == "simulated"}
    if not found:
        return None
    names = list(found)
    models = sorted({engine.model or _DEFAULT.model or "" for engine in found.values()})
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"the numbers of {', '.join(names[:3])}{more} are those of a simulated engine with "
        f"{', '.join(models)}, not of hardware"
    )


def node_gpus(fleet: Fleet) -> int:
    """How many GPUs profiling may use on this node: as the file says, else those that are here.

    Where there is none to count, as for the simulated engine, a node of the fleet stands in.
    """
    if fleet.measure.gpus is not None:
        return fleet.measure.gpus
    return gpus_here() or max(fleet.hardware.gpus_per_node, max(c.gpus for c in fleet.configs))


def gpus_here() -> int:
    """GPUs that this process may use, by what the driver lists; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip()])
    if shutil.which("nvidia-smi") is None:
        return 0
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def _model(fleet: Fleet, engine: Engine) -> str:
    """A model's name; a folder that lies beside the fleet file by its absolute path."""
    if engine.model is None:
        return _DEFAULT.model or "" if engine.kind == "simulated" else ""
    folder = fleet.resolve(engine.model)
    return str(folder.absolute()) if folder.is_dir() else engine.model
