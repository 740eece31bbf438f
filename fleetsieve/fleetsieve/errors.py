"""The exception for input that is wrong; failed benchmarks are data, not exceptions."""

from fleetsieve_measure.errors import InputError

__all__ = ["InputError"]
