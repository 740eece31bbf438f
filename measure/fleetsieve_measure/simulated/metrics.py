"""The /metrics page: the engine's state as Prometheus text, under vLLM's names."""

import json

from fleetsieve_measure.simulated.pacer import Pacer


def prometheus_text(model: str, pacer: Pacer) -> str:
    """The page."""
    batching = pacer.batching
    # A label's value is quoted and escaped as in JSON.
    label = f'engine="0",model_name={json.dumps(model, ensure_ascii=False)}'
    gauges = {
        "num_requests_running": len(batching.running),
        "num_requests_waiting": len(batching.waiting),
        "kv_cache_usage_perc": 1 - batching.free_blocks / batching.limits.blocks,
    }
    counters = {
        "num_preemptions_total": batching.preemptions,
        "prompt_tokens_total": pacer.prompt_tokens,
        "generation_tokens_total": pacer.generation_tokens,
    }
    lines = [
        f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{label}}} {value}\n"
        for kind, values in (("gauge", gauges), ("counter", counters))
        for name, value in values.items()
    ]
    lines.append("# TYPE vllm:request_success_total counter\n")
    lines += [
        f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {value}\n'
        for reason, value in (("length", pacer.finished), ("abort", pacer.aborted))
    ]
    return "".join(lines)
