"""What people read: it fits 80 columns, says what the JSON says, and obeys no file."""

import copy
import io

import pytest
from rich.console import Console

from fleetsieve import reports, show
from fleetsieve.cell import Cell
from fleetsieve.live import Display, line
from fleetsieve.run import Progress
from fleetsieve_measure import Failed, Measured

UNITS: show.Units = {"chat": "rate", "batch": "concurrency", "code": "rate"}
ENDS = {"conservative": 0.6, "expected": 0.606, "optimistic": 0.612}
DECISION = {
    "schema": "fleetsieve.decision/1",
    "objective": "max-min",
    "gap": 0.012,
    "tolerance": 0.02,
    "confidence": 0.95,
    "certified": True,
    "stop_reason": "gap",
    "measurements": 37,
    "gpu_seconds": 22200.0,
    "gpus": 16,
    "gpus_used": 14,
    "value": ENDS,
    "workloads": [
        {"name": "chat", "demand": 12.0, "feasible": True, "fulfillment": ENDS, "served": ENDS},
        {"name": "batch", "demand": 3.25, "feasible": True, "fulfillment": ENDS, "served": ENDS},
        {"name": "code", "demand": 1.0, "feasible": False, "fulfillment": ENDS, "served": ENDS},
    ],
    "allocation": [
        {
            "workload": "chat",
            "config": config,
            "replicas": replicas,
            "gpus": 6,
            "load": 2.6,
            "measured": True,
            "capacity": {"lower": 2.4, "mean": 2.47, "upper": 2.5},
        }
        for config, replicas in (("tp4", 3), ("tp2", 1))
    ]
    + [
        {
            "workload": "batch",
            "config": "tp2",
            "replicas": 1,
            "gpus": 2,
            "load": 64.0,
            "measured": True,
            "capacity": {"lower": 5.0, "mean": 5.0, "upper": 5.0},
        }
    ],
    "within_noise": [{"workload": "chat", "config": "tp8", "load": 4.0}],
    "next": [
        {
            "workload": "chat",
            "config": "tp2",
            "load": 3.0,
            "gpu_seconds": 600.0,
            "expected_gap_reduction": 0.004,
            "score": 7e-06,
        }
    ],
    "runner_up": {
        "value": {"conservative": 0.55, "optimistic": 0.7},
        "allocation": [{"workload": "chat", "config": "tp8", "replicas": 2, "gpus": 16}],
    },
    "unmeasured": {
        "cells": 18,
        "gpu_seconds": 5400.0,
        "columns": [
            {
                "workload": "chat",
                "config": config,
                "cells": 9,
                "capacity_upper": 3.0,
                "could_add": gain,
            }
            for config, gain in (("tp1", 0.0031), ("tp8", 0.0002))
        ],
    },
    "infeasible": [
        {
            "workload": "code",
            "config": "tp8",
            "load": 0.5,
            "metric": "e2e_p99",
            "value": 46.4,
            "limit": 30.0,
        }
    ],
    "non_monotone": [{"workload": "batch", "config": "tp4", "load": 16.0}],
    "unusable": {"tp16": "a replica takes 16 GPUs and a node has 8"},
    "notes": ["g.csv: not used are workloads old"],
}


def shown(found, width=80):
    out = io.StringIO()
    console = Console(file=out, width=width, markup=False, highlight=False, emoji=False)
    show.decision(console, found, UNITS, 205500.0)
    return out.getvalue()


def flat(text):
    return " ".join(text.split())


def changed(**values):
    return {**copy.deepcopy(DECISION), **values}


def test_the_headline_says_what_is_certain_and_what_it_cost():
    assert flat(shown(DECISION)).startswith(
        "Certified at 95 % confidence: the worst-served workload gets 60.0–61.2 % of its demand; "
        "gap 0.012, tolerance 0.02; 22,200 GPU-seconds (10.8 % of measuring all)."
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("budget", "(the budget is spent)"),
        ("exhausted", "(every cell is measured)"),
        ("infeasible", "(no config can serve what is asked)"),
        ("within_noise", "(cells lie within noise of their SLOs)"),
        ("interrupted", "(interrupted)"),
        (None, ""),
    ],
)
def test_without_a_certificate_the_reason_and_the_next_cells_are_named(reason, words):
    text = flat(shown(changed(certified=False, stop_reason=reason, confidence=0.9)))
    assert text.startswith(f"Not certified {words}".strip() + ":")
    assert "Measure next: chat on tp2 at 3 req/s, 600 GPU-seconds" in text
    assert "Measure next" not in shown(DECISION)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("aggregate", "60.0–61.2 % of the demanded requests are served;"),
        ("weighted", "60.0–61.2 % of the demanded requests are served, by weight;"),
    ],
)
def test_the_headline_names_what_the_value_is(objective, words):
    assert words in flat(shown(changed(objective=objective)))


