"""A fleet with other GPUs, demands, SLOs or rules than its file says."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fleetsieve.errors import InputError
from fleetsieve.fleet import Fleet
from fleetsieve.metric import ACCEPTED, is_metric, meant
from fleetsieve.nearest import hint

_SWEEP = re.compile(r"gpus=([0-9]{1,6})\.\.([0-9]{1,6})")
_MOST_BUDGETS = 1000


def changed(
    fleet: Fleet,
    *,
    gpus: int | None = None,
    demands: Iterable[str] = (),
    slos: Iterable[str] = (),
    without: Iterable[str] = (),
    rules: Mapping[str, Any] | None = None,
) -> Fleet:
    """`fleet` with `demands` (W=X), `slos` (W.METRIC=X) and keys of its table `decision`.

    And without some of its configs.

    Raises:
        InputError: an unknown workload or config, or anything that would be wrong in the file.
    """
    data = fleet.mapping()
    if gpus is not None:
        data["fleet"]["gpus"] = gpus
    data["decision"] = {**data.get("decision", {}), **(rules or {})}
    workloads = {workload["name"]: workload for workload in data["workloads"]}
    for text in demands:
        name, number = _assignment("--demand", text, "WORKLOAD=REQUESTS_PER_SECOND")
        _of(workloads, name, "--demand")["demand"] = number
    for text in slos:
        key, number = _assignment("--slo", text, "WORKLOAD.METRIC=SECONDS")
        name, metric = _split(key, text)
        _of(workloads, name, "--slo").setdefault("slo", {})[metric] = number
    data["configs"] = _rest(data["configs"], set(without))
    return Fleet.parse(data, base=Path(fleet.source).parent, source=fleet.source)


def _rest(configs: list[dict[str, Any]], without: set[str]) -> list[dict[str, Any]]:
    names = [config["name"] for config in configs]
    for name in without - set(names):
        raise InputError(
            f"--without names the config {name!r}, which is unknown; {hint(name, names)}"
        )
    if without.issuperset(names):
        raise InputError("--without leaves no config; keep at least one")
    return [config for config in configs if config["name"] not in without]


def budgets(text: str) -> range:
    """The GPU budgets of `gpus=8..64`, both ends included.

    Raises:
        InputError: another form, an empty range, or more than 1000 budgets.
    """
    match = _SWEEP.fullmatch(text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last or last - first >= _MOST_BUDGETS:
        raise InputError(
            f"--sweep is {text!r}; give gpus=FIRST..LAST as in gpus=8..64, ascending, at most "
            f"{_MOST_BUDGETS} budgets"
        )
    return range(first, last + 1)


def _assignment(option: str, text: str, form: str) -> tuple[str, float]:
    """The two sides of the last equals sign, since names may contain one."""
    key, equals, value = text.rpartition("=")
    try:
        if equals and key:
            return key, float(value)
    except ValueError:
        pass
    raise InputError(f"{option} is {text!r}; give {form} with a number")


def _split(key: str, text: str) -> tuple[str, str]:
    """Workload and metric; both may contain dots, as in v1.chat.e2e_p99.9."""
    parts = key.split(".")
    for at in range(len(parts) - 1, 0, -1):
        name, metric = ".".join(parts[:at]), ".".join(parts[at:])
        if is_metric(metric):
            return name, metric
    raise InputError(
        f"--slo is {text!r}; give WORKLOAD.METRIC=SECONDS, where METRIC is {ACCEPTED}"
        f"{meant(parts[-1])}"
    )


def _of(workloads: Mapping[str, dict[str, Any]], name: str, option: str) -> dict[str, Any]:
    if name in workloads:
        return workloads[name]
    raise InputError(
        f"{option} names the workload {name!r}, which is unknown; {hint(name, workloads)}"
    )
