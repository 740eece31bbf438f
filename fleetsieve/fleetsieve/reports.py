"""A plan, a sweep and a replay as text for a terminal of 80 columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fleetsieve.show import (
    UNITS,
    Units,
    number,
    percent,
    percent_range,
    priced,
    printable,
    proposals,
    span,
)


def plan(out: Console, found: Mapping[str, Any], units: Units) -> None:
    """Print what there is to measure and what it would cost."""
    out.print(
        f"{found['cells']} cells; measuring all takes {number(found['gpu_hours'])} GPU-hours "
        f"({found['gpu_seconds']:,.0f} GPU-seconds){priced(found['price'])}.",
        style="bold",
    )
    table = _table("workload", "config", "loads", right=("levels", "GPU-seconds"))
    for workload in found["workloads"]:
        for at, config in enumerate(workload["configs"]):
            loads = config["loads"]
            table.add_row(
                printable(workload["name"]) if at == 0 else "",
                printable(config["name"]),
                f"{span(loads[0], loads[-1])} {UNITS[units[workload['name']]]}" if loads else "",
                str(len(loads)),
                f"{config['gpu_seconds']:,.0f}",
            )
    out.print(table)
    for line in proposals(found["next"], units):
        out.print(line)
    for note in found["notes"]:
        out.print(printable(f"Note: {note}"))


def sweep(out: Console, found: Mapping[str, Any]) -> None:
    """Print the value for each budget."""
    table = _table(right=("GPUs", "used", "value", "gap"), last="")
    for point in found["budgets"]:
        if "error" in point:
            table.add_row(str(point["gpus"]), "", "", "", printable(point["error"]))
            continue
        value, infeasible = point["value"], ", ".join(point["infeasible"])
        table.add_row(
            str(point["gpus"]),
            str(point["gpus_used"]),
            percent_range(value["conservative"], value["optimistic"]),
            number(point["gap"]),
            printable(f"infeasible: {infeasible}") if infeasible else "",
        )
    out.print(table)
    smallest = found["smallest"]
    out.print(
        "No budget in the range serves every demand for certain."
        if smallest is None
        else f"The smallest budget that serves every demand: {smallest} GPUs.",
        style="bold",
    )


def replay(out: Console, found: Mapping[str, Any]) -> None:
    """Print what each policy costs, and what the first saves over the others."""
    whole = found["grid_gpu_seconds"]
    out.print(
        f"{found['cells']} cells, {whole:,.0f} GPU-seconds in all; the oracle's value is "
        f"{number(found['oracle']['value'])}. Means over orders; a run that never gets there "
        "costs the whole grid.",
        style="bold",
    )
    titles = ("to oracle\nGPU-s", "to certificate\nGPU-s", "certified", "wrong\ncertificates")
    table = _table("policy", right=titles)
    for name, policy in found["policies"].items():
        runs = policy["runs"]
        if not runs:  # interrupted before
            continue
        table.add_row(
            printable(name),
            f"{_mean_cost(runs, 'gpu_seconds_to_oracle', whole):,.0f}",
            f"{_mean_cost(runs, 'gpu_seconds_to_certificate', whole):,.0f}",
            f"{sum(run['certified'] for run in runs)}/{len(runs)}",
            str(sum(run["valid"] is False for run in runs)),
        )
    out.print(table)
    for name, saving in found["savings"].items():
        oracle, certificate = (_saving(saving[key]) for key in ("to_oracle", "to_certificate"))
        title = printable(name.replace("_vs_", " saves over "))
        out.print(f"{title}: {oracle} to the oracle, {certificate} to the certificate.")


def _mean_cost(runs: Sequence[Mapping[str, Any]], key: str, whole: float) -> float:
    costs = [whole if run[key] is None else run[key] for run in runs]
    return sum(costs) / len(costs)


def _saving(saving: Mapping[str, Any]) -> str:
    low, high = saving["ci95"]
    return f"{percent(saving['mean'])} (95 % CI {percent(low)} to {percent(high)})"


def _table(*left: str, right: Sequence[str] = (), last: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in left:
        table.add_column(title, overflow="fold")
    for title in right:
        table.add_column(title, justify="right")
    if last is not None:
        table.add_column(last, overflow="fold")
    return table