def test_the_table_says_who_gets_what_with_units():
    rows = [flat(row) for row in shown(DECISION).splitlines()]
    assert "chat tp4 × 3 6 2.6 req/s 2.4–2.5 12 60.0–61.2 %" in rows
    assert "tp2 × 1 6 2.6 req/s 2.4–2.5" in rows, "a second config repeats no workload"
    assert "batch tp2 × 1 2 64 open 5 3.25 60.0–61.2 %" in rows
    assert "code nothing 0 1 infeasible" in rows
    assert "14 of 16 GPUs used." in rows


def test_everything_a_reader_should_know_is_one_sentence_each():
    text = flat(shown(DECISION))
    unmeasured = (
        "18 cells of 2 workload-config pairs never measured, 5,400 GPU-seconds saved: no pair "
        "alone could add more than 0.0031 at its upper bound."
    )
    infeasible = (
        "Infeasible: no config serves code; closest is code on tp8 at 0.5 req/s, with e2e_p99 "
        "46.4 s over the limit of 30 s."
    )
    non_monotone = (
        "Not monotone: batch on tp4 at 16 open holds its SLOs and a lower load does not; it does "
        "not count."
    )
    assert "Runner-up, 55.0–70.0 %: chat: tp8 × 2." in text
    assert unmeasured in text
    assert infeasible in text
    assert "Within noise of its SLO: chat on tp8 at 4 req/s." in text
    assert non_monotone in text
    assert "Unusable: config tp16, as a replica takes 16 GPUs and a node has 8." in text
    assert "Note: g.csv: not used are workloads old" in text


def test_a_workload_of_which_no_cell_kept_up_is_said_to_have_none():
    miss = {**DECISION["infeasible"][0], "value": None}
    text = flat(shown(changed(infeasible=[miss])))
    assert "no config serves code; code on tp8 at 0.5 req/s never kept up." in text


def test_what_is_absent_is_not_mentioned():
    text = shown(
        changed(runner_up=None, infeasible=[], within_noise=[], non_monotone=[], unusable={},
                notes=[], unmeasured={"cells": 0, "gpu_seconds": 0.0, "columns": []})
    )  # fmt: skip
    assert text.splitlines()[-1] == "14 of 16 GPUs used."


def test_it_fits_80_columns_whatever_the_names_are():
    found = changed()
    found["workloads"][0]["name"] = found["allocation"][0]["workload"] = "chat-" * 20
    found["allocation"][0]["config"] = "tensor-parallel-" * 5
    found["unusable"] = {"x" * 200: "y"}
    assert max(map(len, shown(found).splitlines())) <= 80
    assert max(map(len, shown(DECISION).splitlines())) <= 80


def test_markup_and_control_characters_of_a_file_are_only_text():
    found = changed(notes=["[bold red]x[/] :smile: \x1b[2J\n\r\x07"])
    found["allocation"][0]["config"] = "[link=http://x]a[/link]"
    text = shown(found, width=120)
    assert r"[bold red]x[/] :smile: \x1b[2J\n\r\x07" in text
    assert "[link=http://x]a[/link] × 3" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12.0, "12"), (33.659, "33.66"), (0.0031, "0.0031"), (1234567.8, "1234568"),
     (7e-06, "7.0e-06"), (float("inf"), "inf")],
)  # fmt: skip
def test_numbers_are_short(value, text):
    assert show.number(value) == text


def progress(n, **values):
    cell = Cell("chat", "tp2", 4.0, "rate")
    outcome = Measured(values={"throughput": 3.5}, gpu_seconds=600.0)
    defaults = {
        "measurements": n,
        "last": (cell, outcome) if n else None,
        "measuring": (cell,),
        "gpu_seconds": 600.0 * n,
        "limit": 54000.0,
        "gap": 0.31,
        "value": (0.45, 0.76),
    }
    return Progress(**{**defaults, **values})


