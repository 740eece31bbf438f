"""Cells removed backwards from a certificate while it still certifies (METHOD 5).

What is left costs about the least that a certificate can, had one known in which
cells the model would come to trust, by luck. No policy can know, so none can attain it; a search
over all subsets might still find a cheaper one.
"""

from collections.abc import Iterable

from fleetsieve.problem import Truth
from fleetsieve.search import Search


def prune(start: Search, truth: Truth, cells: Iterable[int]) -> Search:
    """A subset of `cells` that certifies and from which no further cell can go.

    The dearest is tried first, again and again until a whole round removes none; every trial is a
    refit to what remains. `start` is a search without observations; its belief and tolerance are
    the rule. If `cells` themselves do not certify, they come back as they are.
    """
    cost = start.belief.problem.gpu_seconds.ravel()
    kept = sorted(cells, key=lambda index: -cost[index])
    found = told(start, truth, kept)
    if not certifies(found):
        return found
    before = len(kept) + 1
    while len(kept) < before:
        before = len(kept)
        for index in tuple(kept):
            rest = [other for other in kept if other != index]
            without = told(start, truth, rest)
            if certifies(without):
                kept, found = rest, without
    return found


def certifies(search: Search) -> bool:
    """Whether a fit to all observations certifies, whenever a fit is due."""
    gap, value = search.fresh.gap, search.fresh.value_upper
    return bool(gap <= search.tolerance < value)


def told(start: Search, truth: Truth, cells: Iterable[int]) -> Search:
    """`start` with the outcomes of `cells`."""
    for index in cells:
        start = start.after(int(index), truth)
    return start
