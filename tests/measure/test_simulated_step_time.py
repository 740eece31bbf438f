"""The roofline: hand-computed steps, published figures, and a tensor parallelism that can hurt."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.simulated.gpus import GPUS, Gpu, gpu
from fleetsieve_measure.simulated.models import MODELS, ModelShape, model_shape
from fleetsieve_measure.simulated.replica import Replica
from fleetsieve_measure.simulated.step_time import kv_bytes_per_token, roofline
from fleetsieve_measure.simulated.virtual import simulate

MEASURED = Path(__file__).parents[2] / "examples" / "qwen3-32b-h100" / "grid.csv"

# Round numbers: a token costs 2 GFLOP, the weights are 2 GB, one token's KV cache is 8 kB.
TINY = ModelShape(
    parameters=1e9, layers=10, hidden_size=1000, heads=10, kv_heads=2, head_dim=100, context=10000
)
# At 45 %, 75 % and 50 % of these peaks: 1 PFLOP/s (2 in 8 bits), 1 TB/s, 100 GB/s.
ROUND = Gpu(
    flops_16bit=1e15 / 0.45,
    flops_8bit=2e15 / 0.45,
    memory=10e9,
    memory_bandwidth=1e12 / 0.75,
    link_bandwidth=100e9 / 0.5,
    allreduce_latency=1e-5,
)
OVERHEAD = 10 * 35e-6  # layers


def test_a_decode_step_reads_the_weights_and_the_kv_cache():
    # 2 GB of weights take 2 ms; 100,000 tokens of 8 kB take 0.8 ms.
    step = roofline(TINY, ROUND)(tokens=10, pairs=100_000, kv_tokens=100_000)
    assert step == pytest.approx(OVERHEAD + 2e-3 + 0.8e-3)


def test_a_prefill_step_computes():
    # 10,000 tokens of 2 GFLOP take 20 ms; 50,005,000 pairs of 4·10·10·100 FLOP take 2.0002 ms.
    step = roofline(TINY, ROUND)(tokens=10_000, pairs=50_005_000, kv_tokens=10_000)
    assert step == pytest.approx(OVERHEAD + 20e-3 + 2.0002e-3)


def test_two_gpus_halve_the_work_and_pay_for_their_allreduces():
    # 20 all-reduces of 10 us and of 10,000 tokens · 2 kB at 100 GB/s, once around the ring of two.
    step = roofline(TINY, ROUND, 2)(tokens=10_000, pairs=0, kv_tokens=0)
    assert step == pytest.approx(OVERHEAD + 10e-3 + 20 * (1e-5 + 20e6 / 100e9))


def test_eight_bit_weights_halve_reading_and_linear_compute():
    eight = roofline(replace(TINY, weight_bytes=1), ROUND)
    assert eight(1, 1, 0) == pytest.approx(OVERHEAD + 1e-3)
    assert eight(10_000, 0, 0) == pytest.approx(OVERHEAD + 10e-3)


def test_chunks_of_a_prompt_have_the_pairs_of_the_whole():
    chunks, context, pairs = [300, 212, 1, 511], 0, 0
    for n in chunks:
        pairs += n * context + n * (n + 1) // 2
        context += n
    # Token i attends to i tokens, itself included.
    assert pairs == sum(range(1, sum(chunks) + 1))


@pytest.mark.parametrize(
    ("name", "published"),
    [("llama-3.1-8b", 131072), ("llama-3.1-70b", 327680), ("qwen3-32b", 262144)],
)
def test_the_kv_cache_of_a_token_is_as_large_as_published(name, published):
    assert kv_bytes_per_token(MODELS[name], 1) == published
    assert kv_bytes_per_token(MODELS[name], 4) == published / 4


def test_kv_heads_are_copied_where_there_are_more_gpus():
    assert kv_bytes_per_token(MODELS["qwen3-8b"], 16) == kv_bytes_per_token(MODELS["qwen3-8b"], 8)


@pytest.mark.parametrize(
    ("name", "intermediate", "vocabulary"),
    [
        ("qwen3-8b", 12288, 151936),
        ("qwen3-32b", 25600, 151936),
        ("llama-3.1-8b", 14336, 128256),
        ("llama-3.1-70b", 28672, 128256),
    ],
)
def test_shapes_add_up_to_the_number_of_parameters(name, intermediate, vocabulary):
    m = MODELS[name]
    attention = m.hidden_size * m.head_dim * (2 * m.heads + 2 * m.kv_heads)
    layer = attention + 3 * m.hidden_size * intermediate
    embeddings = 2 * m.hidden_size * vocabulary
    assert m.parameters == pytest.approx(m.layers * layer + embeddings, rel=2e-3)


def test_tensor_parallelism_pays_over_nvlink_for_a_large_model():
    times = [
        roofline(MODELS["llama-3.1-70b"], GPUS["h100"], n)(32, 32000, 32000) for n in (2, 4, 8)
    ]
    assert times == sorted(times, reverse=True)


def test_tensor_parallelism_slows_a_small_model_over_a_slow_link():
    model = model_shape("qwen3-8b", quantization="fp8")
    prefill = [roofline(model, GPUS["l40s"], n)(4096, 8_390_656, 4096) for n in (1, 2, 4)]
    assert prefill[0] < min(prefill[1:])


def test_names_may_be_those_of_hugging_face():
    assert model_shape("Qwen/Qwen3-32B") == MODELS["qwen3-32b"]
    assert model_shape("meta-llama/Llama-3.1-8B-Instruct") == MODELS["llama-3.1-8b"]
    assert model_shape("Qwen/Qwen3-32B-FP8").weight_bytes == 1
    assert model_shape("qwen3-8b", quantization="fp8").weight_bytes == 1
    assert model_shape("qwen3-8b", kv_cache_dtype="fp8").kv_bytes == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: model_shape("gpt-2"), "'gpt-2' is not simulated; known are qwen3-8b"),
        (lambda: model_shape("qwen3-8b", quantization="awq"), "leave it out or use fp8"),
        (lambda: model_shape("qwen3-8b", kv_cache_dtype="int3"), "use auto or fp8"),
        (lambda: gpu("b200"), "'b200' is not simulated; known are h100"),
        (lambda: roofline(TINY, ROUND, 3), "use one of 1, 2, 10"),
    ],
)
def test_what_is_not_simulated_is_refused_with_what_is(call, says):
    with pytest.raises(InputError, match=says):
        call()


def test_time_per_output_token_is_near_what_was_measured():
    """Against Qwen3-32B FP8 on H100s: typically within a third, never off by 2.5."""
    ratios = []
    with MEASURED.open() as file:
        rows = [row for row in csv.DictReader(file) if row["workload"] == "1024x256"]
    for row in rows:
        prompt, output = map(int, row["workload"].split("x"))
        users = int(row["concurrency"])
        replica = Replica(model="qwen3-32b-fp8", tensor_parallel_size=int(row["tp"]))
        timeline = simulate(
            np.zeros(2 * users),
            np.full(2 * users, prompt),
            np.full(2 * users, output),
            step_time=replica.step_time,
            limits=replica.limits,
            concurrency=users,
        )
        tpot = (timeline.last_token - timeline.first_token).mean() / (output - 1)
        ratios.append(math.log(tpot / float(row["tpot_mean"])))
    assert len(rows) > 10
    assert np.median(np.abs(ratios)) < math.log(4 / 3)
    assert np.max(np.abs(ratios)) < math.log(2.5)
