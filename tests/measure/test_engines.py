"""Each engine is launched with its documented flags, and its log is understood."""

import shlex
import sys
from pathlib import Path

import pytest

from fleetsieve_measure.engines import ENGINES, Launch, engine_of
from fleetsieve_measure.errors import InputError

MODEL = "Qwen/Qwen3-32B-FP8"
REAL_LOG = Path(__file__).parents[3] / "shared/data/samples/http/startup_failure_tp2_2cores.log"


def launch(kind="vllm", **changes):
    return Launch(**{"kind": kind, "model": MODEL, "port": 8011, **changes})


def command(*args, **changes):
    made = launch(*args, **changes)
    return ENGINES[made.kind].command(made)


# Spelled as the engines' own documentation spells them.
DOCUMENTED = [
    (
        "vllm",
        {"max-model-len": 16384, "tensor-parallel-size": 2, "enforce-eager": True},
        "vllm serve MODEL ADDRESS --max-model-len 16384 --tensor-parallel-size 2 --enforce-eager",
    ),
    (
        "vllm",
        {"gpu_memory_utilization": 0.9, "no-enable-prefix-caching": True},
        "vllm serve MODEL ADDRESS --gpu-memory-utilization 0.9 --no-enable-prefix-caching",
    ),
    (
        "vllm",
        {"served-model-name": ["a", "b"], "compilation-config": {"level": 3}},
        """vllm serve MODEL ADDRESS --served-model-name a b --compilation-config '{"level": 3}'""",
    ),
    (
        "vllm",
        {"compilation_config.cudagraph_mode": "FULL"},
        "vllm serve MODEL ADDRESS --compilation-config.cudagraph_mode FULL",
    ),
    (
        "trtllm",
        {"tp_size": 2, "max-batch-size": 64, "max_num_tokens": 8192},
        "trtllm-serve MODEL ADDRESS --tp_size 2 --max_batch_size 64 --max_num_tokens 8192",
    ),
    (
        "sglang",
        {"tp-size": 2, "mem_fraction_static": 0.85},
        (
            "python -m sglang.launch_server --model-path MODEL ADDRESS --tp-size 2 "
            "--mem-fraction-static 0.85"
        ),
    ),
    (
        "simulated",
        {"gpu": "H100", "tensor-parallel-size": 2},
        (
            f"{sys.executable} -m fleetsieve_measure.simulated --model MODEL --port 8011 "
            "--gpu H100 --tensor-parallel-size 2"
        ),
    ),
]


@pytest.mark.parametrize(("kind", "args", "expected"), DOCUMENTED)
def test_the_command_line_is_the_documented_one(kind, args, expected):
    filled = expected.replace("MODEL", MODEL).replace("ADDRESS", "--host 127.0.0.1 --port 8011")
    assert command(kind, args=args) == shlex.split(filled)


def test_a_flag_that_is_off_or_not_given_is_left_out():
    plain = command()
    assert command(args={"enforce-eager": False, "max-model-len": None, "middleware": []}) == plain


def test_click_wants_the_flag_before_each_value_and_argparse_once():
    assert command("trtllm", args={"media": ["a", "b"]})[-4:] == ["--media", "a", "--media", "b"]
    assert command("sglang", args={"media": ["a", "b"]})[-3:] == ["--media", "a", "b"]


def test_a_command_takes_the_place_of_the_executable_alone():
    venv = ("/opt/venv/bin/vllm",)
    assert command(command=venv)[:3] == ["/opt/venv/bin/vllm", "serve", MODEL]
    numa = ("numactl", "-N0", "/opt/venv/bin/python")
    assert command("sglang", command=numa)[:5] == [*numa, "-m", "sglang.launch_server"]


@pytest.mark.parametrize("name", ["host", "port", "model", "--port", "model_path"])
def test_what_the_launcher_chooses_cannot_be_an_argument(name):
    with pytest.raises(InputError, match=f"args: {name} is set by the launcher; leave it out"):
        command(args={name: "8000"})


@pytest.mark.parametrize("name", ["api-key", "api_key"])
def test_a_secret_never_gets_onto_a_command_line(name):
    with pytest.raises(InputError, match="would show in the list of processes"):
        command(args={name: "sk-1"})


