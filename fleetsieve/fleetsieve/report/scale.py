"""Scales of charts: from values to places on the page, linear or logarithmic, with ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Scale:
    """Maps `low` to `start` and `high` to `end`; what lies beyond is drawn at the edge."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where `value` is drawn."""
        low, high, at = (self._plain(v) for v in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, count: int = 4) -> list[float]:
        """About `count` round values within the scale."""
        return self._decades(count) if self.log else self._even(count)

    def _plain(self, value: float) -> float:
        if not self.log:
            return value
        return math.log(value) if value > 0 else -math.inf

    def _even(self, count: int) -> list[float]:
        if not self.high > self.low:
            return [self.low]
        step = _round_up((self.high - self.low) / count)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        # Between neighbouring floats some coincide.
        return sorted({step * i for i in range(first, last + 1)})

    def _decades(self, count: int) -> list[float]:
        first, last = (math.floor(math.log10(v)) for v in (self.low, self.high))
        for steps in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
            each = (s * 10.0**d for d in range(first, last + 1) for s in steps)
            found = [tick for tick in each if self.low <= tick <= self.high]
            if len(found) <= count + 1:
                break
        return found[:: -(-len(found) // (count + 1))] if found else [self.low]


def around(values: Iterable[float], start: float, end: float, *, room: float = 1.25) -> Scale:
    """A logarithmic scale on which all `values` above 0 have room."""
    known = [value for value in values if 0 < value < math.inf]
    low, high = (min(known), max(known)) if known else (1.0, 1.0)
    return Scale(low / room, high * room, start, end, log=True)


def from_zero(values: Iterable[float], start: float, end: float, *, room: float = 1.1) -> Scale:
    """A linear scale from 0 on which all `values` have room."""
    high = max((value for value in values if value < math.inf), default=0.0)
    return Scale(0.0, high * room if high > 0 else 1.0, start, end)


def thinned(ticks: list[float], scale: Scale, apart: float) -> list[float]:
    """Those of `ticks` that are drawn at least so far from the last one."""
    found: list[float] = []
    for tick in ticks:
        if not found or abs(scale(tick) - scale(found[-1])) >= apart:
            found.append(tick)
    return found


def _round_up(step: float) -> float:
    unit = 10.0 ** math.floor(math.log10(step))
    return next(s for s in _STEPS if s * unit >= step * (1 - 1e-9)) * unit
