"""Names that Kubernetes, Compose and Dynamo accept, one for each workload and config."""

import hashlib
import re
from collections import Counter
from collections.abc import Collection

Pair = tuple[str, str]
"""A workload and a config."""

# What operators append to a name has to fit as well; Dynamo's leaves least of the 63 characters.
LONGEST = 36
_HASH = 8


def names(pairs: Collection[Pair]) -> dict[Pair, str]:
    """A DNS label for each of `pairs`, all different; it starts with a letter.

    What a label cannot say of the names, or would say of two pairs, is told apart by a hash.
    """
    plain = {pair: _slug("-".join(pair)) for pair in pairs}
    count = Counter(plain.values())
    found = {
        pair: label if label == "-".join(pair) and count[label] == 1 else _hashed(pair)
        for pair, label in plain.items()
    }
    return found if len(set(found.values())) == len(found) else {p: _hashed(p) for p in found}


def _slug(text: str) -> str:
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not label[:1].isalpha():
        label = f"w-{label}".strip("-")
    return label[:LONGEST].strip("-")


def _hashed(pair: Pair) -> str:
    code = hashlib.sha256("\0".join(pair).encode()).hexdigest()[:_HASH]
    return f"{_slug('-'.join(pair))[: LONGEST - _HASH - 1].strip('-')}-{code}"