def test_a_launch_that_lacks_something_is_refused_with_what_would_do():
    with pytest.raises(InputError, match="engine vllm has no model"):
        command(model="")
    with pytest.raises(InputError, match="url has no use"):
        command(url="http://host:8000")
    with pytest.raises(InputError, match="url is ''; give one that starts with http://"):
        command("openai")
    with pytest.raises(InputError, match="already up, so that args has no use"):
        command("openai", url="http://host:8000", args={"tp": 1})
    with pytest.raises(InputError, match="'mystery'; give one of vllm, trtllm, sglang, openai"):
        engine_of(launch("mystery"))


def test_a_server_of_somebody_else_is_not_launched():
    assert command("openai", url="https://host/v1") == []
    assert not ENGINES["openai"].launched


@pytest.mark.parametrize("kind", ["vllm", "trtllm", "sglang"])
def test_servers_that_run_at_once_share_no_compile_cache(kind):
    engine = ENGINES[kind]
    first, second = (
        engine.environment(launch(kind, folder=Path("/run") / name), {}) for name in ("a", "b")
    )
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert first[name].startswith("/run/a/")
        assert second[name].startswith("/run/b/")
    assert (kind == "vllm") == ("VLLM_CACHE_ROOT" in first)
    assert len({first[name] for name in engine.caches}) == len(engine.caches)


def test_a_server_sees_the_gpus_of_its_block_alone():
    environment = ENGINES["vllm"].environment(launch(gpus=(2, 3)), {})
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_the_gpus_are_among_those_that_a_scheduler_left_to_this_process():
    outer = {"CUDA_VISIBLE_DEVICES": "4, 5,GPU-8932f937"}
    environment = ENGINES["vllm"].environment(launch(gpus=(1, 2)), outer)
    assert environment["CUDA_VISIBLE_DEVICES"] == "5,GPU-8932f937"
    with pytest.raises(InputError, match="leaves 3 GPUs visible"):
        ENGINES["vllm"].environment(launch(gpus=(2, 3)), outer)


def test_a_server_without_a_block_is_left_with_what_there_is():
    assert "CUDA_VISIBLE_DEVICES" not in ENGINES["vllm"].environment(launch(), {})
    simulated = ENGINES["simulated"].environment(launch("simulated", gpus=(0, 1)), {})
    assert "CUDA_VISIBLE_DEVICES" not in simulated


def test_the_users_environment_is_on_top_but_moves_no_server_to_other_gpus():
    environment = ENGINES["vllm"].environment(launch(env={"TRITON_CACHE_DIR": "/mine"}), {})
    assert environment["TRITON_CACHE_DIR"] == "/mine"
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES is set by the launcher"):
        ENGINES["vllm"].environment(launch(env={"CUDA_VISIBLE_DEVICES": "7"}), {})


# As the engines print them.
KV_CACHE_LINES = [
    ("vllm", "INFO 01-28 [kv_cache_utils.py:1305] GPU KV cache size: 175,856 tokens", 175856),
    ("vllm", "GPU KV cache size: 1,024 tokens, Maximum concurrency for 512 tokens: 2.00x", 1024),
    ("sglang", "KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB", 367404),
    ("sglang", "[01:45:02 TP0] max_total_num_tokens=56524, max_prefill_tokens=16384", 56524),
    ("trtllm", "Allocated 26.91 GiB for max tokens in paged KV cache (220480).", 220480),
    ("simulated", "GPU KV cache size: 90000 tokens", 90000),
]


@pytest.mark.parametrize(("kind", "line", "tokens"), KV_CACHE_LINES)
def test_the_size_of_the_kv_cache_is_read_from_the_log(kind, line, tokens):
    assert ENGINES[kind].kv_cache_tokens(["starting", line, "ready"]) == tokens


def test_the_final_kv_cache_counts_not_the_one_for_sizing_it():
    lines = [
        f"[MemUsageChange] Allocated {size} GiB for max tokens in paged KV cache ({tokens})."
        for size, tokens in ((0.56, 8224), (16.05, 263008))
    ]
    assert ENGINES["trtllm"].kv_cache_tokens(lines) == 263008


def test_a_log_without_a_kv_cache_says_nothing_about_it():
    assert ENGINES["vllm"].kv_cache_tokens(["starting"]) is None
    assert ENGINES["openai"].kv_cache_tokens(["GPU KV cache size: 1 tokens"]) is None


