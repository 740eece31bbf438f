"""Cells removed backwards from a certificate while it still certifies (METHOD 5).

What is left costs about the least that a certificate can, had one known in which
cells the model would come to trust, by luck. No policy can know, so none can attain it; a search
over all subsets might still find a cheaper one.
"""

import numpy as np

from fleetsieve.runs import Runs
from fleetsieve.search import Search


def prune(start: Search, told: Runs) -> Search:
    """What remains of `told` when cells go as long as the rest certifies; none can go then.

    The dearest is tried first, again and again until a whole round removes none; every trial is a
    refit to what remains. `start` is a search without observations; its belief and tolerance are
    the rule. If `told` itself does not certify, it stays as it is.
    """
    cost = start.belief.problem.gpu_seconds.ravel() * np.bincount(
        told.cell, minlength=start.belief.problem.exists.size
    )
    found = start.after(told)
    before = len(told) + 1
    while certifies(found) and len(found.told) < before:
        before = len(found.told)
        for cell in sorted(set(found.order), key=lambda cell: -cost[cell]):
            without = start.after(found.told.only(found.told.cell != cell))
            found = without if certifies(without) else found
    return found


def certifies(search: Search) -> bool:
    """Whether a fit to all observations certifies, whenever a fit is due."""
    gap, value = search.fresh.gap, search.fresh.value_upper
    return bool(gap <= search.tolerance < value)
