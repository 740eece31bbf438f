"""What is refused because of what somebody gave."""


class InputError(ValueError):
    """Input that is wrong; the message is one sentence that says what, and what would do."""
