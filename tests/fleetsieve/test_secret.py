"""Secrets: found by their names wherever they are set, and what is none stays readable."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve.secret import is_secret, without_secrets

SECRET = "hunter2"
NAMES = [
    "api-key", "api_key", "apikey", "apiKey", "API_KEY", "hf-token", "hfToken", "HF_TOKEN", "token",
    "password", "passwd", "passphrase", "client-secret", "credentials", "authorization",
]  # fmt: skip
# How a setting may stand in an option, a command line or a script.
SHAPES = [
    lambda name: {name: SECRET},
    lambda name: {"config": {"host": "h", name: SECRET}},
    lambda name: {"hosts": [{name: SECRET}]},
    lambda name: {name: [SECRET, SECRET]},
    lambda name: ["serve", f"--{name}", SECRET],
    lambda name: ["serve", f"--{name}={SECRET}"],
    lambda name: ["env", f"{name}={SECRET}", "serve"],
    lambda name: ["bash", "-c", f"serve m --{name} {SECRET} --port 1"],
    lambda name: ["bash", "-c", f"a && {name}={SECRET} serve"],
    lambda name: {"headers": f"{name}: {SECRET}"},
    lambda name: {"headers": f"{name}: Bearer {SECRET}"},
    lambda name: {"config": json.dumps({name: SECRET})},
    lambda name: {"config": json.dumps(json.dumps({name: SECRET}))},
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_secret_is_left_out_however_it_is_set(name, shape):
    assert SECRET not in repr(without_secrets(shape(name)))


ADDRESSES = {
    f"redis://u:{SECRET}@h:1/0": "redis://(not shown)@h:1/0",
    f"https://{SECRET}@hub/m": "https://(not shown)@hub/m",
    f"http://u:{SECRET}@a, http://{SECRET}:@b": "http://(not shown)@a, http://(not shown)@b",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_shown_without_what_logs_in(address):
    assert without_secrets([address]) == [ADDRESSES[address]]


PLAIN = [
    {"max-num-batched-tokens": 512, "tokenizer": "org/m", "tool-call-parser": "hermes"},
    {"speculative-config": {"method": "ngram", "num_speculative_tokens": 5}},
    {"chat-template": "token.jinja", "kv-cache-dtype": "fp8", "flag": True, "none": None},
    ["/opt/vllm/bin/vllm", "serve", "m", "--tokenizer-mode", "auto", "--port=1"],
    ["bash", "-c", "export OMP_NUM_THREADS=1 && exec vllm serve 'm' --max-model-len 8192"],
    ["http://node:8000/v1", "mail@host", "a:b@c"],
]


@pytest.mark.parametrize("plain", PLAIN)
def test_what_is_no_secret_is_shown_as_it_is(plain):
    assert without_secrets(plain) == plain


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=150, deadline=None)
@given(values, st.sampled_from(NAMES))
def test_any_value_of_a_secrets_name_is_left_out(value, name):
    assert without_secrets({name: value, "model": "m"}) == {name: "(not shown)", "model": "m"}
    assert without_secrets([value, f"--{name}", value])[2] == "(not shown)"


@pytest.mark.parametrize("text", ["a" * 300_000, " " * 300_000, "a " * 150_000, "a=" * 150_000,
                                  "://" * 100_000, "'" * 300_000])  # fmt: skip
def test_long_texts_take_no_longer_than_reading_them(text):
    start = time.process_time()
    without_secrets([text, f"x{text}"])
    assert time.process_time() - start < 5.0


def test_a_variable_is_judged_by_its_words():
    assert is_secret("HF_TOKEN")
    assert is_secret("AWS_ACCESS_KEY_ID")
    assert not is_secret("MAX_TOKENS")
    assert not is_secret("KEYBOARD")
    assert is_secret("DATABASE", "postgres://u:p@h/d")
