"""`python -m fleetsieve_measure.simulated`: a simulated engine as a server process of its own."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from aiohttp import web

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.simulated.replica import OutOfMemoryError, Replica
from fleetsieve_measure.simulated.server import Server

_LOG = logging.getLogger("simulated")
# For streams in flight, which are cut; 0 would mean to wait for them.
_GRACE_SECONDS = 0.05
_REPLICA_ARGUMENTS = (
    "model",
    "gpu",
    "tensor_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_memory_utilization",
    "block_size",
    "quantization",
    "kv_cache_dtype",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code.

    0 when told to stop, 1 when the engine cannot start (out of memory, port taken), 2 when the
    arguments are wrong.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(levelname)s %(asctime)s [%(name)s] %(message)s",
        datefmt="%m-%d %H:%M:%S",
    )
    try:
        chosen = {name: getattr(arguments, name) for name in _REPLICA_ARGUMENTS}
        replica = Replica(**{name: value for name, value in chosen.items() if value is not None})
        key = _api_key(arguments.api_key_env)
        _log_memory(replica)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OutOfMemoryError as error:
        _LOG.error("%s", error)
        return 1
    server = Server(replica, arguments.served_model_name or arguments.model, key)
    try:
        asyncio.run(_serve(server, arguments.port, arguments.startup_seconds))
    except OSError as error:
        _LOG.error("cannot listen on 127.0.0.1:%d: %s", arguments.port, error)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fleetsieve_measure.simulated", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--port", type=_port, required=True, help="on 127.0.0.1")
    parser.add_argument("--model", required=True, help="such as qwen3-32b or Qwen/Qwen3-32B-FP8")
    parser.add_argument("--served-model-name", help="what requests call it; by default as --model")
    parser.add_argument("--gpu", help="h100 (default), h200, a100 or l40s")
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, help="GPUs; default 1")
    parser.add_argument("--max-num-seqs", type=int, help="default 256")
    parser.add_argument("--max-num-batched-tokens", type=int, help="per step; default 8192")
    parser.add_argument("--max-model-len", type=int, help="default: the longest that fits")
    parser.add_argument("--gpu-memory-utilization", type=float, help="default 0.9")
    parser.add_argument("--block-size", type=int, help="tokens per KV-cache block; default 16")
    parser.add_argument("--quantization", help="fp8: 8-bit weights")
    parser.add_argument("--kv-cache-dtype", help="auto (default) or fp8")
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable with the key")
    parser.add_argument(
        "--startup-seconds", type=float, default=0.0, help="before connections are accepted"
    )
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"{port} is no port; give one from 1 to 65535")
    return port


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise InputError(f"api-key-env names {variable}, which is not set; export it")
    return key


def _log_memory(replica: Replica) -> None:
    _LOG.info("Model loading took %.2f GiB per GPU", replica.weights / 2**30)
    tokens = replica.limits.capacity
    _LOG.info("GPU KV cache size: %s tokens", f"{tokens:,}")
    _LOG.info(
        "Maximum concurrency for %s tokens per request: %.2fx",
        f"{replica.longest:,}",
        tokens / replica.longest,
    )


async def _serve(server: Server, port: int, startup_seconds: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.ensure_future(stop.wait())
    if (await asyncio.wait({stopped}, timeout=startup_seconds))[0]:
        return
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_GRACE_SECONDS,
    )
    await runner.setup()
    engine = asyncio.ensure_future(server.run())
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        _LOG.info("Application startup complete.")
        await asyncio.wait({engine, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if engine.done():
            engine.result()
    finally:
        engine.cancel()
        stopped.cancel()
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
