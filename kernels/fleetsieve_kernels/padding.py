"""Buckets: padded sizes, so that growing data recompiles rarely."""

_SMALLEST, _FINE = 8, 32


def bucket(size: int) -> int:
    """The smallest of 8, 16, 32, 48, 64, 96, 128, ... that holds `size` rows."""
    power = _SMALLEST
    while power < size:
        if power >= _FINE and size <= power * 3 // 2:
            return power * 3 // 2
        power *= 2
    return power
