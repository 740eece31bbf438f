"""The value's two ends after each measurement: as they were recorded, or computed again."""

from collections.abc import Sequence
from dataclasses import replace

from fleetsieve.report.findings import History
from fleetsieve.search import Search
from fleetsieve.sieve import Sieve
from fleetsieve.standing import Standing

# Computing the past again takes a fit per measurement.
_MOST_CELLS, _MOST_RUNS = 500, 60


def history(recorded: Sequence[Standing], sieve: Sieve, costs: Sequence[float]) -> History:
    """The standings of `sieve`; `costs` are the GPU-seconds of the runs that its search knows."""
    last = Standing(sieve.measurements, sieve.gpu_seconds, *sieve.value)
    known = [one for one in recorded if one.measurements < last.measurements]
    if known:
        first = known[0].measurements
        note = f"It is recorded from measurement {first} on." if first > 0 else None
        return History([*known, last], note)
    few = len(costs) <= _MOST_RUNS and sieve.problem.n_cells <= _MOST_CELLS
    if few and len(costs) == sieve.measurements:
        return History([*_computed(sieve.search, costs), last])
    note = "The study does not say where it stood before." if sieve.measurements else None
    return History([last], note)


def _computed(search: Search, costs: Sequence[float]) -> list[Standing]:
    """What is recorded by `run`, of a study that another program wrote."""
    found, fits = [], {}
    for count in range(len(costs)):
        then = replace(search, told=search.told.first(count), fits=fits)
        found.append(Standing(count, float(sum(costs[:count])), *then.value))
    return found
