"""The measurement window: which requests count, by when they were due."""


class Window:
    """Opens after the warm-up and closes once it is long enough and holds enough requests.

    A request belongs to it by its due time alone, however long it takes: nothing that warms up
    leaks in, and nothing slow leaks out.

    Attributes:
        opens, closes: on the clock of the due times; `closes` is None while it is open.
        count: requests that were due in it.
    """

    def __init__(
        self, start: float, *, warmup: float, seconds: float, longest: float, enough: int
    ) -> None:
        """Open `warmup` seconds after `start`, for `seconds`, or until `enough` requests are in.

        `longest` seconds after it opened it closes in any case.
        """
        self.opens = start + warmup
        self.closes: float | None = None
        self.count = 0
        self._least, self._longest = self.opens + seconds, self.opens + max(longest, seconds)
        self._enough = enough

    def admit(self, due: float) -> bool:
        """Whether a request that is due then is measured; due times do not decrease."""
        self.tick(due)
        inside = self.covers(due)
        self.count += inside
        return inside

    def tick(self, now: float) -> None:
        """Close the window if it is time."""
        if self.closes is not None or now < self._least:
            return
        if self.count >= self._enough or now >= self._longest:
            self.closes = min(now, self._longest)

    def covers(self, due: float) -> bool:
        """Whether a due time lies in the window."""
        return self.opens <= due and (self.closes is None or due < self.closes)
