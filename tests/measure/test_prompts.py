"""Prompts have the tokens that were asked for, and no two begin alike."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve_measure.errors import InputError
from fleetsieve_measure.prompts import Words, token_ids


class Server:
    """Counts tokens: a template, and for each word what `cost` says."""

    def __init__(self, template, cost):
        self.template, self.cost = template, cost

    def count(self, text):
        return self.template + sum(map(self.cost, text.split()))

    def calibrate(self, *sizes):
        rng = np.random.default_rng(0)
        texts = [Words().text(rng, size) for size in sizes]
        return Words.calibrated(
            [len(text.split()) for text in texts], [self.count(text) for text in texts]
        )


def first_blocks(make, seeds, each):
    """The first 16 tokens of `each` prompts of every seed, as one cell after another sends them."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        for number in range(each):
            yield tuple(make(rng, 16 + number % 50)[:16])


def test_no_two_of_ten_thousand_prompts_share_their_first_block():
    ids = list(first_blocks(token_ids, seeds=range(10), each=1000))
    words = list(
        first_blocks(
            lambda rng, count: Words().text(rng, count).split(), seeds=range(10), each=1000
        )
    )
    assert len(set(ids)) == len(set(words)) == 10_000


@settings(deadline=None)
@given(count=st.integers(1, 500), low=st.integers(0, 1000), width=st.integers(1, 1000))
def test_token_ids_are_as_many_as_asked_for_and_in_their_range(count, low, width):
    ids = token_ids(np.random.default_rng(count), count, low, low + width)
    assert len(ids) == count
    assert all(type(token) is int and low <= token < low + width for token in ids)


def test_all_ids_of_the_range_are_used_and_fit_a_byte_vocabulary():
    ids = token_ids(np.random.default_rng(0), 20_000)
    assert set(ids) == set(range(100, 250))


@settings(deadline=None)
@given(
    template=st.integers(0, 60),
    cost=st.integers(1, 6),
    tokens=st.integers(100, 5000),
)
def test_a_calibrated_prompt_misses_its_count_by_no_more_than_half_a_word(template, cost, tokens):
    server = Server(template, lambda _: cost)
    text = server.calibrate(20, 200).text(np.random.default_rng(tokens), tokens)
    assert abs(server.count(text) - tokens) <= cost / 2


@pytest.mark.parametrize("tokens", [100, 1000, 8000])
def test_where_words_differ_in_tokens_the_count_is_missed_by_a_few(tokens):
    server = Server(12, lambda word: 1 + (len(word) > 3))
    words = server.calibrate(100, 1000, 4000)
    rng = np.random.default_rng(1)
    counts = np.array([server.count(words.text(rng, tokens)) for _ in range(200)])
    assert np.abs(counts - tokens).max() <= 16
    assert counts.mean() == pytest.approx(tokens, abs=8)


def test_uncalibrated_a_word_counts_as_a_token():
    assert len(Words().text(np.random.default_rng(0), 123).split()) == 123


def test_a_prompt_below_the_template_is_one_word():
    assert len(Words(overhead=30).text(np.random.default_rng(0), 10).split()) == 1


@pytest.mark.parametrize("make", [token_ids, Words(20, 1.3).text])
def test_the_same_generator_gives_new_prompts_and_the_same_seed_the_same(make):
    rng = np.random.default_rng(3)
    prompts = [make(rng, 40), make(rng, 40)]
    assert prompts[0] != prompts[1]
    assert make(np.random.default_rng(3), 40) == prompts[0]


@pytest.mark.parametrize("make", [token_ids, Words().text])
def test_a_prompt_of_4000_tokens_takes_well_under_a_millisecond(make):
    rng = np.random.default_rng(0)

    def seconds():
        start = time.process_time()
        make(rng, 4000)
        return time.process_time() - start

    assert min(seconds() for _ in range(50)) < 0.7e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: token_ids(np.random.default_rng(0), 0), "a prompt of 0 tokens"),
        (lambda: Words().text(np.random.default_rng(0), 0), "a prompt of 0 tokens"),
        (lambda: Words.calibrated([10], [12]), "pairs with two or more word counts"),
        (lambda: Words.calibrated([10, 10], [12, 12]), "pairs with two or more word counts"),
        (lambda: Words.calibrated([10, 20], [12]), "pairs with two or more word counts"),
        (lambda: Words.calibrated([10, 20], [30, 30]), "no rising line"),
        # A server that cuts what is longer than its context.
        (lambda: Words.calibrated([100, 1000, 4000], [110, 1010, 2048]), "no rising line"),
    ],
)
def test_what_gives_no_prompt_is_refused_with_what_would_do(make, message):
    with pytest.raises(InputError, match=message):
        make()
