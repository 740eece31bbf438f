"""A decision as text for a terminal of 80 columns."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

from fleetsieve.cell import Cell, LoadKind

Units = Mapping[str, LoadKind]
"""What the loads of each workload are."""
UNITS = {"rate": "req/s", "concurrency": "open"}
OBJECTIVES = {
    "max-min": "the worst-served workload gets {} of its demand",
    "aggregate": "{} of the demanded requests are served",
    "weighted": "{} of the demanded requests are served, by weight",
}
REASONS = {
    "budget": "the budget is spent",
    "exhausted": "every cell is measured",
    "infeasible": "no config can serve what is asked",
    "within_noise": "cells lie within noise of their SLOs",
    "interrupted": "interrupted",
}
_MOST_NEXT = 5


def console(stream: Literal["stdout", "stderr"], quiet: bool = False) -> Console:
    """A console on which text from files is text: no markup, no highlighting, no emoji codes.

    `quiet`: it shows nothing.
    """
    file = getattr(sys, stream)
    return Console(file=file, quiet=quiet, markup=False, highlight=False, emoji=False)


def printable(text: str) -> str:
    """`text` in one line and without characters that would steer a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def decision(out: Console, found: Mapping[str, Any], units: Units, exhaustive: float) -> None:
    """Print a decision in its JSON form; `exhaustive`: GPU-seconds of all cells."""
    out.print(headline(found, exhaustive), style="bold")
    out.print()
    out.print(allocation_table(found, units))
    out.print(f"{found['gpus_used']} of {found['gpus']} GPUs used.")
    for line in remarks(found, units):
        out.print(line)


def headline(found: Mapping[str, Any], exhaustive: float) -> str:
    """One sentence: certified or not, what the value is and what it cost to know."""
    value = percent_range(found["value"]["conservative"], found["value"]["optimistic"])
    state = f"Certified at {percent(found['confidence'])} confidence"
    if not found["certified"]:
        reason = REASONS.get(found["stop_reason"])
        state = f"Not certified ({reason})" if reason else "Not certified"
    return (
        f"{state}: {OBJECTIVES[found['objective']].format(value)}; "
        f"gap {number(found['gap'])}, tolerance {number(found['tolerance'])}; "
        f"{spent(found['gpu_seconds'], exhaustive)}{priced(found.get('price'))}."
    )


def spent(gpu_seconds: float, exhaustive: float) -> str:
    """GPU-seconds, and their share of measuring everything."""
    share = f" ({percent(gpu_seconds / exhaustive)} of measuring all)" if exhaustive > 0 else ""
    return f"{gpu_seconds:,.0f} GPU-seconds{share}"


def priced(price: float | None) -> str:
    """What something costs, in the currency of the fleet file; nothing without a price."""
    return "" if price is None else f", at a price of {price:,.2f}"


