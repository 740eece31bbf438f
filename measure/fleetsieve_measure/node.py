"""One node: servers placed on its GPUs, kept up while the next cell may want them."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from fleetsieve_measure import gpu_memory
from fleetsieve_measure.engines import Diagnosis, Launch, engine_of
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.leftovers import Leftovers
from fleetsieve_measure.server import LaunchFailed, Server
from fleetsieve_measure.slots import Slots

_SAME_CACHE = 0.1


@dataclass(eq=False)
class _Held:
    """A server that runs, and what is given back once it does not."""

    key: str
    server: Server
    block: tuple[int, ...]
    folder: str


class Node:
    """Launches servers on the GPUs of `slots`; an asynchronous context manager.

    A server stays up after its use for whoever wants the same key next, until another key needs
    its GPUs. Leaving the context stops all of them.
    """

    def __init__(
        self,
        slots: Slots,
        folder: Path,
        *,
        deadline: float = 600.0,
        grace: float = 10.0,
        patience: float = 60.0,
        tries: int = 3,
        back_off: float = 5.0,
        memory: gpu_memory.Reader | None = None,
        settle: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare a node.

        Args:
            slots: its GPUs.
            folder: of the run; each server gets a folder in it.
            deadline, grace, patience, settle: of every server; see `Server`.
            tries: launches before a failure of the infrastructure is given up.
            back_off: seconds before the second try, doubled for every further one.
            memory: reads the memory in use on GPUs; None takes what this machine has.
            clock: tells seconds.
            sleep: waits so many seconds.

        Raises:
            InputError: there is no try.
        """
        if tries < 1:
            raise InputError(f"tries is {tries}; give at least 1")
        memory = memory or gpu_memory.reader()
        self._slots = slots
        self._folder = folder
        self._tries = tries
        self._back_off = back_off
        self._clock = clock
        self._sleep = sleep
        self._leftovers = Leftovers(folder / "leftovers")
        self._server = lambda launch: Server(
            launch,
            deadline=deadline,
            grace=grace,
            patience=patience,
            leftovers=self._leftovers,
            memory=memory,
            settle=settle,
            clock=clock,
        )
        self._idle: list[_Held] = []
        self._used: list[_Held] = []
        self._folders: set[str] = set()
        self._cache_sizes: dict[str, int] = {}
        self._urls: dict[str, asyncio.Lock] = {}
        self._starting = asyncio.Lock()
        self._queue = asyncio.Lock()
        self._released = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> Self:
        self._leftovers.end()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        async with asyncio.TaskGroup() as group:
            for held in idle:
                group.create_task(self._end(held))
            for held in self._used:
                group.create_task(held.server.stop())

    @property
    def idle(self) -> set[str]:
        """The keys of servers that are up and unused."""
        return {held.key for held in self._idle}

    @contextlib.asynccontextmanager
    async def server(self, key: str, launch: Launch, gpus: int) -> AsyncIterator[Server]:
        """A server for one user at a time, launched as `launch` says on `gpus` GPUs of this node.

        `key` names what is launched; `launch_seconds` of the server counts all tries, since they
        held the GPUs. Users are served in the order in which they came, so that one who wants many
        GPUs is not passed over for ever. Where the body raises, the server is stopped, since
        nobody knows what it is still busy with.

        Raises:
            LaunchFailed: it does not come up.
            InputError: `launch` is wrong, or no block of the node has that many GPUs.
        """
        if not engine_of(launch).launched:
            async with (
                self._urls.setdefault(launch.url, asyncio.Lock()),
                self._server(launch) as server,
            ):
                yield server
            return
        held = await self._get(key, launch, gpus)
        self._used.append(held)
        try:
            yield held.server
        except BaseException:
            await held.server.stop()
            raise
        finally:
            self._used.remove(held)
            await self._release(held)

    async def _get(self, key: str, launch: Launch, gpus: int) -> _Held:
        async with self._queue:
            held = await self._reused(key, gpus)
            if held is not None:
                return held
            block = await self._room(gpus)
        folder = self._new_folder(key)
        try:
            launch = replace(launch, gpus=block, folder=self._folder / folder)
            return _Held(key, await self._started(key, launch), block, folder)
        except BaseException:
            self._give_back(block, folder)
            raise

    async def _reused(self, key: str, gpus: int) -> _Held | None:
        """The server of `key` that was released last and still works."""
        fitting = [one for one in self._idle if one.key == key and len(one.block) == gpus]
        for held in reversed(fitting):
            self._idle.remove(held)
            healthy = False
            try:
                healthy = await held.server.healthy()
            finally:
                if not healthy:
                    await self._end(held)
            if healthy:
                held.server.launched_for_this_lease = False
                return held
        return None

    async def _room(self, gpus: int) -> tuple[int, ...]:
        """A free block, for which idle servers make way, the longest idle first."""
        while (block := self._slots.take(gpus)) is None:
            if self._idle:
                await self._end(self._idle.pop(0))
            else:
                self._released.clear()
                await self._released.wait()
        return block

    async def _started(self, key: str, launch: Launch) -> Server:
        spent, attempt = 0.0, 1
        while True:
            try:
                server = await self._start(launch)
                spent += server.launch_seconds
                await self._compare(key, server)
            except LaunchFailed as failed:
                spent += failed.seconds
                failed.seconds = spent
                if attempt == self._tries or not failed.infrastructure:
                    raise
            else:
                server.launch_seconds = spent
                return server
            pause = self._back_off * 2 ** (attempt - 1)
            await self._sleep(pause)
            spent, attempt = spent + pause, attempt + 1

    async def _start(self, launch: Launch) -> Server:
        alone = self._starting if engine_of(launch).races else contextlib.nullcontext()
        async with alone:
            return await self._server(launch).start()

    async def _compare(self, key: str, server: Server) -> None:
        """Refuse a KV cache of another size than at the launch of `key` before.

        A neighbour that starts at the same time can make an engine size its cache wrongly without
        a word. Which of the two was right, the next launch tells: two in a row have to agree.
        """
        size = server.kv_cache_tokens
        before = self._cache_sizes.get(key)
        if size is None:
            return
        self._cache_sizes[key] = size
        if before is None or abs(size - before) <= _SAME_CACHE * before:
            return
        await server.stop()
        raise LaunchFailed(
            Diagnosis(
                "error",
                f"the KV cache of {key} has {size} tokens, and had {before} at the launch before",
                infrastructure=True,
            ),
            0.0,
        )

    async def _release(self, held: _Held) -> None:
        if held.server.alive and not self._closed:
            self._idle.append(held)
            self._released.set()
        else:
            await self._end(held)

    async def _end(self, held: _Held) -> None:
        try:
            await held.server.stop()
        finally:
            self._give_back(held.block, held.folder)

    def _give_back(self, block: tuple[int, ...], folder: str) -> None:
        self._slots.give(block)
        self._folders.discard(folder)
        self._released.set()

    def _new_folder(self, key: str) -> str:
        """A folder that no server runs in; the one of an earlier launch has its caches filled."""
        stem = re.sub(r"[^\w.-]+", "_", key)[:80]
        number = 1
        while (name := f"{stem}-{number}") in self._folders:
            number += 1
        self._folders.add(name)
        return name
