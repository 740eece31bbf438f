"""vLLM: `vllm serve MODEL`."""

import re

from fleetsieve_measure.engines.kind import EngineKind
from fleetsieve_measure.engines.symptoms import infrastructure, out_of_memory, refused

VLLM = EngineKind(
    name="vllm",
    executable=("vllm",),
    entry=("serve",),
    caches={
        "VLLM_CACHE_ROOT": "vllm",
        "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
        "TRITON_CACHE_DIR": "triton",
    },
    # Without it there is no way to empty the prefix cache.
    variables={"VLLM_SERVER_DEV_MODE": "1"},
    # A KV cache that was offloaded to the CPU counts too.
    cache_reset="/reset_prefix_cache?reset_external=true",
    counters={
        "preemptions": "vllm:num_preemptions_total",
        "prefix_cache_queries": "vllm:prefix_cache_queries_total",
        "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    },
    kv_cache=re.compile(r"KV cache size: ([\d,]+) tokens"),
    symptoms=(
        infrastructure(
            r"Error in memory profiling",
            r"Free memory on device .* is less than desired GPU memory utilization",
            r"failed to get the hash of the compiled graph",
        ),
        out_of_memory(
            r"No available memory for the cache blocks",
            r"larger than the maximum number of tokens that can be stored in KV cache",
            r"larger than the available KV cache memory",
        ),
        refused(
            r"must be less than or equal to the number of visible devices",
            r"less than than max local gpu count",
            r"Not enough allowed NUMA nodes",
            # The line after "1 validation error for ModelConfig", which says nothing.
            r"Value error, ",
        ),
    ),
)
