"""A server that is measured: launched, or already up; ready once it has answered a completion."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fleetsieve_measure import gpu_memory
from fleetsieve_measure.control import Control
from fleetsieve_measure.engines import Diagnosis, Launch, engine_of
from fleetsieve_measure.engines.symptoms import last_words
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.leftovers import Leftovers
from fleetsieve_measure.process import Process
from fleetsieve_measure.prometheus import totals
from fleetsieve_measure.results import FailureKind

_T = TypeVar("_T")

_HOST = "127.0.0.1"
_UP = 15.0
_POLL = 0.2
_TAIL = 40
# Characters or bytes in every vocabulary, and too many for a BOS token to make up the difference.
_PROMPT_IDS = list(range(40, 57))


class LaunchFailed(Exception):
    """A server did not come up.

    Attributes:
        kind: of the failure, as in `Failed`.
        reason: one sentence with the line of the log that decided it.
        infrastructure: the config is not to blame, and another try may help.
        seconds: what the attempt took.
        log: the last lines that the server logged.
    """

    def __init__(self, why: Diagnosis, seconds: float, log: tuple[str, ...] = ()) -> None:
        super().__init__(why.reason)
        self.kind: FailureKind = why.kind
        self.reason = why.reason
        self.infrastructure = why.infrastructure
        self.seconds = seconds
        self.log = log


class Server:
    """One server; `start` and `stop` it, or use it as an asynchronous context manager.

    Attributes:
        launch: how it was launched.
        url: its address, without /v1; "" before it starts.
        headers: what every request to it needs, such as the API key.
        model: the name that it serves.
        kv_cache_tokens: the size of its KV cache, where its log says so.
        launch_seconds: from the start to the first completion.
        takes_ids: a prompt may be token ids, and they are taken as they are.
        launched_for_this_lease: it was started for whoever uses it now, not left up by another.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        deadline: float = 600.0,
        grace: float = 10.0,
        patience: float = 60.0,
        leftovers: Leftovers | None = None,
        memory: gpu_memory.Reader | None = None,
        settle: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a server.

        Args:
            launch: what to launch; checked here, so that wrong input is known before anything runs.
            deadline: seconds until it has to be ready.
            grace: seconds between TERM and KILL.
            patience: seconds that one request of our own may take.
            leftovers: where its process group is written down.
            memory: reads the memory in use on GPUs, which has to settle after a stop.
            settle: seconds between two looks at it.
            clock: tells seconds.

        Raises:
            InputError: `launch` is wrong.
        """
        self._engine = engine_of(launch)
        self._engine.command(launch)
        self._engine.environment(launch)
        self.launch = replace(launch, folder=launch.folder.absolute())
        self.headers = _headers(launch)
        self.url = ""
        self.model = launch.model
        self.kv_cache_tokens: int | None = None
        self.launch_seconds = 0.0
        self.takes_ids = False
        self.launched_for_this_lease = self._engine.launched
        # A server that is said to be up is not waited for as one that has to load a model.
        self._deadline = deadline if self._engine.launched else min(deadline, _UP)
        self._grace = grace
        self._patience = patience
        self._leftovers = leftovers
        self._memory, self._settle = memory, settle
        self._clock = clock
        self._process: Process | None = None
        self._control: Control | None = None
        self._up = False
        self._log_start = 0

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def alive(self) -> bool:
        """Whether it was started, and neither stopped nor ended by itself."""
        return self._up and (self._process is None or self._process.returncode is None)

    async def exited(self) -> int | None:
        """The exit code, once the process has ended; never where it is not ours."""
        if self._process is None:
            await asyncio.Event().wait()
            return None
        return await self._process.exited

    async def start(self) -> Self:
        """Start it and wait until it has answered a completion.

        Raises:
            LaunchFailed: it did not come up; nothing of it is left running.
            InputError: its executable is missing.
        """
        begin = self._clock()
        self._up = True
        try:
            why = await self._launched()
            control = self._control = Control(self.url, self.headers, self._patience)
            why = why or await self._until_ready(control, begin + self._deadline)
            if why is not None:
                raise LaunchFailed(why, self._clock() - begin, self.log_tail())
            self.launch_seconds = self._clock() - begin
            self.takes_ids = await control.completes(self.model, _PROMPT_IDS)
        except BaseException:
            await self.stop()
            raise
        if self._process is not None:
            self.kv_cache_tokens = self._engine.kv_cache_tokens(self._process.log_lines())
            self.forget_log()
            # Once it has crashed nobody can tell.
            self._process.note_shared_memory()
        return self

    async def stop(self) -> None:
        """Stop it, and wait until its GPUs have settled; harmless where it does not run."""
        if not self._up:
            return
        self._up = False
        try:
            # Engines leave streams hanging on TERM, so that our connections go first.
            if self._control is not None:
                await self._control.close()
        finally:
            if self._process is not None:
                await self._process.stop(self._grace)
                await gpu_memory.settled(
                    self._engine.devices(self.launch), self._memory, interval=self._settle
                )

    async def healthy(self, patience: float | None = None) -> bool:
        """Whether it completes a token within `patience` seconds; /health says too little.

        An HTTP front end may answer happily long after the engine behind it has died.
        """
        if self._control is None or not self.alive:
            return False
        return await self._control.completes(self.model, patience=patience)

    async def reset_cache(self) -> bool:
        """Empty the prefix cache; False where the engine cannot, or will not right now."""
        if self._control is None or not self.alive or self._engine.cache_reset is None:
            return False
        return await self._control.reset_cache(self._engine.cache_reset)

    def forget_log(self) -> None:
        """What it has logged so far says nothing about failures from now on."""
        if self._process is not None:
            self._log_start = self._process.log_size()

    async def listed(self) -> bool:
        """Whether its front end answers, which says nothing of the engine behind it."""
        return self._control is not None and (await self._control.models())[0] == 200

    async def counters(self) -> dict[str, float]:
        """What its engine counts; empty where it tells nothing."""
        names = self._engine.counters
        if self._control is None or not self.alive or not names:
            return {}
        return totals(await self._control.page("/metrics"), names)

    def failure(self, default: FailureKind) -> Diagnosis:
        """Why it fails under load, by its exit code and by what it has logged since it was ready.

        `default` is the kind where it still runs and its log says nothing.
        """
        if self._process is not None:
            return self._diagnosis(self._process, self._process.log_lines(self._log_start), default)
        trouble = "it was not started" if self._control is None else self._control.trouble
        return Diagnosis(default, f"{self.url}: {trouble}")

    def log_tail(self) -> tuple[str, ...]:
        """The last lines that its process logged."""
        return () if self._process is None else tuple(self._process.log_tail(_TAIL))

    async def _launched(self) -> Diagnosis | None:
        launch = self.launch
        if not self._engine.launched:
            self.url = launch.url.rstrip("/").removesuffix("/v1")
            return None
        if launch.port and await _answers(launch.port):
            return Diagnosis(
                "error",
                f"port {launch.port} answers before {launch.kind} was started: "
                "another server is there",
                infrastructure=True,
            )
        self.launch = launch = replace(launch, port=launch.port or _free_port())
        self.url = f"http://{_HOST}:{launch.port}"
        self._process = await Process.start(
            self._engine.command(launch),
            log=_new_log(launch.folder),
            env={**os.environ, **self._engine.environment(launch)},
            leftovers=self._leftovers,
        )
        return None

    async def _until_ready(self, control: Control, end: float) -> Diagnosis | None:
        """None once it is ready, else why it will not be."""
        exited = {self._process.exited} if self._process is not None else set()
        while True:
            verdict = await _before(exited, self._ready(control), end - self._clock())
            if verdict is None:
                return self._not_ready(control)
            if verdict is not False:
                return None if verdict is True else verdict
            await _before(exited, asyncio.sleep(_POLL), end - self._clock())

    async def _ready(self, control: Control) -> Diagnosis | bool:
        """Whether it is ready now, or why it never will be."""
        status, names = await control.models()
        if status in (401, 403):
            return Diagnosis("error", f"{control.trouble}; name its variable in api_key_env")
        # What we launch lists first what it was launched with, whatever it calls it. A server of
        # somebody else may serve what it does not list.
        if names and (self._engine.launched or not self.launch.model):
            self.model = self.launch.model if self.launch.model in names else names[0]
        return status == 200 and bool(self.model) and await control.completes(self.model)

    def _not_ready(self, control: Control) -> Diagnosis:
        """Why it has ended, or was not ready in time."""
        lines = [] if self._process is None else self._process.log_lines()[1:]
        if self._process is not None and self._process.returncode is not None:
            return self._diagnosis(self._process, lines, "error")
        # What answers and still serves nothing is worth another try; what is slow is slow again.
        found = self._engine.diagnose(lines) or Diagnosis(
            "unhealthy" if control.answered else "timeout",
            control.trouble,
            infrastructure=control.answered,
        )
        late = f"{self.launch.kind} was not ready after {self._deadline:g} s"
        return replace(found, reason=f"{late}: {found.reason}")

    def _diagnosis(self, process: Process, lines: list[str], default: FailureKind) -> Diagnosis:
        code = process.returncode
        state = "still runs" if code is None else f"ended {_exit(code)}"
        found = self._engine.diagnose(lines)
        if found is not None:
            return replace(found, reason=f"{self.launch.kind} {state}: {found.reason}")
        return Diagnosis(
            default if code is None else "error",
            f"{self.launch.kind} {state}: {last_words(lines)}",
            infrastructure=code in (-signal.SIGKILL, -signal.SIGTERM),
        )


async def _before(
    exited: set[asyncio.Future[int]], work: Coroutine[Any, Any, _T], seconds: float
) -> _T | None:
    """What `work` gives; None where the process or so many seconds end first."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, *exited}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not any(future.done() for future in exited):
            return task.result()
    finally:
        task.cancel()
    return None


def _headers(launch: Launch) -> dict[str, str]:
    if not launch.api_key_env:
        return {}
    key = os.environ.get(launch.api_key_env)
    if not key:
        raise InputError(f"api_key_env is {launch.api_key_env}, which is not set; set it")
    return {"Authorization": f"Bearer {key}"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return probe.getsockname()[1]


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(_HOST, port)
    except OSError:
        return False
    writer.close()
    return True


def _new_log(folder: Path) -> Path:
    """The log of the next server that runs in `folder`."""
    return folder / f"server-{1 + len(list(folder.glob('server-*.log')))}.log"


def _exit(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