def display(is_terminal, clock):
    out = io.StringIO()
    console = Console(
        file=out, width=80, force_terminal=is_terminal, markup=False, highlight=False, emoji=False
    )
    return out, Display(console, clock)


def test_without_a_terminal_there_is_one_plain_line_per_measurement():
    out, shows = display(False, lambda: 0.0)
    with shows:
        for step in (progress(0), progress(1), progress(1), progress(2)):
            shows(step)
    title, *lines = out.getvalue().splitlines()
    assert title.split() == ["step", "measured", "result", "GPU-s", "gap", "value"]
    first = "1 chat on tp2 at 4 req/s ok 600/54000 0.310 0.450–0.760"
    assert [flat(text) for text in lines] == [
        first,
        first.replace("1 chat", "2 chat").replace("600/", "1200/"),
    ]
    assert "\x1b" not in out.getvalue()


def test_a_line_fits_80_columns_and_names_a_failure():
    cell = Cell("chat-" * 20, "c", 4.0, "rate")
    oom = Failed(kind="unhealthy", gpu_seconds=1.0)
    text = line(progress(1, last=(cell, oom), gpu_seconds=1e6, limit=9e6))
    assert "unhealthy" in text
    assert len(text) <= 80


def test_a_terminal_shows_what_is_measured_and_how_long_it_takes_at_most():
    now = iter([0.0, 60.0, 60.0])
    out, shows = display(True, lambda: next(now))
    with shows:
        shows(progress(0))
        shows(progress(30, measuring=progress(0).measuring * 3))
    text = out.getvalue()
    assert "measuring chat on tp2 at 4 req/s" in text
    # 18,000 of 54,000 GPU-seconds took one minute.
    assert "measuring chat on tp2 at 4 req/s and 2 more, at most 2:00 left" in text


def test_a_price_says_what_the_rest_costs_at_most():
    now = iter([0.0, 60.0, 60.0])
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, highlight=False)
    with Display(console, lambda: next(now), price=lambda gpu_seconds: gpu_seconds / 100) as shows:
        shows(progress(0))
        shows(progress(30))
    # 36,000 of 54,000 GPU-seconds are left, a cent each.
    assert ", at most 2:00 and 360.00 left" in out.getvalue()


def test_a_resumed_run_counts_only_its_own_measurements():
    out, shows = display(False, lambda: 0.0)
    with shows:
        shows(progress(7, last=None))
        shows(progress(8))
    assert len(out.getvalue().splitlines()) == 2


REPLAY = {
    "schema": "fleetsieve.replay/1",
    "cells": 180,
    "grid_gpu_seconds": 1000.0,
    "tolerance": 0.02,
    "oracle": {"value": 0.769, "allocation": []},
    "policies": {
        name: {
            "runs": [
                {
                    "order": order,
                    "gpu_seconds_to_oracle": oracle,
                    "gpu_seconds_to_certificate": certificate,
                    "measurements": 25,
                    "certified": certificate is not None,
                    "valid": valid,
                    "regret": 0.0,
                    "violations": 0,
                    "allocation": [],
                }
                for order, (oracle, certificate, valid) in enumerate(runs)
            ]
        }
        for name, runs in {
            "sieve": [(100.0, 200.0, True), (300.0, 400.0, False)],
            "random": [(500.0, None, None), (None, 600.0, True)],
        }.items()
    },
    "savings": {
        "sieve_vs_random": {
            key: {"mean": 0.6, "ci95": [0.58, 0.62], "ratio": 0.61}
            for key in ("to_oracle", "to_certificate")
        }
    },
}


def test_a_replay_is_a_row_per_policy_where_what_never_happened_costs_the_grid():
    out = io.StringIO()
    reports.replay(Console(file=out, width=80, markup=False, highlight=False), REPLAY)
    rows = [flat(row) for row in out.getvalue().splitlines()]
    assert "sieve 200 300 2/2 1" in rows
    assert "random 750 800 1/2 0" in rows
    assert "sieve saves over random: 60 % (95 % CI 58 % to 62 %) to the oracle" in flat(
        out.getvalue()
    )
    assert max(map(len, out.getvalue().splitlines())) <= 80
