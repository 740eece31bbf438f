"""The first thing to read: what to do, how sure that is, and what it cost to know."""

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from fleetsieve.report.findings import Findings
from fleetsieve.report.markup import element
from fleetsieve.report.parts import section
from fleetsieve.report.wording import HOUR, count, hours, points
from fleetsieve.show import OBJECTIVES, REASONS, percent, percent_range, where

_MOST = 5


def verdict(found: Findings) -> Element:
    """The decision and its certainty."""
    decision = found.decision
    certified = decision["certified"]
    value = percent_range(decision["value"]["conservative"], decision["value"]["optimistic"])
    sentence = OBJECTIVES[decision["objective"]].format(value)
    return section(
        "decision",
        "Decision",
        element("p", _state(found), class_="state sure" if certified else "state unsure"),
        element("p", f"{sentence[0].upper()}{sentence[1:]}.", class_="statement"),
        element("p", _certainty(found)),
        element("p", *_pending(found)) if found.pending else None,
        element("dl", *_figures(found), class_="figures"),
    )


def _state(found: Findings) -> str:
    decision = found.decision
    if decision["certified"]:
        return f"✓ Certified at {percent(decision['confidence'])} confidence"
    reason = REASONS.get(decision["stop_reason"], "the search has not ended")
    return f"! Not certified: {reason}"


def _certainty(found: Findings) -> str:
    decision = found.decision
    gap, tolerance = points(decision["gap"]), points(decision["tolerance"])
    others = f"no other use of the {count(decision['gpus'], 'GPU')} raises that by more than"
    sure = f"With {percent(decision['confidence'])} confidence,"
    if not decision["certified"]:
        return (
            "The allocation below is the best that the measurements support so far. Another one "
            f"may be better by up to {gap}; the tolerance is {tolerance}."
        )
    if decision["stop_reason"] == "regret":
        return (
            f"{sure} {others} {tolerance}, by joint draws of what it may lose; the bounds alone "
            f"leave {gap} open."
        )
    return f"{sure} {others} {gap}; the tolerance is {tolerance}."


def _pending(found: Findings) -> Iterator[str]:
    cells = [where(cell) for cell in found.pending[:_MOST]]
    more = f" and {len(found.pending) - _MOST} more" if len(found.pending) > _MOST else ""
    yield f"Asked for and not told yet: {', '.join(cells)}{more}."


def _figures(found: Findings) -> Iterator[Element]:
    decision = found.decision
    low, high = (decision["value"][end] for end in ("conservative", "optimistic"))
    yield _figure("certain value", percent_range(low, low), f"at most {percent_range(high, high)}")
    yield _figure("gap", points(decision["gap"]), f"tolerance {points(decision['tolerance'])}")
    yield _figure("GPUs", f"{decision['gpus_used']:,} of {decision['gpus']:,}", "used")
    spent = decision["gpu_seconds"]
    share = f"{percent(spent / found.exhaustive)} of all" if found.exhaustive > 0 else ""
    yield _figure(
        count(decision["measurements"], "benchmark"),
        f"{spent:,.0f} GPU-seconds",
        ", ".join(filter(None, (hours(spent) if spent >= HOUR else "", share))),
    )
    if decision.get("price") is not None:
        yield _figure("their price", f"{decision['price']:,.2f}", "by the fleet file")


def _figure(title: str, value: str, more: str) -> Element:
    return element(
        "div",
        element("dt", title),
        element("dd", element("strong", value), " ", element("span", more)),
    )
