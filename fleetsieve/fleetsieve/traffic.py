"""From a workload of the fleet file to the load that measures one of its cells."""

import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from fleetsieve.cell import Cell
from fleetsieve.durations import longest_window
from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet
from fleetsieve.workload import Arrivals, TokenCount, Workload
from fleetsieve_measure.arrivals import constant, gamma, poisson, replayed
from fleetsieve_measure.lengths import (
    Clipped,
    Constant,
    Independent,
    InOrder,
    Lengths,
    Lognormal,
    Rows,
    Tokens,
)
from fleetsieve_measure.load import ClosedLoop, Load, OpenLoop
from fleetsieve_measure.traces import read_trace
from fleetsieve_measure.trial import Rules

_LEAST_DRAIN = 60.0
_LIMITS = ("max-model-len", "max_seq_len", "context-length", "max-seq-len")
Times = np.ndarray | None


def lengths_of(fleet: Fleet, workload: Workload, args: Mapping[str, Any]) -> tuple[Lengths, Times]:
    """Where request lengths come from, and the arrival times of a trace that has them.

    `args` of the engine may limit prompt and output together.

    Raises:
        InputError: the workload says nothing of its requests, or its trace cannot be read.
    """
    requests = workload.requests
    if requests is None:
        raise InputError(
            f"{fleet.source}: workload {workload.name!r} has no requests to measure with; give "
            "requests: {prompt_tokens: .., output_tokens: ..} or {trace: <path>}"
        )
    times: Times = None
    if requests.trace is not None:
        trace = read_trace(fleet.resolve(requests.trace))
        rows, times = Rows(trace.prompt_tokens, trace.output_tokens), trace.time
        lengths: Lengths = InOrder(rows) if _in_order(workload) else rows
    else:
        lengths = Independent(_tokens(requests.prompt_tokens), _tokens(requests.output_tokens))
    limit = next((v for k, v in args.items() if k.replace("_", "-") in _names()), None)
    return (Clipped(lengths, int(limit)) if limit is not None else lengths), times


def load_of(
    fleet: Fleet, workload: Workload, cell: Cell, times: Times, seed: tuple[int, ...]
) -> Load:
    """The load of a cell: arrivals at its rate, or users at its concurrency.

    Raises:
        InputError: arrivals are those of a trace that has no times.
    """
    if cell.kind == "concurrency":
        return ClosedLoop(round(cell.load), stagger=fleet.measure.warmup_seconds)
    arrivals = workload.arrivals or Arrivals(kind="poisson")
    rng = np.random.default_rng((*seed, 1))
    match arrivals.kind:
        case "constant":
            return OpenLoop(cell.load, partial(constant, cell.load))
        case "gamma" if arrivals.cv is not None:
            return OpenLoop(cell.load, partial(gamma, cell.load, arrivals.cv, rng))
        case "trace":
            if times is None:
                raise InputError(
                    f"{fleet.source}: workload {workload.name!r} has arrivals of a trace without "
                    "times; give arrivals: poisson, or a trace with times"
                )
            return OpenLoop(cell.load, partial(replayed, times, cell.load))
    return OpenLoop(cell.load, partial(poisson, cell.load, rng))


def rules_of(fleet: Fleet, workload: Workload) -> Rules:
    """How long a cell of `workload` is measured."""
    measure = fleet.measure
    return Rules(
        slo=dict(workload.slo),
        warmup=measure.warmup_seconds,
        seconds=measure.seconds,
        longest=longest_window(fleet),
        drain=stall_seconds(workload),
    )


def stall_seconds(workload: Workload) -> float:
    """After so long a silence no SLO of `workload` can hold any more."""
    return max(_LEAST_DRAIN, 2 * max(workload.slo.values(), default=0.0))


def seed_of(cell: Cell, seed: int, run: int) -> tuple[int, ...]:
    """Another one for each run of each cell, so that no prompt is sent twice to a server."""
    text = f"{cell.workload}\n{cell.config}\n{cell.load!r}"
    own = seed, zlib.crc32(text.encode())
    return (*own, run) if run else own


def _tokens(count: TokenCount | None) -> Tokens:
    assert count is not None  # a workload has both sides, or a trace
    if count.lognormal is None:
        constant_count = count.constant or 1
        return Constant(min(constant_count, count.max or constant_count))
    given = count.lognormal
    if count.max is None:
        return Lognormal(given.median, given.sigma)
    return Lognormal(given.median, given.sigma, count.max)


def _in_order(workload: Workload) -> bool:
    return workload.arrivals is not None and workload.arrivals.kind == "trace"


def _names() -> set[str]:
    return {name.replace("_", "-") for name in _LIMITS}
