"""The report of a replay: what each policy cost, what was saved, and whether it was right."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from fleetsieve.report.drawing import Frame, label, mark, picture, short_name, x_axis
from fleetsieve.report.markup import element, name
from fleetsieve.report.page import page
from fleetsieve.report.parts import section, table
from fleetsieve.report.replayed import cost, mean, read
from fleetsieve.report.scale import Scale, thinned
from fleetsieve.report.wording import count, gpu_time
from fleetsieve.schemas import ReplayJson, Run, Saving
from fleetsieve.show import number, percent

_GOALS = {"certificate": "to the certificate", "oracle": "to the oracle's decision"}
_WIDTH, _ROW, _TOP, _BOTTOM, _EDGE = 640, 44, 8, 48, 32
# More dots than this would be one blot; the mean counts all of them.
_MOST, _LONGEST = 300, 24


def replay_page(path: Path) -> str:
    """An HTML document.

    Raises:
        InputError: the file cannot be read, or is no replay.
    """
    what = "How policies compare on a grid that is fully known"
    return page(path.name.removesuffix(".json"), what, sections(read(path)))


def sections(found: ReplayJson) -> Iterator[Element | None]:
    """The parts of the report, the outcome first."""
    ran = {name: policy.runs for name, policy in found.policies.items() if policy.runs}
    yield _outcome(found, ran)
    if ran:
        yield section("costs", "What each policy cost", *_costs(found, ran))
    if found.savings:
        yield section("savings", "What is saved", *_savings(found))
    yield _oracle(found)


def _outcome(found: ReplayJson, ran: dict[str, list[Run]]) -> Element:
    return section(
        "outcome",
        "Outcome",
        _state(ran),
        element("p", _statement(found, ran), class_="statement"),
        element(
            "p",
            f"A replay of a grid whose {count(found.cells, 'cell')} are all known; measuring all "
            f"takes {gpu_time(found.grid_gpu_seconds)}. A certificate is wrong when the allocation "
            f"loses more than the tolerance of {number(found.tolerance)} in truth.",
        ),
    )


def _state(ran: dict[str, list[Run]]) -> Element:
    """How many certificates were wrong; none at all is nothing to be sure of."""
    certified = [run for runs in ran.values() for run in runs if run.certified]
    wrong = sum(run.valid is False for run in certified)
    judged = sum(run.valid is not None for run in certified)
    if not judged:
        return element("p", "! No certificate to judge", class_="state unsure")
    sure = "state unsure" if wrong else "state sure"
    return element("p", f"{wrong} of {count(judged, 'certificate')} wrong", class_=sure)


def _statement(found: ReplayJson, ran: dict[str, list[Run]]) -> str:
    """What the first policy reached; the charts count what it did not as the whole grid."""
    if not ran:
        return "No policy has run."
    (first, runs), whole = next(iter(ran.items())), found.grid_gpu_seconds
    spent = [cost(run, "certificate", whole) for run in runs if run.certified]
    if not spent:
        return f"{first} certified nothing in {count(len(runs), 'order')}."
    some = "" if len(spent) == len(runs) else f" in {len(spent)} of {count(len(runs), 'order')},"
    if whole <= 0:
        return f"{first} certified{some} after {mean(spent):,.0f} GPU-seconds."
    share = percent(mean(spent) / whole)
    return f"{first} certified{some} at {share} of the cost of measuring everything."


def _costs(found: ReplayJson, ran: dict[str, list[Run]]) -> Iterator[Element]:
    whole = found.grid_gpu_seconds
    yield element(
        "p",
        "A dot is a run in one order, a line the mean. A run that never gets there pays for "
        "everything.",
    )
    for goal, words in _GOALS.items():
        yield element("h3", f"GPU-seconds {words}")
        yield _dots(ran, goal, words, whole)
    titles = (
        "policy", "runs", "to certificate, GPU-s", "to oracle, GPU-s", "benchmarks", "certified",
        "wrong", "worst regret", "violations",
    )  # fmt: skip
    rows = [_policy(name_, runs, whole) for name_, runs in ran.items()]
    yield table("Means over orders by policy", titles, rows)


def _policy(title: str, runs: Sequence[Run], whole: float) -> list:
    return [
        name(title),
        f"{len(runs)}",
        *(f"{mean([cost(run, goal, whole) for run in runs]):,.0f}" for goal in _GOALS),
        number(mean([run.measurements for run in runs])),
        f"{sum(run.certified for run in runs)} of {len(runs)}",
        f"{sum(run.valid is False for run in runs)}",
        number(max(run.regret for run in runs)),
        number(mean([run.violations for run in runs])),
    ]


def _dots(ran: dict[str, list[Run]], goal: str, words: str, whole: float) -> Element:
    each = {title: [cost(run, goal, whole) for run in runs] for title, runs in ran.items()}
    most = max([whole, *(value for costs in each.values() for value in costs)]) or 1.0
    x = Scale(0.0, most, _EDGE, _WIDTH - _EDGE)
    height = _TOP + _ROW * len(each)
    frame = Frame(x, Scale(0.0, 1.0, height, _TOP))
    ticks = thinned(x.ticks(6), x, 90)
    return picture(
        _WIDTH,
        height + _BOTTOM,
        f"GPU-seconds {words}",
        "; ".join(f"{title} {mean(costs):,.0f} in the mean" for title, costs in each.items()),
        x_axis(frame, ticks),
        label(_WIDTH / 2, height + _BOTTOM - 4, "GPU-seconds", anchor="middle"),
        *(
            _strip(title, ran[title], costs, x, _TOP + _ROW * at)
            for at, (title, costs) in enumerate(each.items())
        ),
        wide=True,
    )


def _strip(
    title: str, runs: Sequence[Run], costs: Sequence[float], x: Scale, top: float
) -> Element:
    middle, average = top + 30, mean(costs)
    pairs = list(zip(runs, costs, strict=True))[:_MOST]
    return element(
        "g",
        element("line", x1=x.start, x2=x.end, y1=middle, y2=middle, class_="grid"),
        label(x.start, top + 16, short_name(title, _LONGEST), f": {average:,.0f}", kind="panel"),
        [
            mark(x(value), middle, "dot", f"{title}, order {run.order}: {value:,.0f} GPU-seconds")
            for run, value in pairs
        ],
        element(
            "line", x1=x(average), x2=x(average), y1=middle - 9, y2=middle + 9, class_="mean"
        ),
    )  # fmt: skip


def _savings(found: ReplayJson) -> Iterator[Element]:
    yield element(
        "p",
        "The mean over orders of what is saved, as a share of the other policy's cost, with its "
        "95 % confidence interval (bootstrap over orders).",
    )
    for goal, words in _GOALS.items():
        each = {_versus(t): getattr(s, f"to_{goal}") for t, s in found.savings.items()}
        yield element("h3", words[0].upper() + words[1:])
        yield _intervals(each, words)
        titles = ("saving", "mean", "95 % interval", "of mean costs")
        rows = [
            (name(title), percent(one.mean), _interval(one), percent(one.ratio))
            for title, one in each.items()
        ]
        yield table(f"Savings {words}", titles, rows)


def _versus(title: str) -> str:
    return title.replace("_vs_", " over ", 1)


def _interval(one: Saving) -> str:
    return f"{percent(one.ci95[0])} to {percent(one.ci95[1])}"


def _intervals(each: dict[str, Saving], words: str) -> Element:
    ends = [end for one in each.values() for end in (one.mean, *one.ci95)]
    x = Scale(min(0.0, *ends), max(1.0, *ends), _EDGE, _WIDTH - _EDGE)
    height = _TOP + _ROW * len(each)
    frame = Frame(x, Scale(0.0, 1.0, height, _TOP))
    ticks = thinned(x.ticks(5), x, 90)
    return picture(
        _WIDTH,
        height + 24,
        f"Savings {words}",
        "; ".join(f"{title} {percent(one.mean)}, {_interval(one)}" for title, one in each.items()),
        x_axis(frame, ticks, [percent(tick) for tick in ticks]),
        *(_whisker(t, one, x, _TOP + _ROW * at) for at, (t, one) in enumerate(each.items())),
        wide=True,
    )


def _whisker(title: str, one: Saving, x: Scale, top: float) -> Element:
    middle, (low, high) = top + 30, one.ci95
    tip = f"{title}: {percent(one.mean)}, 95 % interval {_interval(one)}"
    return element(
        "g",
        element("line", x1=x.start, x2=x.end, y1=middle, y2=middle, class_="grid"),
        label(
            x.start, top + 16, short_name(title, _LONGEST), f": {percent(one.mean)}", kind="panel"
        ),
        element("line", x1=x(low), x2=x(high), y1=middle, y2=middle, class_="range"),
        mark(x(one.mean), middle, "held", tip),
    )


def _oracle(found: ReplayJson) -> Element:
    rows = [
        (name(row.workload), name(row.config), f"× {row.replicas:,}")
        for row in found.oracle.allocation
    ]
    return section(
        "oracle",
        "What the oracle would run",
        element("p", f"With all outcomes known, the best value is {number(found.oracle.value)}."),
        table("The oracle's allocation", ("workload", "config", "replicas"), rows, left=2),
    )