def allocation_table(found: Mapping[str, Any], units: Units) -> Table:
    """Who gets what: one row per workload and config, ranges from conservative to optimistic."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("workload", overflow="fold", min_width=8)
    table.add_column("config × replicas", overflow="fold", min_width=8)
    for title in ("GPUs", "load\neach", "capacity\nreq/s each", "demand\nreq/s", "demand\nserved"):
        table.add_column(title, justify="right", overflow="fold")
    for workload in found["workloads"]:
        name = workload["name"]
        rows = [row for row in found["allocation"] if row["workload"] == name]
        served = workload["fulfillment"]
        last = (
            number(workload["demand"]),
            percent_range(served["conservative"], served["optimistic"])
            if workload["feasible"]
            else "infeasible",
        )
        for at, row in enumerate(rows or [None]):
            first = (printable(name), last) if at == 0 else ("", ("", ""))
            table.add_row(first[0], *_share(row, units.get(name)), *first[1])
    return table


def _share(row: Mapping[str, Any] | None, kind: LoadKind | None) -> tuple[str, str, str, str]:
    if row is None:
        return ("nothing", "0", "", "")
    capacity = row["capacity"]
    return (
        f"{printable(row['config'])} × {row['replicas']}",
        str(row["gpus"]),
        load(row["load"], kind) + ("" if row["measured"] else " (unmeasured)"),
        span(capacity["lower"], capacity["upper"]),
    )


def remarks(found: Mapping[str, Any], units: Units) -> Iterator[str]:
    """What else there is to say, one sentence a line; most interesting first."""
    if found.get("runner_up"):
        yield _runner_up(found["runner_up"])
    if found.get("unmeasured") and found["unmeasured"]["cells"]:
        yield _unmeasured(found["unmeasured"], certified=found["certified"])
    for miss in found.get("infeasible", ()):
        yield _closest_miss(miss, units)
    for cell in found["within_noise"]:
        yield f"Within noise of its SLO: {_where(cell, units)}."
    for cell in found.get("non_monotone", ()):
        yield (
            f"Not monotone: {_where(cell, units)} holds its SLOs and a lower load does not; "
            "it does not count."
        )
    for config, reason in found.get("unusable", {}).items():
        yield printable(f"Unusable: config {config}, as {reason}.")
    for note in found.get("notes", ()):
        yield printable(f"Note: {note}")
    if not found["certified"]:
        yield from proposals(found["next"], units)


def proposals(cells: Sequence[Mapping[str, Any]], units: Units) -> Iterator[str]:
    """The cells to measure next, best first."""
    for at, cell in enumerate(cells[:_MOST_NEXT]):
        title = "Measure next: " if at == 0 else "              "
        yield f"{title}{_where(cell, units)}, {cell['gpu_seconds']:,.0f} GPU-seconds"


def _runner_up(other: Mapping[str, Any]) -> str:
    value = percent_range(other["value"]["conservative"], other["value"]["optimistic"])
    groups = groupby(other["allocation"], key=lambda row: row["workload"])
    parts = [
        f"{name}: " + " + ".join(f"{row['config']} × {row['replicas']}" for row in rows)
        for name, rows in groups
    ]
    return printable(f"Runner-up, {value}: {'; '.join(parts) or 'nothing'}.")


def _unmeasured(rest: Mapping[str, Any], *, certified: bool) -> str:
    most = max((column["could_add"] for column in rest["columns"]), default=0.0)
    count, columns = rest["cells"], len(rest["columns"])
    cells = f"{count} {'cell' if count == 1 else 'cells'}"
    pairs = f"{columns} workload-config {'pair' if columns == 1 else 'pairs'}"
    if not certified:
        return f"{cells} of {pairs} not measured, {rest['gpu_seconds']:,.0f} GPU-seconds."
    return (
        f"{cells} of {pairs} never measured, {rest['gpu_seconds']:,.0f} GPU-seconds saved: "
        f"no pair alone could add more than {number(most)} at its upper bound."
    )


def _closest_miss(miss: Mapping[str, Any], units: Units) -> str:
    if miss.get("config") is None:
        return printable(f"Infeasible: no config can serve {miss['workload']}.")
    name, where = miss["workload"], _where(miss, units)
    if miss["value"] is None:
        return printable(f"Infeasible: no config serves {name}; {where} never kept up.")
    return printable(
        f"Infeasible: no config serves {name}; closest is {where}, with {miss['metric']} "
        f"{number(miss['value'])} s over the limit of {number(miss['limit'])} s."
    )


def _where(cell: Mapping[str, Any], units: Units) -> str:
    at = (
        "" if cell.get("load") is None else f" at {load(cell['load'], units.get(cell['workload']))}"
    )
    return printable(f"{cell['workload']} on {cell['config']}{at}")


def where(cell: Cell) -> str:
    """A cell in words."""
    return printable(f"{cell.workload} on {cell.config} at {load(cell.load, cell.kind)}")


def load(value: float, kind: LoadKind | None) -> str:
    """A load with its unit; concurrency counts open requests."""
    return f"{number(value)} {UNITS[kind]}" if kind else number(value)


def number(value: float) -> str:
    """Four significant digits, without an exponent where that stays short."""
    if not math.isfinite(value):
        return str(value)
    if 0 < abs(value) < 1e-4:
        return f"{value:.1e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def span(low: float, high: float) -> str:
    """A range, or one number when both ends read the same."""
    ends = number(low), number(high)
    return ends[0] if ends[0] == ends[1] else "–".join(ends)


def percent(share: float) -> str:
    """A share in percent, three significant digits."""
    return f"{100 * share:.4g} %" if share >= 0.995 else f"{100 * share:.3g} %"


def percent_range(low: float, high: float) -> str:
    """A range of shares in percent, or one number when both ends read the same."""
    ends = f"{100 * low:.1f}", f"{100 * high:.1f}"
    return f"{ends[0] if ends[0] == ends[1] else '–'.join(ends)} %"
