"""What the summaries of measured cells say that a reader of the decision should know."""

from collections.abc import Iterable, Iterator

from fleetsieve.events import Event, Told
from fleetsieve_measure import Measured


def remarks(events: Iterable[Event]) -> Iterator[str]:
    """Sentences on cells that were measured live."""
    told = [event for event in events if isinstance(event, Told)]
    few = [
        event.cell
        for event in told
        if isinstance(event.outcome, Measured)
        and event.outcome.summary.get("enough_requests") is False
        and not event.outcome.summary.get("ended_early")
    ]
    if few:
        names = sorted({f"{cell.workload} on {cell.config} at {cell.load:g}" for cell in few})
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield (
            f"too few requests to bound the percentiles of {', '.join(names[:3])}{more}; "
            "measure.seconds would have to be larger"
        )
    early = [event.outcome.summary for event in told if event.outcome.summary.get("ended_early")]
    saved = sum(float(summary.get("saved_gpu_seconds", 0.0)) for summary in early)
    if saved > 0:
        runs = "1 run" if len(early) == 1 else f"{len(early)} runs"
        yield f"{runs} ended early, once decided, which saved {saved:.0f} GPU-seconds"
