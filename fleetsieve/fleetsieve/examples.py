"""Examples that each command's help shows; a test runs them in this order."""

from collections.abc import Mapping, Sequence

_EXAMPLES: Mapping[str, Sequence[str]] = {
    "plan": ("fleetsieve plan fleet.yaml --grid grid.csv",),
    "run": (
        "fleetsieve run fleet.yaml --grid grid.csv --budget 50000",
        "fleetsieve run fleet.yaml --grid grid.csv --quiet --json decision.json",
    ),
    "decide": (
        "fleetsieve decide fleet.yaml --grid grid.csv --gpus 6 --demand chat=3",
        "fleetsieve decide fleet.yaml --grid grid.csv --sweep gpus=2..4 --json -",
    ),
    "replay": (
        "fleetsieve replay fleet.yaml grid.csv --policy bisect --policy cheapest",
        "fleetsieve replay fleet.yaml grid.csv --policy bisect --json replay.json",
    ),
    "import": ("fleetsieve import results --path '{workload}/{config}-tp{tp}.json' -o my.csv",),
    "export": (
        "fleetsieve export fleet.study.db --to vllm",
        "fleetsieve export fleet.study.db --to kubernetes --image my/vllm:1",
        "fleetsieve export decision.json --fleet fleet.yaml --to compose -o out",
    ),
    "report": (
        "fleetsieve report fleet.study.db -o report.html",
        "fleetsieve report replay.json -o replay.html",
    ),
    "watch": ("fleetsieve watch fleet.study.db --port 8400",),
    "probe": ("fleetsieve probe http://127.0.0.1:8000 --chat --max-tokens 4",),
    "schema": ("fleetsieve schema fleet",),
}


def lines(command: str) -> Sequence[str]:
    """The examples of a command."""
    return _EXAMPLES.get(command, ())


def epilog(command: str) -> str | None:
    """The end of a command's help; the mark keeps its lines as they are."""
    found = lines(command)
    title = "Example:" if len(found) == 1 else "Examples:"
    return "\n".join(("\b", title, *(f"  {line}" for line in found))) if found else None
