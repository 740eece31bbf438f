"""Reports of studies: every figure is that of the decision or of the journal."""

import contextlib
import csv
import io
import json
import math
import re
import sqlite3
from html.parser import HTMLParser

import pytest

from fleetsieve.cell import Cell
from fleetsieve.cli import main
from fleetsieve.events import Asked, Told
from fleetsieve.fleet import Fleet
from fleetsieve.report.of_study import study_page
from fleetsieve.study import Study
from fleetsieve_measure import Failed, Measured

VOID = {"meta", "br", "img", "link", "input", "hr"}
PLAIN = (["chat", "code"], ["tp1", "tp2"])
HOSTILE = (
    ["<script>alert(1)</script>", "שלום עולם"],
    ["\"'><img src=x onerror=alert(1)>", "</svg></style>" + "x" * 300],
)
LOADS = (1, 2, 4)


class Page(HTMLParser):
    """The elements of a page as (tag, attributes, text of all within), and whether all close."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        made = {"tag": tag, "text": "", "own": "", "rows": [], **dict(attrs)}
        made["inside"] = [one["tag"] for one in self.open]
        made["parents"] = list(self.open)
        self.elements.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for one in self.open:
            one["text"] += data
        if self.open:
            self.open[-1]["own"] += data

    def all(self, tag, **wanted):
        return [
            one
            for one in self.elements
            if one["tag"] == tag and all(one.get(key) == value for key, value in wanted.items())
        ]

    def within(self, parent, tag):
        return [one for one in self.all(tag) if any(p is parent for p in one["parents"])]

    def table(self, caption):
        """Rows of texts of the table under a caption, without its head."""
        found = [t for t in self.all("table") if self.within(t, "caption")[0]["text"] == caption]
        assert len(found) == 1, caption
        body = self.within(found[0], "tbody")[0]
        return [
            [cell["text"].strip() for cell in self.elements
             if cell["tag"] in ("th", "td") and any(p is row for p in cell["parents"])]
            for row in self.within(body, "tr")
        ]  # fmt: skip


def throughput(config, load):
    return 2.5 if config == 0 and load == 4 else load


def latency(workload, config, load):
    """Seconds that break 10 s on the first config at 4 requests/s."""
    return (1 + workload) * 2.0 * load / (1 + config) + (6 if config == 0 and load == 4 else 0)


def make(folder, workloads, configs):
    """A fleet, a grid and the study of a run; the fleet's file, the study and the decision."""
    fleet = {
        "fleet": {"gpus": 8, "gpus_per_node": 8},
        "decision": {"tolerance": 0.02},
        "configs": [
            {"name": name, "gpus": 1 + at, "features": {"tp": 1 + at}}
            for at, name in enumerate(configs)
        ],
        "workloads": [
            {"name": name, "demand": 9 + at, "slo": {"e2e_p99": 10}}
            for at, name in enumerate(workloads)
        ],
    }
    (folder / "f.yaml").write_text(json.dumps(fleet))
    with (folder / "g.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            ["workload", "config", "gpus", "tp", "rate", "throughput", "e2e_p99", "gpu_seconds",
             "status"]
        )  # fmt: skip
        for w, workload in enumerate(workloads):
            for c, config in enumerate(configs):
                for load in LOADS:
                    values = (throughput(c, load), latency(w, c, load), 100 * (1 + c), "ok")
                    rows.writerow([workload, config, 1 + c, 1 + c, load, *values])
    study = folder / "s.study.db"
    argv = ["run", str(folder / "f.yaml"), "--grid", str(folder / "g.csv"), "--study", str(study)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*argv, "--json", "-"]) in (0, 3)
    return fleet, study, json.loads(out.getvalue())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    fleet, study, decision = make(tmp_path_factory.mktemp("plain"), *PLAIN)
    return fleet, study, decision, Page(study_page(study))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    _, study, _ = make(tmp_path_factory.mktemp("hostile"), *HOSTILE)
    text = study_page(study)
    return text, Page(text)


def numbers(text):
    """The numbers of a text, a range as two, thousands without commas."""
    return [float(n) for n in re.findall(r"\d+(?:\.\d+)?(?:e[-+]\d+)?", text.replace(",", ""))]


def close(text, *values):
    """Whether a text shows these values, each to the digits that a reader sees."""
    shown = numbers(text)
    if len(shown) < len(values):  # both ends read the same
        shown = shown * len(values)
    pairs = zip(shown[: len(values)], values, strict=True)
    return all(math.isclose(s, v, rel_tol=6e-3, abs_tol=6e-3) for s, v in pairs)


