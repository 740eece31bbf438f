"""A sequence: the tokens of one request, and how far the engine has come with them."""


class Sequence:
    """Mutable, and compared by identity.

    Attributes:
        key: the caller's number for the request.
        prompt_tokens: length of the prompt.
        total_tokens: prompt and output, when finished.
        known: prompt tokens and output tokens so far.
        computed: how many of them are in the KV cache, or will be after the current step.
        room: how many fit in the blocks it holds; 0 exactly when it is not running.
    """

    __slots__ = ("computed", "key", "known", "prompt_tokens", "room", "total_tokens")

    def __init__(self, key: int, prompt_tokens: int, output_tokens: int) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.total_tokens = prompt_tokens + output_tokens
        self.known = prompt_tokens
        self.computed = 0
        self.room = 0

    @property
    def finished(self) -> bool:
        """Whether all output tokens have been emitted."""
        return self.known == self.total_tokens
