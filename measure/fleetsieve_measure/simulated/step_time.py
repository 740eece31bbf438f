"""Step time: how long one forward pass of a batch takes, from a roofline."""

from dataclasses import dataclass

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.simulated.gpus import Gpu
from fleetsieve_measure.simulated.models import ModelShape

# Shares of a datasheet's peaks that kernels reach, and seconds per layer that launching them takes:
# round values, chosen so that examples/qwen3-32b-h100 is matched.
_COMPUTE_EFFICIENCY = 0.45
_MEMORY_EFFICIENCY = 0.75
_LINK_EFFICIENCY = 0.5
_OVERHEAD_PER_LAYER = 35e-6
_ACTIVATION_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The larger of compute and memory traffic, plus all-reduces, plus a fixed overhead.

    Attributes:
        per_token, per_pair: seconds of compute per token, and per pair of a token and a token that
            it attends to.
        weights, per_kv_token: seconds to read the weights, and one token of the KV cache.
        allreduce, allreduce_per_token: seconds of communication per step, and per token.
        overhead: seconds per step.
    """

    per_token: float
    per_pair: float
    weights: float
    per_kv_token: float
    allreduce: float
    allreduce_per_token: float
    overhead: float

    def __call__(self, tokens: int, pairs: int, kv_tokens: int) -> float:
        """Seconds of a step.

        Prefill and decode need no distinction: n tokens after a context of c tokens make
        n c + n (n + 1) / 2 pairs and read n + c tokens of the KV cache, for n = 1 in decode too.

        Args:
            tokens: how many go through the model.
            pairs: the token pairs of causal attention, over the whole batch.
            kv_tokens: the lengths of all sequences of the batch so far, summed.
        """
        compute = self.per_token * tokens + self.per_pair * pairs
        memory = self.weights + self.per_kv_token * kv_tokens
        communication = self.allreduce + self.allreduce_per_token * tokens
        return (compute if compute > memory else memory) + communication + self.overhead


def roofline(model: ModelShape, gpu: Gpu, tensor_parallel: int = 1) -> StepTime:
    """The step time of `model` on `tensor_parallel` GPUs.

    Every token costs two operations per weight; two all-reduces per layer travel in a ring.

    Raises:
        InputError: heads that cannot be shared out equally.
    """
    check_tensor_parallel(model, tensor_parallel)
    flops = _COMPUTE_EFFICIENCY * tensor_parallel
    linear = gpu.flops_8bit if model.weight_bytes == 1 else gpu.flops_16bit
    attention = 4 * model.layers * model.heads * model.head_dim
    bandwidth = _MEMORY_EFFICIENCY * gpu.memory_bandwidth
    allreduces = 2 * model.layers if tensor_parallel > 1 else 0
    ring = 2 * (tensor_parallel - 1) / tensor_parallel
    message = model.hidden_size * _ACTIVATION_BYTES
    return StepTime(
        per_token=2 * model.parameters / (flops * linear),
        per_pair=attention / (flops * gpu.flops_16bit),
        weights=model.parameters * model.weight_bytes / tensor_parallel / bandwidth,
        per_kv_token=kv_bytes_per_token(model, tensor_parallel) / bandwidth,
        allreduce=allreduces * gpu.allreduce_latency,
        allreduce_per_token=allreduces * ring * message / (_LINK_EFFICIENCY * gpu.link_bandwidth),
        overhead=model.layers * _OVERHEAD_PER_LAYER,
    )


def kv_bytes_per_token(model: ModelShape, tensor_parallel: int) -> int:
    """Bytes of keys and values of one token on each GPU; a KV head is never split, but copied."""
    heads = max(1, model.kv_heads // tensor_parallel)
    return 2 * model.layers * heads * model.head_dim * model.kv_bytes


def check_tensor_parallel(model: ModelShape, tensor_parallel: int) -> None:
    """Refuse a degree that does not share out the heads equally.

    Raises:
        InputError: with the degrees that would do.
    """
    degrees = [n for n in range(1, model.heads + 1) if _divides(model, n)]
    if tensor_parallel not in degrees:
        listed = ", ".join(map(str, degrees))
        raise InputError(
            f"tensor-parallel-size {tensor_parallel} does not share out {model.heads} heads "
            f"and {model.kv_heads} KV heads equally; use one of {listed}"
        )


def _divides(model: ModelShape, degree: int) -> bool:
    kv_heads = model.kv_heads
    return model.heads % degree == 0 and (kv_heads % degree == 0 or degree % kv_heads == 0)