def test_the_decision_is_first_and_says_what_the_decision_says(plain):
    _, _, decision, page = plain
    first = page.all("section")[0]
    assert first["id"] == "decision"
    assert "✓ Certified at 95 % confidence" in first["text"]
    low, high = (100 * decision["value"][end] for end in ("conservative", "optimistic"))
    statement = page.all("p", **{"class": "statement"})[0]["text"]
    assert statement.startswith("The worst-served workload gets ")
    assert close(statement, *({low, high} if low == high else (low, high)))
    figures = [one["text"] for one in page.within(first, "dd")]
    assert close(figures[1], 100 * decision["gap"])
    assert close(figures[2], decision["gpus_used"], decision["gpus"])
    assert close(figures[3], decision["gpu_seconds"])


def test_each_workload_is_shown_with_what_it_is_served(plain):
    _, _, decision, page = plain
    rows = page.table("Demand served by workload")
    assert [row[0][2:] for row in rows] == [w["name"] for w in decision["workloads"]]
    for row, workload in zip(rows, decision["workloads"], strict=True):
        share, served = workload["fulfillment"], workload["served"]
        assert close(row[2], 100 * share["conservative"], 100 * share["optimistic"])
        assert close(row[3], served["conservative"], served["optimistic"])
        assert close(row[4], workload["demand"])


def test_the_allocation_is_the_decisions(plain):
    _, _, decision, page = plain
    rows = page.table("Replicas by workload and config")
    assert len(rows) == len(decision["allocation"])
    for row, one in zip(rows, decision["allocation"], strict=True):
        assert (row[0][2:], row[1]) == (one["workload"], one["config"])
        assert row[2] == f"× {one['replicas']}"
        assert close(row[3], one["gpus"])
        assert close(row[4], one["load"])
        assert close(row[5], one["capacity"]["lower"], one["capacity"]["upper"])


def test_the_picture_of_nodes_has_every_replica(plain):
    _, _, decision, page = plain
    drawn = [one["text"] for one in page.all("g", **{"class": "block"})]
    for one in decision["allocation"]:
        words = f"{one['workload']} on {one['config']}, "
        assert sum(words in text for text in drawn) == one["replicas"]


def test_gpu_seconds_are_those_of_the_journal(plain):
    _, study, decision, page = plain
    spent = {}
    with contextlib.closing(sqlite3.connect(study)) as database:
        for cell, payload in database.execute(
            "SELECT cell, payload FROM journal WHERE kind = 'told'"
        ):
            key = tuple(json.loads(cell)[:2])
            spent[key] = spent.get(key, 0) + json.loads(payload)["gpu_seconds"]
    rows = page.table("GPU-seconds by workload and config")
    assert {(row[0], row[1]): numbers(row[3])[0] for row in rows} == spent
    assert sum(spent.values()) == decision["gpu_seconds"]


def test_unmeasured_pairs_are_the_decisions(plain):
    _, _, decision, page = plain
    rest = decision["unmeasured"]
    rows = page.table("Pairs with loads that were never measured")
    shown = {(row[0], row[1]): row[2:] for row in rows}
    assert len(shown) == len(rest["columns"])
    for column in rest["columns"]:
        cells, upper, could = shown[column["workload"], column["config"]]
        assert int(cells) == column["cells"]
        assert close(upper, column["capacity_upper"])
        assert close(could, 100 * column["could_add"])


def test_every_measured_point_lies_where_the_axes_say(plain):
    _, study, _, page = plain
    seen = 0
    with (study.parent / "g.csv").open() as file:
        grid = {(r["workload"], r["config"], float(r["rate"])): r for r in csv.DictReader(file)}
    for card in page.all("article"):
        workload = next(p for p in card["parents"] if p.get("class") == "workload")["data-workload"]
        config = page.within(card, "bdi")[0]["text"]
        svg = next(one for one in page.within(card, "svg") if one.get("class") == "chart")
        panels = [g for g in page.within(svg, "g") if g["parents"][-1] is svg and "class" not in g]
        loads = axis(page, next(g for g in page.within(svg, "g") if g["parents"][-1] is svg
                                and g.get("class") == "axis"), "x", log=True)  # fmt: skip
        for panel, output in zip(panels, ("throughput", "e2e_p99"), strict=True):
            value = axis(page, next(g for g in page.within(panel, "g") if g.get("class") == "axis"),
                         "y", log=output != "throughput")  # fmt: skip
            for mark in page.within(panel, "g"):
                shapes = [p["class"] for p in page.within(mark, "path")]
                if mark.get("class") != "mark" or shapes == ["open"]:
                    continue
                target = page.within(mark, "circle")[0]
                load = min(LOADS, key=lambda x: abs(x - loads(float(target["cx"]))))
                assert math.isclose(loads(float(target["cx"])), load, rel_tol=0.02)
                truth = float(grid[workload, config, load][output])
                assert math.isclose(value(float(target["cy"])), truth, rel_tol=0.05, abs_tol=0.05)
                assert shapes == ["held" if latency_of(grid, workload, config, load) <= 10
                                  else "broke"]  # fmt: skip
                seen += 1
    assert seen >= 2 * 4


