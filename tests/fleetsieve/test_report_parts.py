"""Parts of reports: text stays text, scales keep order, nodes hold what fits."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsieve.cli import main
from fleetsieve.errors import InputError
from fleetsieve.report.markup import element, html
from fleetsieve.report.nodes import nodes
from fleetsieve.report.of_replay import replay_page
from fleetsieve.report.page import page
from fleetsieve.report.parts import section
from fleetsieve.report.scale import Scale

few = settings(max_examples=150, deadline=None)
positive = st.floats(min_value=1e-12, max_value=1e12)


class Reader(HTMLParser):
    """Tags in order with their attributes, and all text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@few
@given(st.text(), st.text())
def test_any_text_and_attribute_reads_back_and_makes_no_element(text, attribute):
    found = Reader(html(element("p", text, element("b", text), data_x=attribute)))
    assert [tag for tag, _ in found.tags] == ["p", "b"]
    plain = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    assert found.text == 2 * plain
    assert found.tags[0][1]["data-x"].isprintable()
    if attribute.isprintable():
        assert found.tags[0][1]["data-x"] == attribute


@few
@given(positive, positive, positive, positive, st.booleans())
def test_a_scale_keeps_order_and_stays_on_the_page(a, b, x, y, log):
    scale = Scale(min(a, b), max(a, b), 10.0, 90.0, log)
    low, high = scale(min(x, y)), scale(max(x, y))
    assert 10 <= low <= high <= 90
    assert scale(math.inf) in (50, 90)
    assert scale(0.0) in (50, 10)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 12
    assert ticks == sorted(set(ticks))
    slack = 1e-6 * (scale.high - scale.low) + 1e-9 * scale.high
    assert all(scale.low - slack <= tick <= scale.high + slack for tick in ticks)


@few
@given(st.data())
def test_every_replica_has_gpus_of_its_own_on_one_node(data):
    per_node = data.draw(st.sampled_from([1, 2, 4, 8]))
    sizes = [size for size in (1, 2, 4, 8) if size <= per_node]
    rows = data.draw(st.lists(st.tuples(st.sampled_from(sizes), st.integers(1, 9)), max_size=6))
    used = sum(size * count for size, count in rows)
    gpus = used + data.draw(st.integers(0, 20))
    allocation = [
        {"workload": "w", "config": str(at), "replicas": count, "gpus": size * count}
        for at, (size, count) in enumerate(rows)
    ]
    found = nodes(allocation, gpus, per_node)
    assert sum(count * node.gpus for count, node in found) == gpus
    placed = {}
    for count, node in found:
        taken = [gpu for b in node.blocks for gpu in range(b.first, b.first + b.gpus)]
        assert len(taken) == len(set(taken))
        assert set(taken) <= set(range(node.gpus))
        for block in node.blocks:
            key = (int(block.config), block.gpus)
            placed[key] = placed.get(key, 0) + count
    assert placed == {(at, size): count for at, (size, count) in enumerate(rows)}


@pytest.mark.parametrize("live", [False, True])
def test_only_the_pages_own_style_and_script_may_act(live):
    found = Reader(page("t", "w", [section("a", "A")], live=live))
    (policy,) = (a["content"] for t, a in found.tags
                 if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")  # fmt: skip
    text = page("t", "w", [section("a", "A")], live=live)
    for tag in ("style", "script"):
        (body,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert ("connect-src 'self'" in policy) == live
    assert "unsafe" not in policy


def luminance(colour):
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1, 2], ids=["light", "dark", "print"])
def test_text_and_marks_contrast_as_wcag_aa_asks(theme):
    css = files("fleetsieve.report").joinpath("style.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", blocks[theme]))
    text = [("ink", "page"), ("ink", "raised"), ("faint", "page"), ("faint", "raised"),
            ("link", "page"), ("good", "page"), ("good", "good-soft"), ("bad", "page"),
            ("warn", "warn-soft"), *(("ink", f"w{at}") for at in range(8))]  # fmt: skip
    for front, back in text:
        assert contrast(colours[front], colours[back]) >= 4.5, (front, back)
    for front in ("good", "bad", "blue", "grey"):
        assert contrast(colours[front], colours["page"]) >= 3, front


