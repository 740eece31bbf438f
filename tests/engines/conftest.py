"""Real engines, each from an environment of its own: with --engines, where they are installed."""

import asyncio
import contextlib
import os
import runpy
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetsieve_measure.engines import Launch
from fleetsieve_measure.leftovers import Leftovers, members
from fleetsieve_measure.process import Process
from fleetsieve_measure.server import LaunchFailed, Server

HERE = Path(__file__).parent
NAMES = ("mlx", "dynamo", "dynamo-trtllm", "vllm")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
VLLM_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", **OFFLINE}
VLLM_ARGS = {
    "served-model-name": "tiny",
    "enforce-eager": True,
    "max-model-len": 2048,
    "max-num-seqs": 8,
    "dtype": "float32",
    "shutdown-timeout": 5,
}
DYNAMO_ENV = {
    **{f"DYN_{name}_HOST": "127.0.0.1" for name in ("TCP_RPC", "TCP_RESPONSE_STREAM", "SYSTEM")},
    "DYN_DISCOVERY_BACKEND": "file",
    # Without a broker, publishers of events listen on all addresses. There is none here, so that
    # events get lost, which only a router that follows KV caches would miss.
    "DYN_ZMQ_BROKER_URL": "xsub=tcp://127.0.0.1:9,xpub=tcp://127.0.0.1:9",
    **OFFLINE,
}


def pytest_ignore_collect(collection_path, config):
    return None if collection_path.is_dir() or config.getoption("--engines") else True


@dataclass
class Engine:
    """An engine that serves: how it is asked, and the process group that computes."""

    server: Server
    group: int


class Installed:
    """The engines that `install.py` has installed."""

    def __init__(self):
        install = runpy.run_path(str(HERE / "install.py"))
        self._home, self._has = install["home"](), install["installed"]

    def program(self, engine, name):
        """The path of an executable; the test is skipped where the engine is not installed."""
        if not self._has(engine):
            pytest.skip(f"{engine} is not installed: python tests/engines/install.py {engine}")
        return str(self._home / engine / "bin" / name)

    def tiny_model(self, folder):
        """Make a tiny model in `folder`, with what any engine brings."""
        engines = [name for name in ("mlx", "dynamo", "vllm") if self._has(name)]
        python = self.program((*engines, "mlx")[0], "python")
        subprocess.run([python, HERE / "tiny_model.py", folder], check=True)
        return folder


@pytest.fixture(scope="session")
def installed():
    return Installed()


@pytest.fixture(scope="session")
def tiny_model(installed, tmp_path_factory):
    """The folder of a tiny model."""
    return installed.tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def start(installed, tiny_model, tmp_path_factory):
    """Makes an asynchronous context with the `Engine` of a name."""

    def start_one(name):
        folder = tmp_path_factory.mktemp(name)
        if name == "mlx":
            return _mlx(installed.program("mlx", "mlx_lm.server"), tiny_model, folder)
        if name == "vllm":
            return _vllm(vllm_launch(installed, tiny_model, folder))
        kind = name.partition("-")[2] or "vllm"
        return _dynamo(installed.program("dynamo", "python"), tiny_model, folder, kind)

    return start_one


@pytest.fixture
def vllm(installed, tiny_model, tmp_path):
    """The launch of a vLLM server."""
    return vllm_launch(installed, tiny_model, tmp_path)


@pytest.fixture(scope="module", params=NAMES)
def served(request, start):
    """An event loop's runner, and an engine that serves as long as the module needs it."""
    context = start(request.param)
    with asyncio.Runner() as runner:
        engine = runner.run(context.__aenter__())
        try:
            yield runner, engine
        finally:
            runner.run(context.__aexit__(None, None, None))
        assert not members(engine.group)


def vllm_launch(installed, model, folder):
    return Launch(
        kind="vllm",
        model=str(model),
        args=VLLM_ARGS,
        env=VLLM_ENV,
        command=(installed.program("vllm", "vllm"),),
        folder=folder,
    )


@contextlib.asynccontextmanager
async def _vllm(launch):
    notes = launch.folder / "running"
    async with Server(launch, deadline=300, leftovers=Leftovers(notes)) as server:
        (note,) = notes.iterdir()
        yield Engine(server, int(note.stem))


@contextlib.asynccontextmanager
async def _mlx(program, model, folder):
    port = free_port()
    command = [program, "--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    async with (
        _process(command, folder, OFFLINE) as child,
        _up(port, "default_model", child) as server,
    ):
        yield Engine(server, child.pid)


@contextlib.asynccontextmanager
async def _dynamo(python, model, folder, kind):
    port = free_port()
    env = {**DYNAMO_ENV, "DYN_FILE_KV": str(folder / "discovery")}
    front = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    work = [python, "-m", "dynamo.mocker", "--model-path", str(model), "--model-name", "tiny"]
    async with (
        _process(front, folder / "frontend", env),
        _process([*work, "--engine-type", kind], folder / "worker", env) as worker,
        _up(port, "tiny", worker) as server,
    ):
        yield Engine(server, worker.pid)


@contextlib.asynccontextmanager
async def _process(command, folder, env):
    child = await Process.start(command, log=folder / "log", env={**os.environ, **env})
    try:
        yield child
    finally:
        await child.stop(grace=5)


@contextlib.asynccontextmanager
async def _up(port, model, child):
    server = Server(Launch(kind="openai", model=model, url=f"http://127.0.0.1:{port}"), deadline=60)
    try:
        await server.start()
    except LaunchFailed as failure:
        failure.add_note("\n".join(child.log_tail(20)))
        raise
    try:
        yield server
    finally:
        await server.stop()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
