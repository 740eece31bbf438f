"""TensorRT-LLM: `trtllm-serve MODEL`."""

import re

from fleetsieve_measure.engines.kind import EngineKind
from fleetsieve_measure.engines.symptoms import out_of_memory

TRTLLM = EngineKind(
    name="trtllm",
    executable=("trtllm-serve",),
    separator="_",
    repeats=True,
    caches={"TORCHINDUCTOR_CACHE_DIR": "torchinductor", "TRITON_CACHE_DIR": "triton"},
    kv_cache=re.compile(r"max tokens in paged KV cache \((\d+)\)"),
    symptoms=(out_of_memory(r"insufficient GPU memory\.?$"),),
)
