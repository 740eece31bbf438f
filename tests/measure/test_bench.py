"""Cells on servers that cannot be had: what is paid, and how often."""

import asyncio
from functools import partial

import pytest

from fleetsieve_measure.arrivals import constant
from fleetsieve_measure.bench import Bench, CellPlan
from fleetsieve_measure.engines import Launch
from fleetsieve_measure.errors import InputError
from fleetsieve_measure.lengths import Constant, Independent
from fleetsieve_measure.load import OpenLoop
from fleetsieve_measure.node import Node
from fleetsieve_measure.probe import probe
from fleetsieve_measure.results import Failed
from fleetsieve_measure.slots import Slots
from fleetsieve_measure.trial import Rules


def plan(launch):
    return CellPlan(
        key="x",
        launch=launch,
        gpus=2,
        lengths=Independent(Constant(5), Constant(2)),
        load=OpenLoop(5.0, partial(constant, 5.0)),
        rules=Rules({}, 0.1, 0.5, 1.0, 5.0),
        stall_seconds=5.0,
        seed=(0,),
    )


def measured(folder, launch, times):
    async def scenario():
        async with Node(Slots(2), folder, back_off=0.01) as node:
            bench = Bench(node, back_off=0.01)
            return [(await bench.measure(plan(launch))).outcome for _ in range(times)]

    return asyncio.run(scenario())


def test_a_config_that_does_not_start_is_paid_for_once(tmp_path):
    launch = Launch(kind="simulated", model="no-such-model")
    first, second = measured(tmp_path, launch, 2)
    assert isinstance(first, Failed)
    assert isinstance(second, Failed)
    assert "no-such-model" in first.reason
    assert second.reason == first.reason
    assert first.gpu_seconds > 0
    assert second.gpu_seconds == 0


def test_a_url_where_nobody_is_ends_the_run_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("fleetsieve_measure.server._UP", 0.5)
    launch = Launch(kind="openai", model="m", url="http://127.0.0.1:9")
    with pytest.raises(InputError, match="start the server, or correct its url"):
        measured(tmp_path, launch, 1)


@pytest.mark.parametrize(
    ("url", "words"),
    [("http://127.0.0.1:9", "nothing answers at http://127.0.0.1:9"), ("nonsense", "is none of a")],
)
def test_a_probe_says_what_is_wrong_with_an_address(url, words):
    with pytest.raises(InputError, match=words) as refused:
        asyncio.run(probe(url))
    assert "--model" not in str(refused.value)
