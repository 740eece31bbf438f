"""How long measuring is expected to take, for cells that are measured live."""

from fleetsieve.fleet import Config, Fleet
from fleetsieve.workload import Workload
from fleetsieve_measure.metrics import requests_needed

# The window is at most this many times as long as asked for, where percentiles need more requests.
_LONGEST = 4.0


def longest_window(fleet: Fleet) -> float:
    """The longest window in seconds."""
    return _LONGEST * fleet.measure.seconds


def measuring_seconds(fleet: Fleet, workload: Workload, load: float) -> float:
    """Warm-up and window of a cell; a concurrency says too little of when requests come."""
    measure = fleet.measure
    rate = workload.load_kind == "rate"
    needed = requests_needed(list(workload.slo)) / load if rate else 0.0
    return measure.warmup_seconds + min(max(measure.seconds, needed), longest_window(fleet))


def launch_seconds(fleet: Fleet, config: Config) -> float:
    """What launching `config` takes; nothing where its server is up already."""
    engine = fleet.engine_of(config.name)
    up = engine is not None and engine.kind in ("openai", "grid")
    return 0.0 if up else fleet.measure.launch_seconds
