"""The requests of one cell, built one after the other."""

import numpy as np

from fleetsieve_measure.client import Body, completion
from fleetsieve_measure.lengths import Lengths
from fleetsieve_measure.prompts import Words, token_ids

_BLOCK = 256


class Source:
    """Makes requests of given lengths, each with a prompt of its own, to one model."""

    def __init__(
        self, model: str, lengths: Lengths, words: Words | None, rng: np.random.Generator
    ) -> None:
        """Prompts are token ids, or text where `words` says how many tokens words are."""
        self._model, self._lengths, self._words, self._rng = model, lengths, words, rng
        self._ahead: list[list[int]] = []

    def next(self) -> Body:
        """The next request; its output has exactly so many tokens where the server can do that."""
        if not self._ahead:
            self._ahead = self._lengths.draw(self._rng, _BLOCK).tolist()[::-1]
        prompt_tokens, output_tokens = self._ahead.pop()
        return completion(
            self._model,
            token_ids(self._rng, prompt_tokens)
            if self._words is None
            else self._words.text(self._rng, prompt_tokens),
            max_tokens=output_tokens,
            exact=True,
            prompt_tokens=prompt_tokens,
        )
