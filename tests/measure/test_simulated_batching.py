"""Continuous batching: what each step does, and what no step ever does."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.simulated.batching import Batching, Limits
from fleetsieve_measure.simulated.sequence import Sequence


def batching(sequences, **limits):
    batch = Batching(Limits(**{"kv_tokens": 10**6, **limits}))
    added = [Sequence(key, prompt, output) for key, (prompt, output) in enumerate(sequences)]
    for sequence in added:
        batch.add(sequence)
    return batch, added


def one_step(batch):
    step = batch.plan()
    assert step is not None
    batch.complete(step)


def steps(batch):
    """Of each step until the end: tokens, pairs, KV tokens, and who got a token."""
    seen = []
    while (step := batch.plan()) is not None:
        batch.complete(step)
        keys = [sequence.key for sequence in step.emitting]
        seen.append((step.tokens, step.pairs, step.kv_tokens, keys))
    return seen


def test_the_prompt_gives_the_first_token_and_each_decode_step_one_more():
    batch, _ = batching([(5, 3)])
    # The last token is emitted and never computed.
    assert steps(batch) == [(5, 15, 5, [0]), (1, 6, 6, [0]), (1, 7, 7, [0])]


def test_a_long_prompt_is_prefilled_in_chunks_beside_decodes():
    batch, _ = batching([(2, 4), (9, 1)], max_num_batched_tokens=5, max_num_seqs=5)
    assert [(tokens, keys) for tokens, _, _, keys in steps(batch)] == [
        (5, [0]),  # the first prompt of 2, and 3 of the 9
        (5, [0]),  # one decode, 4 more
        (3, [0, 1]),  # one decode, the last 2
        (1, [0]),
    ]


def test_no_more_sequences_run_than_may():
    batch, _ = batching([(1, 2)] * 5, max_num_seqs=2)
    assert [keys for *_, keys in steps(batch)] == [[0, 1], [0, 1], [2, 3], [2, 3], [4], [4]]


def test_the_latest_is_preempted_and_recomputes_its_output_too():
    # Three blocks of 4: both prompts get one; at their 5th token the first takes the last block.
    batch, (first, second) = batching([(4, 3), (4, 3)], kv_tokens=12, block_size=4)
    one_step(batch)
    one_step(batch)
    assert (first.known, batch.preemptions) == (6, 1)
    assert (second.room, second.computed, second.known) == (0, 0, 5)
    assert [keys for *_, keys in steps(batch)] == [[0], [1], [1]]
    assert first.finished
    assert second.finished


def test_a_preempted_sequence_prefills_prompt_and_output_at_once():
    batch, _ = batching([(4, 3), (4, 3)], kv_tokens=12, block_size=4)
    assert [tokens for tokens, *_ in steps(batch)] == [8, 1, 1, 5, 1]


def test_a_prompt_is_admitted_only_when_all_of_it_fits():
    sizes = {"kv_tokens": 32, "block_size": 4, "max_num_batched_tokens": 8, "max_num_seqs": 8}
    batch, (_, second) = batching([(16, 2), (20, 1)], **sizes)
    seen = steps(batch)
    assert [tokens for tokens, *_ in seen] == [8, 8, 1, 8, 8, 4]
    assert batch.preemptions == 0
    assert second.finished


def test_aborting_frees_the_kv_cache_of_a_running_and_the_place_of_a_waiting_sequence():
    batch, (running, waiting, last) = batching([(10, 5)] * 3, max_num_seqs=1)
    one_step(batch)
    batch.abort(running)
    batch.abort(waiting)
    assert batch.free_blocks == batch.limits.blocks
    assert [keys for *_, keys in steps(batch)] == [[last.key]] * 5


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (-1, 5)])
def test_a_request_without_tokens_is_refused(prompt, output):
    with pytest.raises(InputError, match="give at least one of each"):
        Batching(Limits(kv_tokens=100)).add(Sequence(0, prompt, output))


def test_a_request_that_could_never_finish_is_refused():
    batch = Batching(Limits(kv_tokens=100, block_size=16))
    batch.add(Sequence(0, 90, 7))
    with pytest.raises(InputError, match="98 tokens does not fit in the KV cache of 96 tokens"):
        batch.add(Sequence(1, 90, 8))


REQUESTS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=25)
LIMITS = st.fixed_dictionaries(
    {
        "kv_tokens": st.integers(60, 300),
        "block_size": st.sampled_from([1, 4]),
        "max_num_seqs": st.integers(1, 8),
        "max_num_batched_tokens": st.integers(8, 64),
    }
)


@settings(deadline=None)
@given(REQUESTS, LIMITS)
def test_every_request_gets_its_tokens_within_all_limits(requests, limits):
    batch, added = batching(requests, **limits)
    block_size = limits["block_size"]
    emitted = dict.fromkeys(range(len(requests)), 0)
    first = []
    while (step := batch.plan()) is not None:
        assert 0 < step.tokens <= limits["max_num_batched_tokens"]
        assert len(batch.running) <= limits["max_num_seqs"]
        # Blocks are neither lost nor made, and hold what is computed.
        held = sum(sequence.room for sequence in batch.running) // block_size
        assert held + batch.free_blocks == batch.limits.blocks
        assert batch.free_blocks >= 0
        assert all(sequence.computed <= sequence.room for sequence in batch.running)
        for sequence in step.emitting:
            emitted[sequence.key] += 1
        first += [sequence.key for sequence in step.first]
        batch.complete(step)
    assert emitted == {key: output for key, (_, output) in enumerate(requests)}
    assert first == sorted(first)
    assert batch.free_blocks == batch.limits.blocks
    assert all(sequence.finished for sequence in added)


@settings(deadline=None)
@given(REQUESTS, LIMITS)
def test_nobody_waits_while_there_is_room_seat_and_budget(requests, limits):
    batch, _ = batching(requests, **limits)
    while True:
        preemptions = batch.preemptions
        step = batch.plan()
        if step is None:
            break
        if len(batch.waiting) and preemptions == batch.preemptions:
            needed = -(-batch.waiting.first().known // limits["block_size"])
            assert (
                needed > batch.free_blocks
                or len(batch.running) == limits["max_num_seqs"]
                or step.tokens == limits["max_num_batched_tokens"]
            )
        batch.complete(step)


@settings(deadline=None)
@given(REQUESTS)
def test_with_room_for_all_no_token_is_computed_twice(requests):
    batch, _ = batching(requests)
    seen = steps(batch)
    assert sum(tokens for tokens, *_ in seen) == sum(p + o - 1 for p, o in requests)
    # Causal attention: the i-th token of a sequence attends to i tokens.
    pairs = (range(1, p + o) for p, o in requests)
    assert sum(pairs for _, pairs, *_ in seen) == sum(itertools.chain.from_iterable(pairs))


class LastComeFirstServed:
    """Another policy, to show that order and preemption are its business."""

    def __init__(self):
        self.waiting = []

    def __len__(self):
        return len(self.waiting)

    def add(self, sequence):
        self.waiting.append(sequence)

    put_back = add

    def first(self):
        return self.waiting[-1]

    def remove(self, sequence):
        self.waiting.remove(sequence)

    def victim(self, candidates):
        return candidates[0]


def test_a_policy_decides_who_is_admitted_and_who_gives_way():
    batch = Batching(Limits(kv_tokens=16, block_size=4), LastComeFirstServed())
    for key in range(3):
        batch.add(Sequence(key, 4, 3))
    # At their 5th token the first takes the last block, and the second gives way to the third.
    assert [keys for *_, keys in steps(batch)] == [[2, 1, 0], [2, 0], [2, 0], [1], [1]]
    assert batch.preemptions == 1
