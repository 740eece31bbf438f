"""A replica: a model on so many GPUs, with the limits that follow from their memory."""

from dataclasses import dataclass
from functools import cached_property

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.simulated.batching import Limits
from fleetsieve_measure.simulated.gpus import Gpu, gpu
from fleetsieve_measure.simulated.models import ModelShape, model_shape
from fleetsieve_measure.simulated.step_time import (
    StepTime,
    check_tensor_parallel,
    kv_bytes_per_token,
    roofline,
)

_GIB = 2**30


class OutOfMemoryError(Exception):
    """Weights, or one sequence of the length asked for, do not fit; says so as vLLM's log does."""


@dataclass(frozen=True, kw_only=True)
class Replica:
    """What an engine is started with, under vLLM's names.

    Attributes:
        gpu_memory_utilization: share of each GPU's memory for weights and KV cache together.
        max_model_len: the longest sequence in tokens; by default what the model was trained for,
            or the KV cache where that is smaller (vLLM's "auto").
    """

    model: str
    gpu: str = "h100"
    tensor_parallel_size: int = 1
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    block_size: int = 16
    quantization: str | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InputError(
                f"gpu-memory-utilization is {self.gpu_memory_utilization}; give a share up to 1"
            )
        if self.max_model_len is not None and not 1 < self.max_model_len <= self.shape.context:
            raise InputError(
                f"max-model-len {self.max_model_len} is not within 2 to {self.shape.context}, "
                f"which is what {self.model} was trained for"
            )
        gpu(self.gpu)
        check_tensor_parallel(self.shape, self.tensor_parallel_size)

    @cached_property
    def shape(self) -> ModelShape:
        """The model's shape."""
        return model_shape(
            self.model, quantization=self.quantization, kv_cache_dtype=self.kv_cache_dtype
        )

    @cached_property
    def device(self) -> Gpu:
        """One of its GPUs."""
        return gpu(self.gpu)

    @cached_property
    def step_time(self) -> StepTime:
        """How long a step takes."""
        return roofline(self.shape, self.device, self.tensor_parallel_size)

    @cached_property
    def weights(self) -> float:
        """Bytes of weights on each GPU."""
        return self.shape.parameters * self.shape.weight_bytes / self.tensor_parallel_size

    @cached_property
    def limits(self) -> Limits:
        """What bounds a batch.

        Raises:
            OutOfMemoryError: weights or a sequence of `max_model_len` do not fit.
        """
        usable = self.device.memory * self.gpu_memory_utilization
        per_token = kv_bytes_per_token(self.shape, self.tensor_parallel_size)
        left = usable - self.weights
        limits = Limits(
            kv_tokens=max(0, int(left // per_token)),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
        )
        if not limits.blocks:
            raise OutOfMemoryError(
                f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
                f"{self.weights / _GIB:.2f} GiB of weights. GPU 0 has a total capacity of "
                f"{self.device.memory / _GIB:.2f} GiB of which {usable / _GIB:.2f} GiB may be used;"
                " use more GPUs, a larger gpu-memory-utilization or a quantized model"
            )
        if self.max_model_len is not None and self.max_model_len > limits.capacity:
            raise OutOfMemoryError(
                f"ValueError: To serve at least one request with max-model-len "
                f"{self.max_model_len}, {self.max_model_len * per_token / _GIB:.2f} GiB KV cache "
                f"is needed, which is larger than the available KV cache memory "
                f"({left / _GIB:.2f} GiB); use a max-model-len of at most {limits.capacity} or "
                "more GPUs"
            )
        return limits

    @property
    def longest(self) -> int:
        """The longest sequence that is accepted, prompt and output together, in tokens."""
        return self.max_model_len or min(self.shape.context, self.limits.capacity)
