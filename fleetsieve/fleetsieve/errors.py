"""The exception for input that is wrong; failed benchmarks are data, not exceptions."""


class InputError(ValueError):
    """Wrong input: one sentence that names the thing, its value and what would be accepted."""
