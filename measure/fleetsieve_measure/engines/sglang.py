"""SGLang: `python -m sglang.launch_server --model-path MODEL`."""

import re

from fleetsieve_measure.engines.kind import EngineKind
from fleetsieve_measure.engines.symptoms import infrastructure, out_of_memory

SGLANG = EngineKind(
    name="sglang",
    executable=("python",),
    entry=("-m", "sglang.launch_server"),
    model_flag="--model-path",
    caches={"TORCHINDUCTOR_CACHE_DIR": "torchinductor", "TRITON_CACHE_DIR": "triton"},
    cache_reset="/flush_cache",
    kv_cache=re.compile(r"(?:max_total_num_tokens=|KV Cache is allocated\. #tokens: )(\d+)"),
    symptoms=(
        infrastructure(r"Some GPUs may be occupied by other processes"),
        out_of_memory(r"Not enough memory\b.*--mem-fraction-static"),
    ),
)
