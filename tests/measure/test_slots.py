"""Blocks of GPUs never overlap, are aligned, and keep what is whole whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.slots import Slots

SIZES = st.sampled_from([1, 2, 4, 8])
# Takes of a size, and gives of the block with that index among those held.
STEPS = st.lists(st.one_of(SIZES, st.integers(-8, -1)), max_size=60)


def walk(slots, steps):
    """Every take of `steps`, with the GPUs that were free before it and the block it gave."""
    held, free = [], set(range(slots.free))
    for step in steps:
        if step > 0:
            block = slots.take(step)
            yield step, frozenset(free), block
            if block is not None:
                held.append(block)
                free -= set(block)
        elif held:
            block = held.pop(step % len(held))
            slots.give(block)
            free |= set(block)
    assert slots.free == len(free)


def aligned(free, size):
    """The free blocks of `size` GPUs that start at a multiple of it; 16 GPUs are enough here."""
    starts = range(0, 16, size)
    return [start for start in starts if free.issuperset(range(start, start + size))]


@given(STEPS)
def test_blocks_never_overlap_and_start_at_a_multiple_of_their_size(steps):
    for size, free, block in walk(Slots(16), steps):
        if block is not None:
            assert free.issuperset(block)
            assert block == tuple(range(block[0], block[0] + size))
            assert block[0] % size == 0


@given(STEPS)
def test_a_block_is_refused_only_where_there_is_none(steps):
    for size, free, block in walk(Slots(16), steps):
        assert (block is None) == (not aligned(free, size))


@given(STEPS)
def test_a_block_is_cut_out_of_the_smallest_free_one(steps):
    for size, free, block in walk(Slots(16), steps):
        if block is None:
            continue
        for larger in (2, 4, 8):
            if larger <= size:
                continue
            broken = len(aligned(free, larger)) - len(aligned(free - set(block), larger))
            whole = {gpu for s in aligned(free, larger) for gpu in range(s, s + larger)}
            elsewhere = [s for s in aligned(free, size) if s not in whole]
            assert broken == 0 or not elsewhere


@given(st.permutations([1, 1, 2, 4]))
def test_what_fits_at_all_fits_in_order_of_size(sizes):
    slots = Slots(8)
    assert all(slots.take(size) is not None for size in sorted(sizes, reverse=True))
    assert slots.free == 0


@given(st.lists(st.sampled_from([1, 3, 6]), max_size=12))
def test_sizes_need_not_be_powers_of_two(sizes):
    for size, free, block in walk(Slots(12, per_node=6), sizes):
        assert block is None or (free.issuperset(block) and block[0] % size == 0)


def test_no_block_spans_two_nodes():
    slots = Slots(12)
    assert slots.take(8) == tuple(range(8))
    assert slots.take(4) == (8, 9, 10, 11)
    assert Slots(12, per_node=4).largest == 4


def test_a_block_that_no_node_can_have_is_refused_at_once():
    with pytest.raises(InputError, match="16 GPUs were asked for, and one node has 8"):
        Slots(16).take(16)
    with pytest.raises(InputError, match="one node has 0"):
        Slots(0).take(1)


def test_a_server_without_gpus_takes_none():
    slots = Slots(0)
    assert slots.take(0) == ()
    slots.give(())


def test_giving_back_twice_is_a_mistake_that_is_told():
    slots = Slots(4)
    block = slots.take(2)
    assert block is not None
    slots.give(block)
    with pytest.raises(RuntimeError, match=r"\(0, 1\) are not all in use"):
        slots.give(block)
    with pytest.raises(RuntimeError, match="not all in use"):
        slots.give((99,))
