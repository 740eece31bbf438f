"""What an engine's log says about a failure: its kind, and whether the config is to blame."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetsieve_measure.results import FailureKind


@dataclass(frozen=True)
class Symptom:
    """A line that decides why a server failed."""

    pattern: re.Pattern[str]
    kind: FailureKind = "error"
    infrastructure: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """Why a server failed, in a kind and in words.

    Attributes:
        infrastructure: the machine or a neighbour is to blame, so that the same config may well
            start at the next try; otherwise the config is, and another try changes nothing.
    """

    kind: FailureKind
    reason: str
    infrastructure: bool = False


def out_of_memory(*patterns: str) -> Symptom:
    """The config needs more memory than there is."""
    return Symptom(re.compile("|".join(patterns)), "oom")


def refused(*patterns: str) -> Symptom:
    """The engine does not do what the config asks for."""
    return Symptom(re.compile("|".join(patterns)))


def infrastructure(*patterns: str) -> Symptom:
    """Something that another try may well get around."""
    return Symptom(re.compile("|".join(patterns)), infrastructure=True)


# Engines on PyTorch and Python share these; an engine's own symptoms come before them.
COMMON = (
    out_of_memory(
        r"CUDA out of memory",
        r"\bOutOfMemoryError\b",
        r"CUDA (?:runtime )?error.*out of memory",
        r"cudaErrorMemoryAllocation",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
        r"std::bad_alloc",
    ),
    refused(
        r"must be divisible by",
        r"is not divisible by",
        r"error: unrecognized arguments",
        r"error: argument ",
        r"error: the following arguments are required",
        r"No such option",
        r"Invalid value for",
    ),
    infrastructure(
        r"[Aa]ddress already in use",
        r"EADDRINUSE",
        r"is used by a process already",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        r"CUDA error: (?:uncorrectable ECC error|system not yet initialized)",
        r"ncclSystemError|ncclRemoteError|unhandled system error",
        r"No space left on device",
        r"Temporary failure in name resolution",
        r"\b(?:429 Client|50[234] Server) Error",
    ),
)

# "(EngineCore pid=7) ERROR 11-30 15:07:53 [core.py:1510] ", "[2025-03-09 14:40:46 TP4] ", …
_PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\)\s*)?(?:[A-Z]+ [\d .:-]+)?(?:\[[^\]]*\]:?\s*)*")
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): .")
_LONGEST = 400


def message(line: str) -> str:
    """A log line without the logger's prefix, cut where it gets long."""
    text = _PREFIX.sub("", line).strip()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def diagnose(lines: Sequence[str], symptoms: Iterable[Symptom]) -> Diagnosis | None:
    """What the first of `symptoms` with a matching line says, by its first such line."""
    for symptom in symptoms:
        for line in lines:
            if symptom.pattern.search(line):
                return Diagnosis(symptom.kind, message(line), symptom.infrastructure)
    return None


def last_words(lines: Sequence[str]) -> str:
    """The first exception, since tracebacks name causes before effects, or else the last line."""
    texts = [text for line in lines if (text := message(line))]
    exception = next((text for text in texts if _EXCEPTION.match(text)), None)
    return exception or (texts[-1] if texts else "it logged nothing")
