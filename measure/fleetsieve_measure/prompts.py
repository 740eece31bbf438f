"""Prompts with known token counts, of which no two share a prefix worth caching.

A server that keeps the KV cache of prompts it has seen serves a repeated one almost for free, and
a benchmark with the same prompts as the one before looks several times faster than it is. All
content here is random from the first token: seed each cell and each repeat differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fleetsieve_measure.errors import InputError

# Each is one token, its blank included, in the tokenizers of the usual model families.
_COMMON = (
    "the of and to in is for on that with as it by from at are this be or an not if we can will "
    "all one but you was have has its which more their when there other new some time only than "
    "first two out up so no what who may such any use into these then how just over also after"
)
_WORDS = _COMMON.split()
_DECK = np.arange(len(_WORDS))
# Prompts of so many words differ by less than this share in any tokenizer.
_WORST_FIT = 0.05
# What no tokenizer spends less than on a word; a lower slope is rounding or a cut prompt.
_LEAST_PER_WORD = 0.1


def token_ids(rng: np.random.Generator, count: int, low: int = 100, high: int = 250) -> list[int]:
    """`count` random token ids from `low` up to, not including, `high`.

    The default ids exist in practically any vocabulary: byte-level ones hold the 256 bytes there,
    SentencePiece ones their byte pieces, larger ones reserved or ordinary pieces. They lie above
    the few ids where padding, begin and end of text are kept.
    """
    _at_least_one(count)
    return rng.integers(low, high, count).tolist()


@dataclass(frozen=True)
class Words:
    """Common words in random order, for servers that take text only.

    Words are dealt from shuffled decks, each word once per deck: also in a tokenizer where some
    words are several tokens, prompts of one length differ by what is in their last deck at most.
    Uncalibrated, a word counts as a token.

    Attributes:
        overhead: tokens of an empty prompt: what a chat template adds, or a begin token.
        tokens_per_word: what each word adds.
    """

    overhead: float = 0.0
    tokens_per_word: float = 1.0

    @classmethod
    def calibrated(cls, words: Sequence[int], prompt_tokens: Sequence[int]) -> Self:
        """The least-squares line through prompts of so many words and the tokens reported.

        Args:
            words: (n,) words sent, in at least two different numbers.
            prompt_tokens: (n,) prompt tokens that the server counted.

        Raises:
            InputError: the pairs give no rising line, or none that they are close to, as when
                a server cuts long prompts.
        """
        if len(words) != len(prompt_tokens) or len(set(words)) < 2:
            raise InputError(
                f"{len(words)} word counts, {len(set(words))} of them different, came with "
                f"{len(prompt_tokens)} token counts; give pairs with two or more word counts"
            )
        slope, overhead = np.polyfit(words, prompt_tokens, 1)
        error = np.abs(overhead + slope * np.asarray(words) - prompt_tokens).max()
        if slope < _LEAST_PER_WORD or error > max(1.0, _WORST_FIT * max(prompt_tokens)):
            raise InputError(
                f"prompts of {list(words)} words were counted as {list(prompt_tokens)} tokens, "
                "which is no rising line; give counts of prompts that the server takes whole"
            )
        return cls(float(overhead), float(slope))

    def text(self, rng: np.random.Generator, tokens: int) -> str:
        """A prompt that the server counts as `tokens` tokens, as nearly as whole words allow."""
        _at_least_one(tokens)
        count = max(1, round((tokens - self.overhead) / self.tokens_per_word))
        decks = rng.permuted(np.tile(_DECK, (-(-count // len(_DECK)), 1)), axis=1)
        return " ".join([_WORDS[i] for i in decks.ravel()[:count].tolist()])


def _at_least_one(tokens: int) -> None:
    if tokens < 1:
        raise InputError(f"a prompt of {tokens} tokens was asked for; give at least 1")
