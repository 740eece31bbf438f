"""The progress of a run: a line per measurement, and on a terminal a line about the present."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fleetsieve.run import Progress
from fleetsieve.show import where
from fleetsieve_measure import Failed, Outcome


class Display:
    """Shows each `Progress` it is called with; a context manager.

    `clock` tells seconds, from which follows how long the rest takes at most; `price` tells what
    GPU-seconds cost, where that is known.
    """

    def __init__(
        self,
        out: Console,
        clock: Callable[[], float] = time.monotonic,
        price: Callable[[float], float | None] = lambda gpu_seconds: None,
    ) -> None:
        self._out = out
        self._clock = clock
        self._price = price
        self._live = (
            Live(console=out, auto_refresh=False, transient=True) if out.is_terminal else None
        )
        self._first: tuple[float, Progress] | None = None
        self._measurements = 0
        self._titled = False

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show `progress`; a line is printed only when a measurement is new."""
        if self._first is None:
            self._first, self._measurements = (self._clock(), progress), progress.measurements
        if progress.measurements > self._measurements and progress.last is not None:
            self._measurements = progress.measurements
            self._print(line(progress))
        if self._live:
            self._live.update(_one_line(self._present(progress)), refresh=True)

    def _print(self, text: str) -> None:
        if not self._titled:
            self._titled = True
            self._print(_columns("step", "measured", "result", "GPU-s", "gap", "value"))
        self._out.print(_one_line(text), no_wrap=True, overflow="ellipsis")

    def _present(self, progress: Progress) -> str:
        cells = progress.measuring
        more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        doing = f"measuring {where(cells[0])}{more}" if cells else "choosing"
        return f"      {doing}{self._left(progress)}"

    def _left(self, progress: Progress) -> str:
        """What the rest takes at the pace so far, if everything affordable is measured."""
        start, first = self._first or (0.0, progress)
        spent = progress.gpu_seconds - first.gpu_seconds
        if spent <= 0:
            return ""
        pace = (self._clock() - start) / spent
        rest = max(0.0, progress.limit - progress.gpu_seconds)
        minutes, seconds = divmod(round(pace * rest), 60)
        price = self._price(rest)
        money = "" if price is None else f" and {price:,.2f}"
        return f", at most {minutes}:{seconds:02d}{money} left"


def line(progress: Progress) -> str:
    """One line of 80 columns about the measurement that was told last."""
    if progress.last is None:
        return ""
    cell, outcome = progress.last
    low, high = progress.value
    cost = f"{progress.gpu_seconds:.0f}/{progress.limit:.0f}"
    return _columns(
        str(progress.measurements),
        where(cell),
        _result(outcome),
        cost,
        f"{progress.gap:.3f}",
        f"{low:.3f}–{high:.3f}",
    )


def _columns(step: str, cell: str, result: str, cost: str, gap: str, value: str) -> str:
    return f"{step:>4} {_fit(cell, 29)} {result:<9} {cost:>15} {gap:>5} {value:>11}"


def _result(outcome: Outcome) -> str:
    if isinstance(outcome, Failed):
        return outcome.kind
    return "saturated" if outcome.saturated else "ok"


def _fit(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"


def _one_line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
