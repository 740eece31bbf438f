"""GPUs: what their datasheets promise."""

from dataclasses import dataclass

from fleetsieve_measure.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU and its link to the others of a node.

    Attributes:
        flops_16bit, flops_8bit: dense peak in FLOP/s.
        memory: bytes.
        memory_bandwidth: bytes/s.
        link_bandwidth: bytes/s to the other GPUs, in one direction.
        allreduce_latency: seconds that an all-reduce takes however small it is.
    """

    flops_16bit: float
    flops_8bit: float
    memory: float
    memory_bandwidth: float
    link_bandwidth: float
    allreduce_latency: float


_MIB = 2**20

# Peaks and bandwidths from NVIDIA's datasheets, without sparsity; memory as the driver reports it.
# Latencies are those of small messages within a node, over NVLink and over PCIe.
GPUS = {
    "h100": Gpu(  # SXM
        flops_16bit=989e12,
        flops_8bit=1979e12,
        memory=81559 * _MIB,
        memory_bandwidth=3.35e12,
        link_bandwidth=450e9,
        allreduce_latency=10e-6,
    ),
    "h200": Gpu(
        flops_16bit=989e12,
        flops_8bit=1979e12,
        memory=143771 * _MIB,
        memory_bandwidth=4.8e12,
        link_bandwidth=450e9,
        allreduce_latency=10e-6,
    ),
    "a100": Gpu(  # SXM, 80 GB; FP8 weights are computed with in 16 bits, for want of FP8 units
        flops_16bit=312e12,
        flops_8bit=312e12,
        memory=81920 * _MIB,
        memory_bandwidth=2.039e12,
        link_bandwidth=300e9,
        allreduce_latency=12e-6,
    ),
    "l40s": Gpu(  # PCIe 4.0 ×16, no NVLink
        flops_16bit=362e12,
        flops_8bit=733e12,
        memory=46068 * _MIB,
        memory_bandwidth=864e9,
        link_bandwidth=32e9,
        allreduce_latency=40e-6,
    ),
}


def gpu(name: str) -> Gpu:
    """The GPU that is called `name`.

    Raises:
        InputError: an unknown one.
    """
    known = GPUS.get(name.lower())
    if known is None:
        raise InputError(f"gpu {name!r} is not simulated; known are {', '.join(GPUS)}")
    return known
