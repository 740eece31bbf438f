"""Renders a study in a process of its own, which is started when needed and never outlives us."""

import asyncio
import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from fleetsieve.errors import InputError

# A page of a large fleet, as one line of JSON.
_LONGEST = 2**28


class Renderer:
    """An asynchronous context manager; leaving it ends the process, whatever it is doing."""

    def __init__(self, study: Path, grid: Path | None) -> None:
        self._request = json.dumps([str(study), None if grid is None else str(grid)])
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    async def render(self) -> str:
        """The page of the study as it is now.

        Raises:
            InputError: the study cannot be read now, or the process has ended.
        """
        try:
            answer = json.loads(await self._asked(await self._running()))
        except (OSError, ValueError):  # it ended, or its answer is no line of JSON
            await self._stop()
            raise InputError("the page could not be made; it is tried again later") from None
        if "page" not in answer:
            raise InputError(answer["error"])
        return answer["page"]

    async def _asked(self, process: asyncio.subprocess.Process) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{self._request}\n".encode())
        await process.stdin.drain()
        return await process.stdout.readline()

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            # In a session of its own, since Ctrl-C is for us alone.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "fleetsieve.watch.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LONGEST,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        return self._process
