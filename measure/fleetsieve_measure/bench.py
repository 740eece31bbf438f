"""Measures cells on the servers of a node: launches, loads, judges, and tries again."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fleetsieve_measure.client import ABORTED, SILENT, Client, completion
from fleetsieve_measure.engines import Launch
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.lengths import Lengths
from fleetsieve_measure.load import Load
from fleetsieve_measure.node import Node
from fleetsieve_measure.outcome import outcome_of
from fleetsieve_measure.prompts import Words
from fleetsieve_measure.results import Failed, FailureKind, Outcome
from fleetsieve_measure.server import LaunchFailed, Server
from fleetsieve_measure.trial import Rules, Sample
from fleetsieve_measure.worker import Task, WorkerKilled, run_apart

# Words of the prompts that calibrate a server which takes text only.
_CALIBRATION = (16, 64, 128)
_MARGIN = 60.0
_LOG_LINES = 20


@dataclass(frozen=True)
class CellPlan:
    """How to measure one cell.

    Attributes:
        key: names the server: cells of the same key can use the same one.
        launch: how it is launched.
        gpus: GPUs of one replica, by which its seconds are charged.
        seed: of lengths and prompts; another for each cell, so that no prompt comes twice.
    """

    key: str
    launch: Launch
    gpus: int
    lengths: Lengths
    load: Load
    rules: Rules
    stall_seconds: float
    seed: tuple[int, ...]


@dataclass(frozen=True)
class Finding:
    """The outcome of a cell, and the requests that it rests on, if there were any."""

    outcome: Outcome
    sample: Sample | None = None


@dataclass
class _Attempt:
    finding: Finding
    again: bool = False
    sick: bool = False


class _Broken(Exception):
    """Takes an attempt out of the lease of a server that must not be used any more."""

    def __init__(self, attempt: _Attempt) -> None:
        super().__init__()
        self.attempt = attempt


class Bench:
    """Measures cells on `node`."""

    def __init__(
        self,
        node: Node,
        *,
        tries: int = 3,
        back_off: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """What failed through no fault of the config is tried up to `tries` times."""
        self._node, self._tries, self._back_off = node, tries, back_off
        self._clock, self._sleep = clock, sleep
        self._words: dict[str, Words] = {}
        self._refused: dict[str, LaunchFailed] = {}

    async def measure(self, plan: CellPlan) -> Finding:
        """Measure one cell; the GPU-seconds are those of all attempts, launches included.

        Raises:
            InputError: the launch is wrong.
        """
        spent = 0.0
        for number in range(1, self._tries + 1):
            attempt = await self._attempt(replace(plan, seed=(*plan.seed, number)))
            outcome = attempt.finding.outcome
            spent += outcome.gpu_seconds
            summary = {**outcome.summary, "attempts": number}
            found = replace(outcome, gpu_seconds=spent, summary=summary)
            if not attempt.again or number == self._tries:
                key = os.environ.get(plan.launch.api_key_env, "")
                return _without(key, Finding(found, attempt.finding.sample))
            await self._sleep(self._back_off * 2 ** (number - 1))
        raise AssertionError("tries is at least 1")

    async def _attempt(self, plan: CellPlan) -> _Attempt:
        if plan.key in self._refused:
            # What the config itself is to blame for is so again, and is paid for once.
            failed = self._refused[plan.key]
            outcome = Failed(kind=failed.kind, gpu_seconds=0.0, reason=failed.reason)
            return _Attempt(Finding(outcome))
        try:
            async with self._node.server(plan.key, plan.launch, plan.gpus) as server:
                attempt = await self._on(server, plan)
                failed = isinstance(attempt.finding.outcome, Failed)
                if attempt.sick or (failed and not await server.healthy()):
                    raise _Broken(attempt)
                return attempt
        except _Broken as broken:
            return broken.attempt
        except LaunchFailed as failed:
            if not plan.launch.url and not failed.infrastructure:
                self._refused[plan.key] = failed
            elif plan.launch.url and failed.kind == "timeout":
                raise InputError(f"{failed.reason}; start the server, or correct its url") from None
            cost = plan.gpus * failed.seconds
            summary = {"log": list(failed.log[-_LOG_LINES:])}
            outcome = Failed(
                kind=failed.kind, gpu_seconds=cost, reason=failed.reason, summary=summary
            )
            return _Attempt(Finding(outcome))

    async def _on(self, server: Server, plan: CellPlan) -> _Attempt:
        launch = server.launch_seconds if server.launched_for_this_lease else 0.0
        begin = self._clock()

        def cost() -> float:
            return plan.gpus * (launch + self._clock() - begin)

        rules = plan.rules
        longest = rules.warmup + rules.longest + rules.drain + plan.stall_seconds + _MARGIN
        try:
            async with asyncio.timeout(longest):
                server.forget_log()
                await server.reset_cache()
                before = await server.counters()
                words = None if server.takes_ids else await self._calibrated(server, plan)
                sample = await self._load(server, plan, words)
                after = await server.counters()
        except TimeoutError:
            reason = f"it did not end within {longest:.0f} s"
            return _Attempt(Finding(_failed("timeout", cost(), reason, server)))
        except WorkerKilled as killed:
            return _Attempt(Finding(_failed("error", cost(), str(killed), server)), again=True)
        verdict = outcome_of(sample, plan.load, rules, cost())
        outcome, again, sick = verdict.outcome, verdict.spoilt, False
        if isinstance(outcome, Failed) and not again:
            outcome, again, sick = await self._cause(server, outcome, sample)
        facts = {
            "launch_seconds": launch,
            "kv_cache_tokens": server.kv_cache_tokens,
            "counters": {name: value - before.get(name, 0.0) for name, value in after.items()},
            "saved_gpu_seconds": plan.gpus * outcome.summary.get("saved_seconds", 0.0),
        }
        summary = {**outcome.summary, **facts}
        outcome = replace(outcome, gpu_seconds=cost(), summary=summary)
        return _Attempt(Finding(outcome, sample), again, sick)

    async def _load(self, server: Server, plan: CellPlan, words: Words | None) -> Sample:
        task = Task(
            url=server.url,
            model=server.model,
            api_key=_key(server),
            lengths=plan.lengths,
            words=words,
            load=plan.load,
            rules=plan.rules,
            stall_seconds=plan.stall_seconds,
            seed=plan.seed,
        )
        gone = asyncio.Event()

        async def watch() -> None:
            await server.exited()
            gone.set()

        watching = asyncio.ensure_future(watch())
        try:
            return await run_apart(task, gone)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _cause(
        self, server: Server, outcome: Failed, sample: Sample
    ) -> tuple[Failed, bool, bool]:
        """Why a run failed, by the server's log and health; whether to try again; if it is sick."""
        errors = [record.error or "" for record in sample.records]
        if sample.early:  # then what was cut off says nothing
            errors = [error for error in errors if error != ABORTED]
        silent = sum(error == ABORTED or error.startswith(SILENT) for error in errors)
        default: FailureKind = "timeout" if 2 * silent > len(errors) else "unhealthy"
        if server.alive and await server.healthy():
            kind = "timeout" if default == "timeout" else outcome.kind
            return replace(outcome, kind=kind), False, False
        if await server.listed():
            default = "unhealthy"  # its front end lives, its engine does not
        why = server.failure(default)
        reason = f"{outcome.reason}; {why.reason}"
        found = _failed(why.kind, outcome.gpu_seconds, reason, server)
        summary = {**outcome.summary, **found.summary}
        return replace(found, summary=summary), why.infrastructure, True

    async def _calibrated(self, server: Server, plan: CellPlan) -> Words:
        """How many tokens the server counts in prompts of so many words."""
        if plan.key not in self._words:
            words, rng = Words(), np.random.default_rng(plan.seed)
            counted: list[tuple[int, int]] = []
            async with Client(server.url, api_key=_key(server), stall_seconds=60) as client:
                for count in _CALIBRATION:
                    body = completion(server.model, words.text(rng, count), max_tokens=1)
                    reported = (await client.send(body)).prompt_reported
                    if reported is not None:
                        counted.append((count, reported))
            # Where it counts prompts in no such way, the check of lengths at the end says so.
            with contextlib.suppress(InputError):
                words = Words.calibrated(*zip(*counted, strict=True)) if counted else words
            self._words[plan.key] = words
        return self._words[plan.key]


def _failed(kind: FailureKind, gpu_seconds: float, reason: str, server: Server) -> Failed:
    summary: dict[str, Any] = {"log": list(server.log_tail()[-_LOG_LINES:])}
    return Failed(kind=kind, gpu_seconds=gpu_seconds, reason=reason, summary=summary)


def _without(key: str, finding: Finding) -> Finding:
    """`finding` without the API key, which servers repeat in what they refuse or log."""
    if not key:
        return finding
    outcome, sample = finding.outcome, finding.sample
    outcome = replace(outcome, summary=_hidden(outcome.summary, key))
    if isinstance(outcome, Failed):
        outcome = replace(outcome, reason=_hidden(outcome.reason, key))
    for record in sample.records if sample is not None else ():
        record.error = _hidden(record.error, key)
    return Finding(outcome, sample)


def _hidden(value: Any, key: str) -> Any:
    match value:
        case str():
            return value.replace(key, "***")
        case list():
            return [_hidden(item, key) for item in value]
        case dict():
            return {name: _hidden(item, key) for name, item in value.items()}
    return value


def _key(server: Server) -> str | None:
    return server.headers.get("Authorization", "").removeprefix("Bearer ") or None