def run(order, oracle, certificate, *, certified=True, valid: bool | None = True):
    return {
        "order": order, "gpu_seconds_to_oracle": oracle, "gpu_seconds_to_certificate": certificate,
        "measurements": 3, "certified": certified, "valid": valid, "regret": 0.25, "violations": 0,
        "allocation": [],
    }  # fmt: skip


def saving(mean):
    return {"mean": mean, "ci95": [mean - 0.1, mean + 0.1], "ratio": mean}


REPLAY = {
    "schema": "fleetsieve.replay/1",
    "cells": 12,
    "grid_gpu_seconds": 1000.0,
    "tolerance": 0.02,
    "oracle": {
        "value": 0.75,
        "allocation": [{"workload": "<b>w</b>", "config": "c", "replicas": 2}],
    },
    "policies": {
        "sieve": {"runs": [run(0, 100.0, 200.0), run(1, 300.0, 400.0, valid=False)]},
        "<script>x</script>": {"runs": [run(0, None, None, certified=False, valid=None)]},
    },
    "savings": {
        "sieve_vs_<script>x</script>": {"to_oracle": saving(0.8), "to_certificate": saving(0.7)}
    },
}


def test_a_replay_shows_costs_savings_and_validity(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(REPLAY))
    found = Reader(replay_page(path))
    assert [tag for tag, _ in found.tags].count("script") == 1
    for text in (
        "1 of 2 certificates wrong",
        "sieve certified at 30 % of the cost of measuring everything.",
        "sieve: 300",  # (200 + 400) / 2
        "sieve: 200",  # (100 + 300) / 2
        "<script>x</script>: 1,000",  # it never got there, and pays for the grid
        "60 % to 80 %",
        "70 % to 90 %",
        "sieve over <script>x</script>",
        "<b>w</b>",
    ):
        assert text in found.text


NEVER = run(0, None, None, certified=False, valid=None)
ONCE = run(1, 300.0, 400.0)


@pytest.mark.parametrize(
    ("runs", "state", "statement"),
    [
        ([NEVER, NEVER], "! No certificate to judge", "sieve certified nothing in 2 orders."),
        ([NEVER, ONCE], "0 of 1 certificate wrong", "in 1 of 2 orders, at 40 % of the cost"),
        ([ONCE, ONCE], "0 of 2 certificates wrong", "sieve certified at 40 % of the cost"),
    ],
)
def test_only_certificates_that_were_reached_are_spoken_of(tmp_path, runs, state, statement):
    path = tmp_path / "r.json"
    path.write_text(changed(policies={"sieve": {"runs": runs}}, savings={}))
    found = Reader(replay_page(path))
    assert state in found.text
    assert statement in found.text
    states = [attrs["class"] for _, attrs in found.tags if attrs.get("class", "")[:6] == "state "]
    assert states == ["state unsure" if runs == [NEVER, NEVER] else "state sure"]


def test_the_command_makes_a_replays_page(tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(REPLAY))
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out == replay_page(path)


def changed(**parts):
    return json.dumps({**REPLAY, **parts})


WRONG = {
    "no JSON": "{",
    "a list": "[]",
    "a text": '"fleetsieve.replay/1"',
    "deep": "[" * 100_000,
    "a decision": '{"schema": "fleetsieve.decision/1"}',
    "a part is missing": '{"schema": "fleetsieve.replay/1"}',
    "another type": changed(policies=[]),
    "NaN": changed(grid_gpu_seconds=math.nan),
    "infinite": changed().replace("1000.0", "1e999"),
    "negative": changed(grid_gpu_seconds=-1.0),
    "negative cost": changed(policies={"a": {"runs": [run(0, -1.0, 1.0)]}}),
    "a huge integer": changed(cells=10**400),
    "a huge number": changed(tolerance=1e300),
    "a huge integer for a float": changed(grid_gpu_seconds=10**400),
    "text for a number": changed(tolerance="<script>\n"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_replay_is_refused_in_one_sentence(tmp_path, what):
    path = tmp_path / "r.json"
    path.write_text(WRONG[what])
    with pytest.raises(InputError) as caught:
        replay_page(path)
    assert re.fullmatch(rf"{re.escape(str(path))}[^\n]+; [^\n]+", str(caught.value))


def test_a_replay_in_which_nothing_ran_is_shown(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(changed(policies={"sieve": {"runs": []}}, savings={}, grid_gpu_seconds=0.0))
    assert "No policy has run." in Reader(replay_page(path)).text