# Messages that the engines print, some cut at their end.
OUT_OF_MEMORY = [
    (
        "vllm",
        "(EngineCore_DP0 pid=1) ERROR 10-25 [core.py:708] torch.OutOfMemoryError: CUDA out of",
    ),
    ("vllm", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB."),
    ("vllm", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_ut"),
    (
        "vllm",
        "(24.00 GiB KV cache is needed, which is larger than the available KV cache memory (9",
    ),
    ("vllm", "is larger than the maximum number of tokens that can be stored in KV cache (3664)."),
    (
        "trtllm",
        (
            "[RANK 1] [E] Failed to initialize executor on rank 1: Executor creation failed due "
            "to insufficient GPU memory."
        ),
    ),
    (
        "trtllm",
        "CUDA runtime error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): out of memory",
    ),
    ("sglang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
]
OF_THE_INFRASTRUCTURE = [
    (
        "vllm",
        "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current fr",
    ),
    (
        "vllm",
        (
            "ValueError: Free memory on device (7.34/139.72 GiB) on startup is less than desired "
            "GPU memory utilization (0.9, 125.75 GiB)."
        ),
    ),
    (
        "vllm",
        "DistNetworkError: The server socket has failed to listen. name: EADDRINUSE, message:",
    ),
    ("vllm", "OSError: [Errno 98] Address already in use"),
    (
        "sglang",
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000):"
            " address already in use"
        ),
    ),
    ("sglang", "ValueError: metrics_port is used by a process already. process.name()='sglang'"),
    ("sglang", "The memory capacity is unbalanced. Some GPUs may be occupied by other processes."),
]
OF_THE_CONFIG = [
    (
        "vllm",
        "Value error, Total number of attention heads (64) must be divisible by tensor parallel",
    ),
    (
        "vllm",
        (
            "AssertionError: local_world_size (16) must be less than or equal to the number of "
            "visible devices (8)."
        ),
    ),
    ("vllm", "vllm: error: unrecognized arguments: --max-modle-len 1"),
    ("vllm", "vllm serve: error: argument --dtype: invalid choice: 'fp9'"),
    ("trtllm", "Error: No such option: --tensor_size (Possible options: --tp_size)"),
    ("trtllm", "Error: Invalid value for '--tp_size': 'two' is not a valid integer."),
]
MESSAGES = [
    *(("oom", False, *message) for message in OUT_OF_MEMORY),
    *(("error", True, *message) for message in OF_THE_INFRASTRUCTURE),
    *(("error", False, *message) for message in OF_THE_CONFIG),
]


@pytest.mark.parametrize(("failure", "infrastructure", "kind", "line"), MESSAGES)
def test_a_message_says_what_failed_and_whether_the_config_is_to_blame(
    failure, infrastructure, kind, line
):
    lines = ["INFO starting", "Traceback (most recent call last):", line, "RuntimeError: later"]
    found = ENGINES[kind].diagnose(lines)
    assert (found.kind, found.infrastructure) == (failure, infrastructure)
    assert found.reason in line
    assert len(found.reason) > 30


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("vllm", "INFO [gpu_worker.py:358] Available KV cache memory: 18.78 GiB"),
        ("vllm", "This can cause fd limit errors like `OSError: [Errno 24] Too many open files`."),
        ("trtllm", "[TRT-LLM] [W] insufficient GPU memory for CUDA graphs, capturing fewer sizes"),
        ("sglang", "[2024-12-13 01:45:02 TP0] Memory pool end. avail mem=2.44 GB"),
    ],
)
def test_a_line_that_only_mentions_memory_is_no_failure(kind, line):
    assert ENGINES[kind].diagnose([line]) is None


def test_running_out_of_memory_outweighs_a_port_that_was_found_taken_on_the_way():
    lines = [
        "[W socket.cpp:436] [c10d] The server socket has failed to bind (Address already in use).",
        "torch.OutOfMemoryError: CUDA out of memory.",
    ]
    assert ENGINES["vllm"].diagnose(lines).kind == "oom"


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the recorded start-up failure is not here")
def test_a_recorded_start_up_failure_is_the_configs_and_told_in_its_own_words():
    found = ENGINES["vllm"].diagnose(REAL_LOG.read_text().splitlines())
    assert (found.kind, found.infrastructure) == ("error", False)
    assert found.reason.startswith("AssertionError: Not enough allowed NUMA nodes to bind threads")
