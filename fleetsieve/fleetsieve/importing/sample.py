"""Statistics of a list of latencies, where a file has the list and not them."""

import math
from collections.abc import Iterator, Sequence

_PERCENTS = (50, 90, 95, 99)


def statistics(values: Sequence[float], failed: int = 0) -> Iterator[tuple[str, float]]:
    """Mean and percentiles, interpolated as the tools do; failed requests are late for ever."""
    if not values:
        return
    ordered = sorted(values) + [math.inf] * failed
    yield "mean", math.fsum(ordered) / len(ordered)
    for percent in _PERCENTS:
        at = (len(ordered) - 1) * percent / 100
        low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
        yield f"p{percent}", high if math.isinf(high) else low + (high - low) * (at % 1)
