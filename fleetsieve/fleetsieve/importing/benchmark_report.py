"""llm-d's Benchmark Report, versions 0.1 and 0.2, in YAML or JSON, with units beside the values.

It passes on what another tool measured, in that tool's sense: with GuideLLM the TPOT is its
`inter_token_latency`, with the others `time_per_output_token`.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fleetsieve.importing.document import Document
from fleetsieve.importing.inference_perf import FAMILIES
from fleetsieve.importing.run import Reading, Run
from fleetsieve.importing.source import Source
from fleetsieve.importing.units import in_seconds

_GUIDELLM = {"e2e": "request_latency", "ttft": "time_to_first_token", "tpot": "inter_token_latency"}
_DURATION = re.compile(r"PT(?:([\d.]+)H)?(?:([\d.]+)M)?(?:([\d.]+)S)?")


def is_report(record: Mapping[str, Any]) -> bool:
    """Whether this is such a report."""
    results = record.get("results")
    old = "scenario" in record and isinstance(record.get("metrics"), Mapping)
    return "version" in record and (
        old or (isinstance(results, Mapping) and "request_performance" in results)
    )


def reports(document: Document) -> Iterator[Reading]:
    """The runs of a file."""
    for number, record in enumerate(document.records):
        yield partial(_report, Source(document.place(number), record))


def _report(source: Source) -> Run:
    old, run = "metrics" in source, Run(source.place, notes=source.notes)
    aggregate = source.at("metrics")
    if not old:
        aggregate = source.at("results").at("request_performance").at("aggregate")
    load = source.at("scenario").at("load")
    run.seconds = aggregate.at("time").finite("duration") if old else _duration(source)
    requests = aggregate.at("requests")
    run.failed, total = requests.whole("failures"), requests.whole("total")
    run.requests = None if total is None else max(total - (run.failed or 0), 0)
    throughput = aggregate.at("throughput")
    run.throughput = (
        throughput.finite("requests_per_sec")
        if old
        else throughput.at("request_rate").finite("mean")
    )
    (_set_load_old if old else _set_load)(run, load)
    (_set_gpus_old if old else _set_gpus)(run, source.at("scenario"))
    tool = load.text("name") if old else load.at("standardized").text("tool")
    for family, name in (_GUIDELLM if "guidellm" in (tool or "").lower() else FAMILIES).items():
        _put(run, family, aggregate.at("latency").at(name))
    return run


def _put(run: Run, family: str, metric: Source) -> None:
    if not metric.data:
        return
    scale = in_seconds(metric.text("units"))
    if scale is None:
        raise metric.error("units", "s or ms, or either per token, is needed there")
    run.put_all(family, metric.statistics(), scale)


def _duration(source: Source) -> float | None:
    """ISO 8601, as in PT49.97S."""
    time = source.at("run").at("time")
    match = _DURATION.fullmatch(time.text("duration") or "")
    if match is None:
        return time.finite("duration")
    parts = Source(source.place, dict(zip("hms", match.groups(), strict=True)))
    hours, minutes, seconds = (parts.finite(part) or 0.0 for part in "hms")
    return 3600 * hours + 60 * minutes + seconds


def _set_load(run: Run, load: Source) -> None:
    standard = load.at("standardized")
    stage = _stage(load.at("native").at("config"), standard.whole("stage"))
    _take(run, standard, "rate_qps", "concurrency")
    if run.load is None:
        _take(run, stage, "rate", "concurrency_level")


def _set_load_old(run: Run, load: Source) -> None:
    arguments = load.at("args")
    _take(run, arguments, "request_rate", "max_concurrency")
    if run.load is None:
        stage = _stage(arguments, load.at("metadata").whole("stage"))
        _take(run, stage, "rate", "concurrency_level")


def _take(run: Run, place: Source, rate: str, concurrency: str) -> None:
    """The rate where there is a finite one, else the concurrency."""
    per_second, together = place.number(rate), place.number(concurrency)
    if per_second and math.isfinite(per_second):
        run.load = ("rate", per_second)
    elif together and math.isfinite(together):
        run.load = ("concurrency", together)


def _stage(config: Source, number: int | None) -> Source:
    stages = config.at("load").each("stages")
    if number is None and len(stages) == 1:
        return stages[0]
    known = number is not None and number < len(stages)
    return stages[number or 0] if known else Source(config.place, {})


def _set_gpus(run: Run, scenario: Source) -> None:
    """GPUs of the engine, where the report is of a single one."""
    parts = [component.at("standardized") for component in scenario.each("stack")]
    engines = [part for part in parts if part.text("kind") == "inference_engine"]
    count = sum(engine.whole("replicas") or 1 for engine in engines)
    _name_gpus(run, [engine.at("accelerator") for engine in engines], count)


def _set_gpus_old(run: Run, scenario: Source) -> None:
    accelerators = scenario.at("host").each("accelerator")
    _name_gpus(run, accelerators, len(accelerators))


def _name_gpus(run: Run, accelerators: list[Source], engines: int) -> None:
    if engines == 1 and accelerators:
        found = {
            "gpus": accelerators[0].whole("count"),
            "tp": accelerators[0].at("parallelism").whole("tp"),
        }
        run.names |= {name: value for name, value in found.items() if value}
    elif engines > 1:
        run.notes.append(
            f"{engines} engines served together: the row is of all of them as one replica"
        )
