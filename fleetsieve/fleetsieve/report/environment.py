"""What was measured with, as far as the study holds it: versions, engines, loads, requests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fleetsieve.events import Event, Told
from fleetsieve.fleet import Config, Engine, Fleet
from fleetsieve.inputs import Inputs
from fleetsieve.launches import engine_for
from fleetsieve.report.findings import Environment
from fleetsieve.samples import SampleFolder
from fleetsieve.secret import NOT_SHOWN, without_secrets
from fleetsieve.show import number
from fleetsieve.study import Study
from fleetsieve.version import installed

Row = tuple[str, str]


def environment(study: Study, inputs: Inputs, events: Sequence[Event]) -> Environment:
    """Of the study's last run; values that are secrets by their names are left out."""
    summaries = [(e.cell.config, e.outcome.summary) for e in events if isinstance(e, Told)]
    engines = {}
    for config in inputs.fleet.configs:
        own = [summary for name, summary in summaries if name == config.name]
        engines[config.name] = [*_engine(inputs, config), *_cache(own)]
    return Environment([*_general(study, inputs.fleet), *_requests(summaries)], engines)


def _general(study: Study, fleet: Fleet) -> Iterator[Row]:
    yield "study", f"{study.path.name}, written by FleetSieve {study.version}"
    written = datetime.fromtimestamp(study.path.stat().st_mtime, UTC)
    yield "last written", f"{written:%Y-%m-%d %H:%M} UTC"
    yield "report", f"by FleetSieve {installed()}"
    yield "seed", str(study.seed)
    rules = fleet.decision
    yield "inference", f"{rules.inference}, stop rule {rules.stop}, unmeasured {rules.unmeasured}"
    if fleet.prior is not None:
        yield "prior", fleet.prior
    if fleet.grid_path is None:
        measure = fleet.measure
        window, warmup = number(measure.seconds), number(measure.warmup_seconds)
        yield "window", f"at least {window} s after {warmup} s of warm-up"
        yield "runs", f"at most {measure.repeats} of a cell, {measure.parallel} at once"
    folder = SampleFolder(study.path).path
    if folder.is_dir():
        yield "requests kept", f"{len(list(folder.glob('*.parquet')))} files in {folder.name}"


def _engine(inputs: Inputs, config: Config) -> Iterator[Row]:
    if inputs.overridden or inputs.fleet.grid_path is not None:
        grid = inputs.fleet.grid_path
        yield "engine", f"cells of the grid {grid.name}" if grid else "cells of a grid file"
    else:
        yield from _served(engine_for(inputs.fleet, config), config)
    yield "GPUs", str(config.gpus)
    if config.features:
        yield "features", ", ".join(f"{k} {_plain(v)}" for k, v in config.features.items())


def _served(engine: Engine, config: Config) -> Iterator[Row]:
    yield "engine", engine.kind
    if engine.model:
        yield "model", without_secrets(engine.model)
    if engine.url:
        yield "address", _address(engine.url)
    if engine.command:
        yield "command", " ".join(without_secrets(engine.command))
    if args := {**engine.args, **config.args}:
        yield "args", _options(args)
    if engine.env:
        yield "environment", f"sets {', '.join(engine.env)}"


def _plain(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


def _options(args: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in without_secrets(args).items())


def _address(url: str) -> str:
    """`url` without what logs in."""
    try:
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return NOT_SHOWN


def _cache(summaries: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    tokens = [s["kv_cache_tokens"] for s in summaries if _is_number(s.get("kv_cache_tokens"))]
    if tokens:
        low, high = (f"{round(end):,}" for end in (min(tokens), max(tokens)))
        yield "KV cache", f"{low if low == high else f'{low}–{high}'} tokens"


def _requests(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Row]:
    """How many requests the numbers rest on, and how well the client sent them."""
    counted = [s for _, s in summaries if _is_number(s.get("requests"))]
    if not counted:
        return
    failed = sum(s["failed"] for s in counted if _is_number(s.get("failed")))
    yield "requests", f"{sum(s['requests'] for s in counted):,} measured, {failed:,} of them failed"
    lags = [s.get("dispatch_lag_seconds") for s in counted]
    late = [lag["p99"] for lag in lags if isinstance(lag, Mapping) and _is_number(lag.get("p99"))]
    if late:
        most = number(1000 * max(late))
        yield "client", f"sent 99 % of the requests of each run at most {most} ms late"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
