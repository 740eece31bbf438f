"""A server is ready when it completes a token, and what keeps it from that is told at once."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from fleetsieve_measure.engines import Launch
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.leftovers import start_time
from fleetsieve_measure.server import LaunchFailed, Server

FAKE = Path(__file__).with_name("fake_engine.py")
OUT_OF_MEMORY = (
    "(EngineCore pid=7) ERROR 11-30 [core.py:9] torch.OutOfMemoryError: CUDA out of memory."
)


def launch(folder, **wishes):
    """A launch of a fake vLLM that misbehaves as wished."""
    return Launch(
        kind="vllm",
        model="tiny",
        command=(sys.executable, str(FAKE)),
        env={"FAKE": json.dumps(wishes)},
        folder=folder,
    )


def server(launched, **options):
    return Server(launched, **{"deadline": 20.0, "grace": 1.0, "patience": 5.0, **options})


async def glance(up):
    return up


def use(launched, look=glance, **options):
    """What `look` sees of a server that is started, and stopped afterwards."""

    async def scenario():
        async with server(launched, **options) as up:
            return await look(up)

    return asyncio.run(scenario())


def failed(launched, **options):
    """The failure of a launch, and the seconds after which it was told."""
    begin = time.monotonic()
    with pytest.raises(LaunchFailed) as caught:
        use(launched, **options)
    return caught.value, time.monotonic() - begin


def test_a_server_that_is_ready_is_known_by_its_model_its_cache_and_its_address(tmp_path):
    async def look(up):
        assert up.model == "tiny"
        assert up.kv_cache_tokens == 175_856
        assert up.url == f"http://127.0.0.1:{up.launch.port}"
        assert 0 < up.launch_seconds < 20
        assert up.takes_ids
        assert up.launched_for_this_lease
        assert up.alive
        assert await up.healthy()
        return up

    up = use(launch(tmp_path, kv_sizes=[175_856]), look)
    assert not up.alive
    assert not asyncio.run(up.healthy())
    assert (tmp_path / "server-1.log").read_text().startswith("$ ")


def test_it_is_asked_by_the_name_that_it_serves(tmp_path):
    async def look(up):
        return up.model, await up.healthy()

    assert use(launch(tmp_path, served="another-name"), look) == ("another-name", True)


def test_it_is_not_ready_before_it_binds_and_lists_its_model(tmp_path):
    async def look(up):
        return up.launch_seconds

    assert use(launch(tmp_path, bind_after=0.3, list_after=2), look) > 0.3 + 2 * 0.2


def test_a_front_end_that_is_healthy_while_the_engine_is_dead_is_never_ready(tmp_path):
    failure, _ = failed(launch(tmp_path, completes=0), deadline=1.0)
    assert (failure.kind, failure.infrastructure) == ("unhealthy", True)
    assert "not ready after 1 s" in failure.reason
    assert "/v1/completions gave 500" in failure.reason
    assert "EngineCore encountered an issue" in failure.reason


def test_a_completion_that_hangs_does_not_hold_the_deadline_up(tmp_path):
    wishes = {"completes": 0, "break": "hang"}
    failure, seconds = failed(launch(tmp_path, **wishes), deadline=1.0, patience=60.0)
    assert failure.kind == "unhealthy"
    assert 1 <= failure.seconds < seconds < 5


def test_a_server_that_never_binds_runs_into_the_deadline_and_is_not_tried_again(tmp_path):
    failure, _ = failed(launch(tmp_path, bind_after=600), deadline=0.5)
    assert (failure.kind, failure.infrastructure) == ("timeout", False)
    assert "/v1/models" in failure.reason


def test_a_front_end_that_never_lists_a_model_is_worth_another_try(tmp_path):
    launched = launch(tmp_path, listed=False, completes=0)
    failure, _ = failed(launched, deadline=1.0)
    assert (failure.kind, failure.infrastructure) == ("unhealthy", True)


def test_an_empty_list_is_fine_where_the_configured_model_completes(tmp_path):
    async def look(up):
        return up.model

    assert use(launch(tmp_path, listed=False), look) == "tiny"


def test_running_out_of_memory_is_told_at_once_in_the_engines_words(tmp_path):
    launched = launch(tmp_path, failures=1, last_words=[OUT_OF_MEMORY, "RuntimeError: later"])
    failure, seconds = failed(launched, deadline=600.0)
    assert (failure.kind, failure.infrastructure) == ("oom", False)
    assert failure.reason == (
        "vllm ended with exit code 1: torch.OutOfMemoryError: CUDA out of memory."
    )
    assert failure.log[-2:] == (OUT_OF_MEMORY, "RuntimeError: later")
    assert failure.seconds <= seconds < 10


def test_an_exit_is_seen_while_a_request_hangs(tmp_path):
    # One completion hangs, and the process dies under it.
    wishes = {"completes": 0, "break": "kill"}
    failure, seconds = failed(launch(tmp_path, **wishes), deadline=600.0, patience=600.0)
    assert (failure.kind, failure.infrastructure) == ("error", True)
    assert "vllm ended by SIGKILL" in failure.reason
    assert seconds < 10


def test_an_unknown_failure_is_the_configs_and_its_first_exception_the_reason(tmp_path):
    words = [
        "Traceback (most recent call last):",
        "KeyError: 'rope'",
        "",
        "RuntimeError: see above",
    ]
    failure, _ = failed(launch(tmp_path, failures=1, last_words=words))
    assert (failure.kind, failure.infrastructure) == ("error", False)
    assert failure.reason.endswith("KeyError: 'rope'")


def test_a_port_that_is_taken_is_no_fault_of_the_config(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # taken, but nobody answers there
        launched = launch(tmp_path)
        launched = Launch(**{**vars(launched), "port": taken.getsockname()[1]})
        failure, _ = failed(launched)
    assert failure.infrastructure
    assert "Address already in use" in failure.reason


def test_a_server_that_was_there_before_is_never_used(tmp_path):
    async def scenario():
        async with server(launch(tmp_path / "stale")) as stale:
            launched = Launch(**{**vars(launch(tmp_path / "new")), "port": stale.launch.port})
            with pytest.raises(LaunchFailed, match="another server is there") as caught:
                await server(launched).start()
            assert caught.value.infrastructure
            assert not list((tmp_path / "new").glob("*"))
            assert await stale.healthy()

    asyncio.run(scenario())


def test_the_api_key_goes_with_every_request_and_into_no_log(tmp_path, monkeypatch):
    monkeypatch.setenv("TINY_KEY", "sk-secret")
    launched = launch(tmp_path, authorization="Bearer sk-secret")

    async def look(up):
        return up.takes_ids, await up.healthy(), await up.reset_cache()

    launched = Launch(**{**vars(launched), "api_key_env": "TINY_KEY"})
    assert use(launched, look) == (True, True, True)
    assert "sk-secret" not in (tmp_path / "server-1.log").read_text()


def test_a_server_that_wants_a_key_is_told_apart_at_once(tmp_path):
    failure, seconds = failed(launch(tmp_path, authorization="Bearer x"), deadline=600.0)
    assert (failure.kind, failure.infrastructure) == ("error", False)
    assert "gave 401" in failure.reason
    assert "api_key_env" in failure.reason
    assert seconds < 10


def test_a_key_that_is_not_set_is_known_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match="api_key_env is NO_SUCH_KEY, which is not set"):
        Server(Launch(**{**vars(launch(tmp_path)), "api_key_env": "NO_SUCH_KEY"}))


def test_wrong_input_is_known_before_anything_runs(tmp_path):
    for wrong in ({"kind": "mystery"}, {"args": {"port": 1}}, {"model": ""}):
        with pytest.raises(InputError):
            Server(Launch(**{**vars(launch(tmp_path)), **wrong}))


def test_a_missing_engine_is_an_error_of_the_input(tmp_path):
    launched = Launch(**{**vars(launch(tmp_path)), "command": ("no-such-vllm",)})
    with pytest.raises(InputError, match="no-such-vllm cannot be started"):
        use(launched)


@pytest.mark.parametrize("wishes", [{"bos": 1}, {"chat_only": True}])
def test_token_ids_are_used_only_where_they_are_counted_as_sent(tmp_path, wishes):
    async def look(up):
        return up.takes_ids

    assert not use(launch(tmp_path, **wishes), look)


@pytest.mark.parametrize(("reply", "emptied"), [({}, True), ({"success": False}, False)])
def test_a_refused_reset_of_the_cache_is_no_reset(tmp_path, reply, emptied):
    async def look(up):
        return await up.reset_cache()

    assert use(launch(tmp_path, reset=reply), look) is emptied


def test_a_server_that_stops_completing_is_not_healthy(tmp_path):
    async def look(up):
        return [await up.healthy(patience=0.3) for _ in range(2)]

    # One completion makes it ready, one tries token ids, and one is left.
    assert use(launch(tmp_path, completes=3), look) == [True, False]
    assert use(launch(tmp_path, completes=3, **{"break": "hang"}), look) == [True, False]


@pytest.mark.parametrize(
    ("how", "words", "kind", "reason"),
    [
        ("exit", [OUT_OF_MEMORY], "oom", "ended with exit code 1: torch.OutOfMemoryError"),
        ("exit", ["KeyError: 'x'"], "error", "ended with exit code 1: KeyError"),
        ("kill", [], "error", "ended by SIGKILL"),
        ("500", [OUT_OF_MEMORY], "oom", "still runs: torch.OutOfMemoryError"),
        ("500", ["EngineDeadError: EngineCore"], "unhealthy", "still runs: EngineDeadError"),
    ],
)
def test_why_a_server_fails_under_load_is_in_its_exit_code_and_its_log(
    tmp_path, how, words, kind, reason
):
    async def look(up):
        assert not await up.healthy()
        if how != "500":
            await up.exited()
            assert not up.alive
        return up.failure("unhealthy")

    wishes = {"completes": 2, "break": how, "last_words": words, "kv_sizes": [7]}
    found = use(launch(tmp_path, **wishes), look)
    assert found.kind == kind
    assert reason in found.reason


def test_what_was_logged_before_it_was_ready_explains_no_later_failure(tmp_path):
    async def look(up):
        return up.failure("timeout").kind

    assert use(launch(tmp_path, first_words=[OUT_OF_MEMORY]), look) == "timeout"


def test_a_stop_leaves_nothing_of_a_stubborn_server(tmp_path):
    number = tmp_path / "grandchild"

    async def look(up):
        return int(number.read_text()), up

    child, up = use(launch(tmp_path, ignore_term=True, grandchild=str(number)), look, grace=0.3)
    assert start_time(child) is None
    assert not up.alive
    asyncio.run(up.stop())  # once more does no harm


def test_a_start_that_is_cancelled_leaves_nothing(tmp_path):
    number = tmp_path / "grandchild"

    async def scenario():
        starting = asyncio.ensure_future(
            server(launch(tmp_path, bind_after=600, grandchild=str(number))).start()
        )
        while not (number.exists() and number.read_text()):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(scenario())
    assert start_time(int(number.read_text())) is None


def test_a_stop_waits_until_the_memory_of_all_its_gpus_has_settled(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    asked = []

    def memory(devices):
        asked.append(devices)
        return tuple(0.0 for _ in devices)

    launched = Launch(**{**vars(launch(tmp_path)), "gpus": (2, 3)})

    async def scenario():
        up = await server(launched, memory=memory, settle=0.01).start()
        assert not asked
        await up.stop()

    asyncio.run(scenario())
    assert asked == [("2", "3")] * 5


def test_logs_of_launches_in_one_folder_are_kept(tmp_path):
    for _ in range(2):
        use(launch(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["server-1.log", "server-2.log"]


def simulated(folder, **args):
    return Launch(kind="simulated", model="qwen3-32b", args=args, folder=folder)


def test_the_simulated_engine_is_launched_like_any_other(tmp_path):
    async def look(up):
        return up.model, up.takes_ids, await up.healthy(), await up.reset_cache()

    launched = simulated(tmp_path, gpu="h100", tensor_parallel_size=2)
    assert use(launched, look) == ("qwen3-32b", True, True, True)
    assert "GPU KV cache size" in (tmp_path / "server-1.log").read_text()


def test_a_model_that_does_not_fit_the_simulated_gpu_is_out_of_memory(tmp_path):
    failure, _ = failed(simulated(tmp_path, gpu="l40s"))
    assert (failure.kind, failure.infrastructure) == ("oom", False)


def test_a_server_of_somebody_else_is_used_and_left_running(tmp_path):
    async def scenario():
        async with server(launch(tmp_path)) as up:
            for url in (up.url, f"{up.url}/v1/"):
                async with server(Launch(kind="openai", url=url)) as other:
                    assert (other.url, other.model) == (up.url, "tiny")
                    assert other.takes_ids
                    assert not other.launched_for_this_lease
                    assert other.kv_cache_tokens is None
                    assert not await other.reset_cache()
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(other.exited(), 0.01)
            assert await up.healthy()

    asyncio.run(scenario())


def test_a_server_of_somebody_else_may_serve_what_it_does_not_list(tmp_path):
    async def scenario():
        async with server(launch(tmp_path)) as up:
            wrong = Launch(kind="openai", url=up.url, model="mystery")
            with pytest.raises(LaunchFailed, match="model mystery does not exist") as caught:
                await server(wrong, deadline=0.5).start()
            assert caught.value.kind == "unhealthy"

    asyncio.run(scenario())


def test_nobody_at_the_url_is_a_timeout_that_names_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        failure, _ = failed(Launch(kind="openai", url=url), deadline=0.3)
    assert failure.kind == "timeout"
    assert "/v1/models" in failure.reason


def test_a_process_that_is_killed_from_outside_is_noticed(tmp_path):
    async def look(up):
        pid = int((tmp_path / "grandchild").read_text())
        os.kill(os.getpgid(pid), signal.SIGKILL)
        code = await up.exited()
        return code, up.alive, up.failure("timeout")

    wishes = {"grandchild": str(tmp_path / "grandchild")}
    code, alive, found = use(launch(tmp_path, **wishes), look)
    assert (code, alive, found.kind) == (-signal.SIGKILL, False, "error")
