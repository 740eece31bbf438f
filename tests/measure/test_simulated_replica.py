"""What fits in the GPUs' memory, and what does not start."""

from typing import Any

import pytest

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.simulated.replica import OutOfMemoryError, Replica


def limits(**arguments: Any):
    return Replica(**{"model": "qwen3-8b", **arguments}).limits


def test_the_kv_cache_gets_what_the_weights_leave():
    # 8.03e9 weights of 2 bytes and 131,072 bytes per token, in 90 % of 81,559 MiB.
    replica = Replica(model="llama-3.1-8b", gpu="h100")
    tokens = (0.9 * 81559 * 2**20 - 2 * 8.03e9) / 131072
    assert 0 <= tokens - replica.limits.capacity < 16


def test_more_gpus_hold_more_than_proportionally_more():
    one, two = (Replica(model="qwen3-32b", tensor_parallel_size=n) for n in (1, 2))
    assert two.limits.capacity > 2 * one.limits.capacity


def test_weights_that_do_not_fit_are_a_cuda_out_of_memory_error():
    assert limits(model="llama-3.1-70b", tensor_parallel_size=2).capacity > 0
    with pytest.raises(OutOfMemoryError, match="CUDA out of memory"):
        limits(model="llama-3.1-70b")


def test_a_length_that_the_kv_cache_cannot_hold_does_not_start():
    with pytest.raises(OutOfMemoryError, match="GiB KV cache is needed"):
        limits(model="qwen3-32b", max_model_len=40960, gpu_memory_utilization=0.85)


def test_without_a_length_it_is_what_the_model_and_the_kv_cache_allow():
    short = Replica(model="qwen3-32b", gpu_memory_utilization=0.85)
    assert short.longest == short.limits.capacity < 40960
    assert Replica(model="qwen3-32b", tensor_parallel_size=2).longest == 40960
    assert Replica(model="qwen3-32b", max_model_len=100).longest == 100


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"gpu": "b200"}, "gpu 'b200'"),
        ({"model": "gpt-2"}, "model 'gpt-2'"),
        ({"tensor_parallel_size": 3}, "tensor-parallel-size 3 .* use one of 1, 2, 4"),
        ({"tensor_parallel_size": 0}, "tensor-parallel-size 0 "),
        ({"gpu_memory_utilization": 1.1}, "gpu-memory-utilization is 1.1"),
        ({"max_model_len": 10**6}, "max-model-len 1000000 is not within 2 to 40960"),
    ],
)
def test_arguments_that_make_no_engine_are_refused_at_once(arguments: dict[str, Any], says):
    with pytest.raises(InputError, match=says):
        Replica(**{"model": "qwen3-8b", **arguments})


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "block_size"])
def test_limits_are_at_least_one(name):
    with pytest.raises(InputError, match=f"{name} is 0; give at least 1"):
        limits(**{name: 0})


def test_a_step_has_a_token_for_every_running_sequence():
    with pytest.raises(InputError, match="max_num_batched_tokens 100 is less than max_num_seqs"):
        limits(max_num_batched_tokens=100)
