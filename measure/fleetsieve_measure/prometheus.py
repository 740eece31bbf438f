"""Counters of a server's metrics page, in the text format of Prometheus."""

import math
import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)(?:\s+\d+)?\s*")


def totals(page: str, names: Mapping[str, str]) -> dict[str, float]:
    """The values of metrics, summed over their labels.

    `names` maps what a metric is called here to what the page calls it; one that the page does
    not have is left out.
    """
    wanted = {metric: name for name, metric in names.items()}
    found: dict[str, float] = {}
    for line in page.splitlines():
        sample = _SAMPLE.fullmatch(line)
        name = wanted.get(sample[1]) if sample is not None else None
        if sample is None or name is None:
            continue
        try:
            value = float(sample[2])
        except ValueError:
            continue
        if math.isfinite(value):
            found[name] = found.get(name, 0.0) + value
    return found
