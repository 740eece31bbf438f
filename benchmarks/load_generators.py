"""Load generators, ours and those of others: how each is started, and what it reports."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

import numpy as np
from paced_server import MODEL, PROMPT_TOKENS


@dataclass(frozen=True)
class Job:
    """What is asked for: `requests` at constant gaps, `tokens` in every reply.

    `folder` takes what the generator writes; `tokenizer` is the folder of one.
    """

    url: str
    rate: float
    requests: int
    tokens: int
    folder: Path
    tokenizer: Path


@dataclass(frozen=True)
class Report:
    """How many requests were completed, and how late in seconds each was sent, in due order."""

    completed: int
    late: np.ndarray


@dataclass(frozen=True)
class Generator:
    """A load generator.

    Attributes:
        due: where the due times come from: "its own records", or "its sends" where only the times
            of sending are known.
    """

    name: str
    command: Callable[[Job], list[str]]
    report: Callable[[Job, str], Report]
    due: str
    environment: Mapping[str, str] = field(default_factory=dict)


def ours() -> Generator:
    """The client of this project, as a measurement runs it."""

    def command(job: Job) -> list[str]:
        script = str(Path(__file__).with_name("paced_load.py"))
        return [sys.executable, script, job.url, *_options(job, "rate", "requests", "tokens")]

    def report(job: Job, printed: str) -> Report:
        found = json.loads(printed.splitlines()[-1])
        return Report(found["completed"], np.array(found["late"]))

    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return Generator("FleetSieve", command, report, "its own records", path)


def vllm(executable: str) -> Generator:
    """`vllm bench serve`."""

    def command(job: Job) -> list[str]:
        return [
            *(executable, "bench", "serve", "--backend", "openai", "--base-url", job.url),
            *("--endpoint", "/v1/completions", "--model", MODEL, "--tokenizer", str(job.tokenizer)),
            *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
            *("--random-output-len", str(job.tokens), "--num-prompts", str(job.requests)),
            # Gamma gaps of this shape are constant to a part in a thousand.
            *("--request-rate", str(job.rate), "--burstiness", "1e6", "--ignore-eos"),
            *("--disable-tqdm", "--save-result", "--save-detailed"),
            *("--result-dir", str(job.folder), "--result-filename", "vllm.json"),
        ]

    def report(job: Job, printed: str) -> Report:
        found = json.loads((job.folder / "vllm.json").read_text())
        return Report(found["completed"], _after_schedule(found["start_times"], job.rate))

    return Generator("vllm bench serve", command, report, "its sends", _OFFLINE)


def guidellm(executable: str) -> Generator:
    """GuideLLM with a single worker process: by default it starts several, which cost more."""

    def command(job: Job) -> list[str]:
        backend = f"kind=openai_http,target={job.url},model={MODEL}"
        lengths = f"prompt_tokens={PROMPT_TOKENS},output_tokens={job.tokens}"
        return [
            *(executable, "run", "--profile", f"kind=constant,rate={job.rate}"),
            *("--backend", f"{backend},request_format=/v1/completions"),
            *("--constraint", f"kind=max_requests,count={job.requests}"),
            *("--tokenizer", f"kind=hf_auto,model={job.tokenizer}"),
            *("--data", f"kind=synthetic_text,{lengths}", "--disable-console"),
            *("--output", f"kind=json,path={job.folder / 'guidellm.json'}"),
        ]

    def report(job: Job, printed: str) -> Report:
        found = json.loads((job.folder / "guidellm.json").read_text())
        good = found["benchmarks"][0]["requests"]["successful"]
        times = sorted(
            (request["info"]["timings"] for request in good), key=itemgetter("targeted_start")
        )
        late = [each["request_start"] - each["targeted_start"] for each in times]
        return Report(len(good), np.array(late))

    one = {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    return Generator("GuideLLM", command, report, "its own records", _OFFLINE | one)


def aiperf(executable: str) -> Generator:
    """AIPerf with a single worker and record processor, and tokens as the server counts them."""

    def command(job: Job) -> list[str]:
        return [
            *(executable, "profile", "-m", MODEL, "--url", job.url, "--streaming"),
            *("--endpoint-type", "completions", "--tokenizer", str(job.tokenizer)),
            *("--request-rate", str(job.rate), "--arrival-pattern", "constant"),
            *("--request-count", str(job.requests), "--isl", str(PROMPT_TOKENS)),
            *("--osl", str(job.tokens), "--extra-inputs", "ignore_eos:true"),
            *("--use-server-token-count", "--no-server-metrics", "--no-gpu-telemetry"),
            *("--workers-max", "1", "--record-processors", "1", "--ui", "none"),
            *("--artifact-dir", str(job.folder)),
        ]

    def report(job: Job, printed: str) -> Report:
        lines = (job.folder / "profile_export.jsonl").read_text().splitlines()
        good = [row for row in map(json.loads, lines) if not row.get("error")]
        starts = [row["metadata"]["request_start_ns"] * 1e-9 for row in good]
        return Report(len(good), _after_schedule(starts, job.rate))

    return Generator("AIPerf", command, report, "its sends")


PEERS = {"vllm": vllm, "guidellm": guidellm, "aiperf": aiperf}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def write_tokenizer(folder: Path) -> None:
    """A tokenizer with a token per byte and no merges, in the format of Hugging Face."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [*map(chr, printable), *(chr(256 + i) for i in range(256 - len(printable)))]
    special = ["<s>", "</s>"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    made = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text, "special": True} | flags for i, text in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": whole | {"use_regex": True},
        "post_processor": None,
        "decoder": whole | {"use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate([*special, *letters])},
            "merges": [],
        },
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"}
    settings |= {"eos_token": "</s>", "model_max_length": 8192}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def environment_of(generator: Generator) -> dict[str, str]:
    """The environment that it runs in: nothing of ours, nor what keeps AIPerf from a tokenizer."""
    inherited = {k: v for k, v in os.environ.items() if k not in _OFFLINE and k != "PYTHONPATH"}
    return inherited | dict(generator.environment)


def _options(job: Job, *names: str) -> list[str]:
    return [part for name in names for part in (f"--{name}", str(getattr(job, name)))]


def _after_schedule(starts: list[float], rate: float) -> np.ndarray:
    """How late requests are against constant gaps that begin where none is early: at least so late.

    The first due time is not reported. The one assumed makes the earliest request punctual.
    """
    behind = np.sort(starts) - np.arange(len(starts)) / rate
    return behind - behind.min()
