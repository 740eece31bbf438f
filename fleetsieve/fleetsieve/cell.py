"""A cell: what one benchmark measures."""

from dataclasses import dataclass
from typing import Literal

LoadKind = Literal["rate", "concurrency"]


@dataclass(frozen=True, order=True)
class Cell:
    """One workload on one replica of one config at one load.

    `load` is in requests/s when `kind` is "rate" and in open requests when it is "concurrency".
    """

    workload: str
    config: str
    load: float
    kind: LoadKind
