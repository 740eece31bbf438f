"""Our own simulated engine, as a process like any other."""

import os
import re
import sys
from pathlib import Path

import fleetsieve_measure
from fleetsieve_measure.engines.kind import EngineKind
from fleetsieve_measure.engines.symptoms import out_of_memory

# The server runs in its own folder, where a relative entry of sys.path would lead nowhere.
_ROOT = str(Path(fleetsieve_measure.__file__).resolve().parents[1])
_PATHS = (_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))

SIMULATED = EngineKind(
    name="simulated",
    executable=(sys.executable,),
    entry=("-m", "fleetsieve_measure.simulated"),
    model_flag="--model",
    address=("--port",),
    on_gpus=False,
    races=False,
    variables={"PYTHONPATH": os.pathsep.join(_PATHS)},
    cache_reset="/reset_prefix_cache",
    counters={"preemptions": "vllm:num_preemptions_total"},
    kv_cache=re.compile(r"KV cache size: ([\d,]+) tokens"),
    symptoms=(out_of_memory(r"To serve at least one request"),),
)
