"""The formats that are told apart by what a file holds, first match first."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetsieve.errors import InputError
from fleetsieve.importing import (
    aibrix,
    aiconfigurator,
    aiperf,
    aiperf_records,
    benchmark_report,
    dynamo_replay,
    guidellm,
    guidellm_table,
    inference_perf,
    trtllm_bench,
    vllm,
)
from fleetsieve.importing.document import Document
from fleetsieve.importing.run import Reading

_SHOWN_KEYS = 6


@dataclass(frozen=True)
class Format:
    """A format of result files.

    Attributes:
        tool: whose.
        fits: whether a document is of this format.
        runs: its runs, each still to be read.
        twin: what files that tell of the same runs have in common; None where there are none.
        rank: of files that tell of the same runs only those of the lowest rank count.
        retells: whether it passes on what another tool's files hold.
    """

    tool: str
    fits: Callable[[Document], bool]
    runs: Callable[[Document], Iterator[Reading]]
    twin: Callable[[Path], str] | None = None
    rank: int = 0
    retells: bool = False


def _all(is_one: Callable[[Mapping[str, Any]], bool]) -> Callable[[Document], bool]:
    return lambda document: bool(document.records) and all(map(is_one, document.records))


def _stem(path: Path) -> str:
    """The name without the endings by which exports of one run differ."""
    return path.stem.removesuffix("_aiperf").removesuffix("_genai_perf")


def _here(_: Path) -> str:
    """All reports in a folder are of one run."""
    return ""


FORMATS = (
    Format("vLLM", _all(vllm.is_result), vllm.results),
    Format("vLLM", vllm.is_summary_table, vllm.summary_table),
    Format("vLLM", _all(vllm.is_failure), vllm.failures),
    Format("trtllm-bench", _all(trtllm_bench.is_result), trtllm_bench.results),
    Format("GuideLLM", _all(guidellm.is_report), guidellm.report, _stem),
    Format("GuideLLM", guidellm_table.is_table, guidellm_table.table, _stem, rank=1),
    Format("AIPerf", _all(aiperf.is_export), aiperf.exports, _stem),
    Format("AIPerf", aiperf.is_table, aiperf.table, _stem, rank=1),
    Format("AIPerf", _all(aiperf_records.is_record), aiperf_records.records, _stem, rank=2),
    Format("inference-perf", _all(inference_perf.is_stage), inference_perf.reports, _here),
    Format("inference-perf", _all(inference_perf.is_report), inference_perf.reports, _here, 1),
    Format("llm-d", _all(benchmark_report.is_report), benchmark_report.reports, retells=True),
    Format("AIBrix", _all(aibrix.is_line), aibrix.lines),
    Format("AIConfigurator", aiconfigurator.is_table, aiconfigurator.table),
    Format("Dynamo", _all(dynamo_replay.is_replay), dynamo_replay.replays),
)
TOOLS = tuple(dict.fromkeys(format_.tool for format_ in FORMATS))


def format_of(document: Document) -> Format:
    """The format of a document.

    Raises:
        InputError: it is of none that is known.
    """
    found = next((format_ for format_ in FORMATS if format_.fits(document)), None)
    if found is None:
        raise InputError(
            f"{document.path} is no result of a tool that is known ({', '.join(TOOLS)}); "
            f"it has {_contents(document)}"
        )
    return found


def _contents(document: Document) -> str:
    if document.table:
        names, what = list(document.table[0]), "the columns"
    else:
        names, what = list(document.records[0]), "the keys"
    shown = ", ".join(str(name)[:30] for name in names[:_SHOWN_KEYS])
    return f"{what} {shown or '(none)'}{', ..' if len(names) > _SHOWN_KEYS else ''}"
