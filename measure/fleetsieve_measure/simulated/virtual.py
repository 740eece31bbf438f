"""The simulated engine in virtual time: arrivals in, token times out."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.simulated.batching import Batching, Limits
from fleetsieve_measure.simulated.policy import Policy
from fleetsieve_measure.simulated.sequence import Sequence
from fleetsieve_measure.simulated.step_time import StepTime


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What happened to each request, in the order in which they were given; seconds.

    Attributes:
        sent: when it reached the engine; its arrival, unless the concurrency was bounded.
        first_token, last_token: when its first and last output token came out.
        token_times: of each request, when each output token came out; None unless asked for.
        preemptions: how often a sequence lost its KV cache.
    """

    sent: NDArray[np.float64]
    first_token: NDArray[np.float64]
    last_token: NDArray[np.float64]
    token_times: list[NDArray[np.float64]] | None
    preemptions: int


def simulate(
    arrivals: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    *,
    step_time: StepTime,
    limits: Limits,
    policy: Policy | None = None,
    concurrency: int | None = None,
    token_times: bool = False,
) -> Timeline:
    """Run the engine until every request is finished.

    Args:
        arrivals: seconds, never decreasing, one per request.
        prompt_tokens, output_tokens: counts, one per request.
        concurrency: requests in flight at most; further ones are held back in order of arrival.
            With all arrivals 0 this is a closed loop.

    Raises:
        InputError: arrays that do not fit together, or a request that the engine cannot serve.
    """
    times, sequences = _requests(arrivals, prompt_tokens, output_tokens)
    if concurrency is not None and concurrency < 1:
        raise InputError(f"concurrency is {concurrency}; give at least 1")
    count = len(times)
    batching = Batching(limits, policy)
    sent, first, last = np.empty(count), np.empty(count), np.empty(count)
    emitted: list[list[float]] = [[] for _ in range(count)] if token_times else []
    # Since when each free place in the engine has been free, the longest free one first.
    places = deque([0.0] * (count if concurrency is None else concurrency))
    now, upcoming, served = 0.0, 0, 0
    while served < count:
        while upcoming < count and times[upcoming] <= now and places:
            sent[upcoming] = max(times[upcoming], places.popleft())
            batching.add(sequences[upcoming])
            upcoming += 1
        step = batching.plan()
        if step is None:
            now = times[upcoming]
            continue
        now += step_time(step.tokens, step.pairs, step.kv_tokens)
        for sequence in step.first:
            first[sequence.key] = now
        if token_times:
            for sequence in step.emitting:
                emitted[sequence.key].append(now)
        for sequence in batching.complete(step):
            last[sequence.key] = now
            places.append(now)
            served += 1
    return Timeline(
        sent=sent,
        first_token=first,
        last_token=last,
        token_times=[np.array(own) for own in emitted] if token_times else None,
        preemptions=batching.preemptions,
    )


def _requests(
    arrivals: ArrayLike, prompt_tokens: ArrayLike, output_tokens: ArrayLike
) -> tuple[list[float], list[Sequence]]:
    times = np.asarray(arrivals, dtype=float)
    prompts, outputs = np.asarray(prompt_tokens), np.asarray(output_tokens)
    if times.ndim != 1 or prompts.shape != times.shape or outputs.shape != times.shape:
        raise InputError(
            f"arrivals, prompt_tokens and output_tokens have shapes {times.shape}, "
            f"{prompts.shape} and {outputs.shape}; give one number per request in each"
        )
    if not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise InputError("arrivals decrease or are not finite; sort them")
    if times.size and times[0] < 0:
        raise InputError(f"the first arrival is at {times[0]}; times start at 0")
    if times.size and (prompts.dtype.kind not in "iu" or outputs.dtype.kind not in "iu"):
        raise InputError(
            f"prompt_tokens and output_tokens are {prompts.dtype} and {outputs.dtype}; "
            "give whole numbers"
        )
    pairs = zip(prompts.tolist(), outputs.tolist(), strict=True)
    return times.tolist(), [Sequence(key, p, o) for key, (p, o) in enumerate(pairs)]
