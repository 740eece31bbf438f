"""Request lengths: prompt and output tokens of each request, drawn or taken from a trace."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleetsieve_measure.errors import InputError

# What no context length comes near; more is a slip.
MOST_TOKENS = 2**31 - 1


class Lengths(Protocol):
    """Where the lengths of requests come from."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """(count, 2) prompt and output tokens of the next requests, each at least 1."""
        ...


class Tokens(Protocol):
    """One side of a request: prompt lengths alone, or output lengths alone."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """(count,) numbers of tokens, each at least 1."""
        ...


@dataclass(frozen=True)
class Constant:
    """Always the same number of tokens."""

    tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MOST_TOKENS:
            raise InputError(f"tokens is {self.tokens}; give a number from 1 to {MOST_TOKENS}")

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """(count,) times the constant."""
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True)
class Lognormal:
    """Log-normal numbers of tokens, rounded, from 1 to `maximum`.

    What lies above `maximum` becomes `maximum`, which is what a token limit does to a request.
    Drawing again instead would shift every quantile: the median would no longer be `median`.

    Attributes:
        median: the median in tokens.
        sigma: the standard deviation of the log.
    """

    median: float
    sigma: float
    maximum: int = MOST_TOKENS

    def __post_init__(self) -> None:
        if not 1 <= self.median < math.inf:
            raise InputError(f"median is {self.median} tokens; give at least 1")
        if not 0 <= self.sigma < math.inf:
            raise InputError(f"sigma is {self.sigma}; give a finite number, at least 0")
        if self.median > self.maximum:
            raise InputError(
                f"median is {self.median:g} tokens, above the maximum of {self.maximum}; "
                "give a smaller median or a larger maximum"
            )

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """(count,) independent draws."""
        log = math.log(self.median) + self.sigma * rng.standard_normal(count)
        tokens = np.rint(np.exp(np.clip(log, 0.0, math.log(self.maximum))))
        return tokens.astype(np.int64)


@dataclass(frozen=True)
class Independent:
    """Prompt and output lengths that know nothing of each other."""

    prompt: Tokens
    output: Tokens

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """(count, 2) pairs of independent draws."""
        return np.column_stack([self.prompt.draw(rng, count), self.output.draw(rng, count)])


class Rows:
    """Whole rows of a trace, drawn with replacement: prompt and output stay as correlated as there.

    Args:
        prompt_tokens: (n,) prompt lengths, at least 1.
        output_tokens: (n,) output lengths of the same requests, at least 1.
    """

    def __init__(self, prompt_tokens: ArrayLike, output_tokens: ArrayLike) -> None:
        sides = [np.asarray(side) for side in (prompt_tokens, output_tokens)]
        shapes = [side.shape for side in sides]
        if shapes[0] != shapes[1] or len(shapes[0]) != 1 or shapes[0] == (0,):
            raise InputError(
                f"prompt_tokens and output_tokens have the shapes {shapes[0]} and {shapes[1]}; "
                "give one of each per request, of at least one request"
            )
        rows = np.column_stack(sides)
        if not np.issubdtype(rows.dtype, np.integer):
            raise InputError(f"token counts are of type {rows.dtype}; give whole numbers")
        if rows.min() < 1:
            raise InputError(f"a request has {rows.min()} tokens on one side; give at least 1")
        self.rows = rows.astype(np.int64)

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """(count, 2) rows, each as likely as any other."""
        return self.rows[rng.integers(len(self.rows), size=count)]


class InOrder:
    """The rows of a trace in their order, over and over: what goes with replayed arrivals.

    A draw goes on where the one before ended, so one object serves one run.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows.rows
        self._next = 0

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """(count, 2) next rows; nothing is random about them."""
        places = (self._next + np.arange(count)) % len(self._rows)
        self._next = (self._next + count) % len(self._rows)
        return self._rows[places]


class Clipped:
    """Lengths that respect a model's context length, and how many had to give way.

    A request whose prompt and output together exceed `max_model_len` is scaled down to it: it
    stays in the load, as heavy as the model takes, in the proportion of prompt to output that it
    had. Leaving it out would make the load lighter than what is asked for.
    """

    def __init__(self, lengths: Lengths, max_model_len: int) -> None:
        if max_model_len < 2:
            raise InputError(
                f"max_model_len is {max_model_len}; give at least 2, a prompt and an output token"
            )
        self._lengths = lengths
        self._limit = max_model_len
        self._drawn = self._cut = 0

    @property
    def share_cut(self) -> float:
        """The share of the requests drawn so far that were too long; 0 before any."""
        return self._cut / self._drawn if self._drawn else 0.0

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """(count, 2) lengths that fit, none below 1."""
        lengths = self._lengths.draw(rng, count)
        total = lengths.sum(axis=1)
        long = total > self._limit
        self._drawn += count
        self._cut += np.count_nonzero(long)
        output = np.maximum(1, lengths[:, 1] * self._limit // total)
        scaled = np.column_stack([self._limit - output, output])
        return np.where(long[:, None], scaled, lengths)
