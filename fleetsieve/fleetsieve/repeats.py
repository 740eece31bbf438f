"""The truth of a cell from the outcomes of its repeats (METHOD 1)."""

import math
from collections.abc import Sequence
from statistics import median

from fleetsieve_measure import Failed, Measured, Outcome

# Standard error of a median over that of a mean: sqrt(pi / 2) for many repeats, less for few;
# of two repeats the median is the mean.
_MEDIAN_FACTOR = math.sqrt(math.pi / 2)


def combine(outcomes: Sequence[Outcome]) -> Outcome:
    """One outcome for all repeats of a cell; `outcomes` is not empty.

    A failure other than "error" fails the cell; errors are ignored beside a measured repeat.
    Each metric is the median over the repeats that have it. Its standard error is the median of
    the stated ones over sqrt(k), k being how many were stated, times sqrt(pi / 2) from k = 3 on;
    none is given where none was stated (exact) or where the median is infinite.
    """
    if len(outcomes) == 1:
        return outcomes[0]
    cost = math.fsum(outcome.gpu_seconds for outcome in outcomes)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    measured = [outcome for outcome in outcomes if isinstance(outcome, Measured)]
    decisive = next((f for f in failures if f.kind != "error"), None)
    if decisive is None and not measured:
        decisive = failures[0]
    if decisive is not None:
        return Failed(kind=decisive.kind, gpu_seconds=cost, reason=decisive.reason)
    return _median(measured, cost)


def _median(repeats: Sequence[Measured], cost: float) -> Measured:
    names = dict.fromkeys(name for repeat in repeats for name in repeat.values)
    values = {n: median(r.values[n] for r in repeats if n in r.values) for n in names}
    stated = {n: [r.se[n] for r in repeats if n in r.se] for n in names}
    counts = [repeat.requests for repeat in repeats if repeat.requests is not None]
    return Measured(
        values=values,
        se={n: _standard_error(s) for n, s in stated.items() if s and math.isfinite(values[n])},
        gpu_seconds=cost,
        saturated=any(repeat.saturated for repeat in repeats),
        requests=sum(counts) if counts else None,
    )


def _standard_error(stated: Sequence[float]) -> float:
    factor = _MEDIAN_FACTOR if len(stated) > 2 else 1.0
    return factor * median(stated) / math.sqrt(len(stated))
