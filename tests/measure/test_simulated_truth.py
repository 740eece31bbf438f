"""The truth remembers the latest requests, and no more than it may."""

from fleetsieve_measure.simulated.truth import Record, Truth


def test_a_record_has_the_first_and_the_latest_token():
    record = Record(arrival=1.0, prompt_tokens=5)
    for now in (2.0, 3.5, 4.0):
        record.token(now)
    assert (record.first_token, record.last_token, record.output_tokens) == (2.0, 4.0, 3)


def test_the_oldest_are_forgotten_and_a_repeated_id_counts_as_new():
    truth = Truth(capacity=3)
    for arrival, name in enumerate(["a", "b", "c", "a", "d"]):
        truth.add(name, Record(arrival=float(arrival), prompt_tokens=1))
    kept = truth.to_json()
    assert list(kept) == ["c", "a", "d"]
    assert kept["a"]["arrival"] == 3.0
    assert kept["a"]["first_token"] is None