def latency_of(grid, *cell):
    return float(grid[cell]["e2e_p99"])


def axis(page, group, letter, *, log):
    """From places to values, by the first and the last tick of an axis and their texts."""
    ticks = [(float(t[letter]) - (4 if letter == "y" else 0), numbers(t["text"])[0])
             for t in page.within(group, "text")]  # fmt: skip
    (a, low), (b, high) = ticks[0], ticks[-1]
    if log:
        low, high = math.log(low), math.log(high)

    def value(place):
        found = low + (place - a) / (b - a) * (high - low)
        return math.exp(found) if log else found

    return value


def test_the_gap_after_each_measurement_is_what_an_api_user_sees(plain):
    fleet, study, decision, page = plain
    rows = page.table("The gap after each measurement")
    assert len(rows) == decision["measurements"] + 1
    assert close(rows[-1][2], 100 * decision["value"]["conservative"])
    assert close(rows[-1][3], 100 * decision["value"]["optimistic"])
    from fleetsieve import Grid, Sieve

    with Study.open_read_only(study) as file:
        events = file.events()
    told = [at for at, event in enumerate(events) if isinstance(event, Told)]
    for count in (0, len(told) // 2):
        sieve = Sieve(Fleet.parse(fleet), grid=Grid.read(study.parent / "g.csv"),
                      events=events[: told[count - 1] + 1 if count else 0])  # fmt: skip
        assert close(rows[count][2], 100 * sieve.value[0])
        assert close(rows[count][3], 100 * sieve.value[1])
        assert close(rows[count][4], 100 * sieve.gap)


def test_a_study_without_records_of_its_gap_is_computed_again(plain, tmp_path):
    _, study, _, page = plain
    other = tmp_path / "s.study.db"
    with contextlib.closing(sqlite3.connect(study)) as old:
        old.execute(f"VACUUM INTO '{other}'")
    with contextlib.closing(sqlite3.connect(other)) as new:
        new.execute("DROP TABLE standings")
        new.commit()
    again = Page(study_page(other, study.parent / "g.csv"))
    caption = "The gap after each measurement"
    assert again.table(caption) == page.table(caption)


def test_before_the_first_measurement_no_chart_pretends_to_know(plain, tmp_path):
    path = tmp_path / "s.study.db"
    fleet = Fleet.parse(plain[0])
    with Study.open(path, fleet, 0, plain[1].parent / "g.csv"):
        pass
    page = Page(study_page(path))
    curves = next(one for one in page.all("section") if one["id"] == "curves")
    assert "Nothing has been measured yet" in curves["text"]
    assert not page.within(curves, "svg")


def test_a_gap_of_another_question_is_not_shown(plain, tmp_path):
    fleet, study, _, _ = plain
    other = tmp_path / "s.study.db"
    with contextlib.closing(sqlite3.connect(study)) as old:
        old.execute(f"VACUUM INTO '{other}'")
    fleet = {**fleet, "fleet": {"gpus": 4, "gpus_per_node": 8}}
    with Study.open(other, Fleet.parse(fleet), None, study.parent / "g.csv") as file:
        assert file.standings() == []


def test_hostile_names_are_text_and_nothing_else(hostile):
    _, page = hostile
    assert [one["tag"] for one in page.elements].count("script") == 1
    assert not page.all("img")
    assert not [key for one in page.elements for key in one if key.startswith("on")]
    shown = [one["text"] for one in page.all("bdi")]
    for name in (*HOSTILE[0], *HOSTILE[1]):
        assert name in shown
    assert "alert(1)" not in page.all("script")[0]["text"]


@pytest.mark.parametrize("which", ["plain", "hostile"])
def test_a_page_asks_nothing_of_the_network_and_its_links_lead_somewhere(which, request):
    page = request.getfixturevalue(which)[-1]
    ids = [one["id"] for one in page.elements if "id" in one]
    assert len(ids) == len(set(ids))
    for one in page.elements:
        assert not {"src", "srcset", "action", "style", "background"} & set(one)
        if "href" in one:
            assert one["href"][1:] in ids
        if "aria-labelledby" in one:
            assert one["aria-labelledby"] in ids
    assert not re.search(r"url\(|@import|https?:", page.all("style")[0]["text"])
    assert all(svg.get("aria-hidden") or svg.get("aria-label") for svg in page.all("svg"))


LIVE = """\
fleet: {gpus: 8, price_per_gpu_hour: 3.6}
engine:
  kind: vllm
  model: https://u:HIDDEN@hub/m
  args:
    api-key: HIDDEN
    passwd: HIDDEN
    max-num-batched-tokens: 512
    kv-transfer-config: {host: h, password: HIDDEN}
    store: redis://u:HIDDEN@h:1
  env: {HF_TOKEN: HIDDEN}
  command: [run, --token, HIDDEN, --secret=HIDDEN, "vllm serve --api-key HIDDEN"]
configs: [{name: tp1, gpus: 2, features: {tp: 1}}, {name: tp2, gpus: 2, features: {tp: 2}}]
workloads:
  - {name: chat, demand: 9, slo: {e2e_p99: 10}, loads: [1, 2, 4]}
  - {name: code, demand: 9, slo: {e2e_p99: 10}, loads: [1, 2, 4]}
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """Failures, launches, repeats, and a cell that is being measured."""
    path = tmp_path_factory.mktemp("live") / "l.study.db"
    a, b, c = (Cell("chat", "tp1", load, "rate") for load in (1.0, 2.0, 4.0))
    summary = {"launch_seconds": 10.0, "kv_cache_tokens": 4321, "requests": 50, "failed": 2}
    first, again = (Measured(values={"throughput": 1.0, "e2e_p99": x}, se={"e2e_p99": 0.1},
                             gpu_seconds=50.0, summary=summary) for x in (3.0, 3.2))  # fmt: skip
    events = [
        Asked(0, a, 50.0, 0.0, 0.0),
        Told(0, a, first),
        Told(1, a, again),
        Told(2, c, Failed(kind="oom", gpu_seconds=30.0, reason="out\nof \x1b[2Jmemory")),
        Asked(3, b, 50.0, 0.0, 0.0),
    ]
    with Study.open(path, Fleet.parse(LIVE), 0) as study:
        for event in events:
            study.append(event)
    text = study_page(path)
    return text, Page(text)


def test_failures_launches_and_repeats_are_told_apart(live):
    _, page = live
    spending = next(one for one in page.all("section") if one["id"] == "spending")["text"]
    # 50 with a launch of 10 s on 2 GPUs, 50 again with one, and 30 that failed.
    for part in ("30 on first measurements", "30 on repeats", "40 on launches", "30 on benchmarks"):
        assert part in spending
    row = page.table("GPU-seconds by workload and config")[0]
    assert row[3:] == ["130", "100 %", "3 (1 repeat, 1 failed)"]
    assert (
        "oom" in page.table("chat on tp1 by load")[2][1]
        or "failed" in (page.table("chat on tp1 by load")[2][1])
    )
    assert (
        r"failed: oom: out\nof \x1b[2Jmemory"
        in next(one for one in page.all("section") if one["id"] == "log")["text"]
    )


def test_what_is_being_measured_and_the_environment_are_named(live):
    _, page = live
    decision = page.all("section")[0]["text"]
    assert "Not certified: the search has not ended" in decision
    assert "Asked for and not told yet: chat on tp1 at 2 req/s." in decision
    assert "0.13" in decision  # 130 GPU-seconds at 3.6 an hour
    environment = next(one for one in page.all("section") if one["id"] == "environment")["text"]
    for fact in ("vllm", "4,321 tokens", "100 measured, 4 of them failed", "512", "HF_TOKEN"):
        assert fact in environment


def test_secrets_are_not_shown(live):
    assert "HIDDEN" not in live[0]


def test_the_command_writes_the_page_and_refuses_in_one_sentence(plain, tmp_path, capsys):
    _, study, _, _ = plain
    out = tmp_path / "r.html"
    assert main(["report", str(study), "-o", str(out)]) == 0
    assert out.read_text().startswith("<!DOCTYPE html>")
    damaged = tmp_path / "d.study.db"
    with contextlib.closing(sqlite3.connect(study)) as whole:
        whole.execute(f"VACUUM INTO '{damaged}'")
    with contextlib.closing(sqlite3.connect(damaged)) as part, part:
        part.execute("UPDATE meta SET value = '{' WHERE key = 'fleet'")
    wrong = [
        ["report", str(damaged)],
        ["report", str(tmp_path / "none.db")],
        ["report", str(tmp_path)],
        ["report", str(out)],
        ["report", str(study), "-o", str(tmp_path / "no" / "r.html")],
        ["report", str(study), "--grid", str(tmp_path / "no.csv")],
    ]
    capsys.readouterr()
    for argv in wrong:
        assert main(argv) == 2
        text, error = capsys.readouterr()
        assert text == ""
        assert re.fullmatch(r"error: [^\n]+; [^\n]+\n", error)
