"""A process that renders a study whenever it is asked to: `python -m fleetsieve.watch.worker`.

It reads requests from stdin, one JSON list [study, grid or null] a line, and answers each on stdout
with a line of JSON, {"page": ...} or {"error": ...}. It ends with its input.
"""

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO

# Benchmarks may be going on beside it: it takes no GPU, and yields the processor.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
_NICE = 10


def main(requests: TextIO, answers: TextIO) -> None:
    """Answer until there are no more requests."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    for line in requests:
        study, grid = json.loads(line)
        print(json.dumps(_answer(Path(study), Path(grid) if grid else None)), file=answers)
        answers.flush()


def _answer(study: Path, grid: Path | None) -> dict[str, str]:
    from fleetsieve.errors import InputError
    from fleetsieve.study import Study

    try:
        Study.open_read_only(study).close()  # before what takes seconds to import
        return {"page": _page(study, grid)}
    except InputError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - a bug is shown, and the page lives on
        traceback.print_exc()
        return {"error": f"a bug in fleetsieve: {type(error).__name__}"}


def _page(study: Path, grid: Path | None) -> str:
    from fleetsieve.belief import use_compilation_cache
    from fleetsieve.report.of_study import study_page

    use_compilation_cache()
    return study_page(study, grid, live=True)


if __name__ == "__main__":
    # What anything prints would be taken for an answer.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as own:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        main(sys.stdin, own)
