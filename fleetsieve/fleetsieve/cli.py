"""The command line: each command parses, calls one function and prints.

A command imports what rests on JAX only once its input is known to be right.
"""

import os

# OpenBLAS starts threads for every small factorisation, which makes it 50 times slower; it reads
# this when NumPy is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gc
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetsieve import examples, json_text
from fleetsieve.errors import InputError
from fleetsieve.policy_names import POLICY_NAMES
from fleetsieve.usage import UsageError, sentence

if TYPE_CHECKING:
    from rich.console import Console

    from fleetsieve.inputs import Inputs

DONE, BUG, WRONG_INPUT, UNCERTIFIED = 0, 1, 2, 3
# What Typer makes of an interrupt while it reads the command line.
_CUT_SHORT = 130

app = typer.Typer(
    help="Decide how to split a GPU budget over LLM workloads, with the fewest benchmarks.",
    epilog="Exit codes: 0 done, 2 wrong input, 3 stopped without a certificate, 1 a bug.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


class Stop(StrEnum):
    """When a run is certified."""

    gap = "gap"
    regret = "regret"


class Inference(StrEnum):
    """How hyperparameters are inferred."""

    map = "map"
    nuts = "nuts"


class Format(StrEnum):
    """What an export can be."""

    vllm = "vllm"
    trtllm = "trtllm"
    sglang = "sglang"
    compose = "compose"
    kubernetes = "kubernetes"
    dynamo = "dynamo"
    llm_d = "llm-d"


class Document(StrEnum):
    """What has a JSON schema."""

    fleet = "fleet"
    decision = "decision"
    replay = "replay"


FleetFile = Annotated[Path, typer.Argument(metavar="FLEET", help="The fleet file (YAML).")]
GridFile = Annotated[Path, typer.Argument(metavar="GRID", help="The grid file (CSV or Parquet).")]
GridOption = Annotated[
    Path | None, typer.Option("--grid", metavar="GRID", help="A grid file to replay.")
]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="OUT", help="Write JSON there; - is stdout.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show neither progress nor result, only errors.")
]
SeedOption = Annotated[int | None, typer.Option(min=0, max=2**31 - 1, help="Settles every draw.")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, by default that of `sys.argv`, and return its exit code."""
    command = typer.main.get_command(app)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by whoever called: nobody reads it
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115 - open to the end
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal without a character that a name or a table has shows its code instead.
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = None if argv is None else list(argv)
    try:
        code = command.main(args=arguments, prog_name="fleetsieve", standalone_mode=False)
    except UsageError as error:
        _complain(f"error: {sentence(error)}")
        return WRONG_INPUT
    except SystemExit as stop:  # of what Typer does for shells
        code = stop.code
    except typer.Abort:
        code = _CUT_SHORT
    if code == _CUT_SHORT:
        _complain("interrupted")
        return UNCERTIFIED
    return code if isinstance(code, int) else DONE if code is None else BUG


def _show_version(asked: bool) -> None:
    if asked:
        from fleetsieve.version import installed

        with _reader_may_leave():
            print("fleetsieve", installed())
        raise typer.Exit(DONE)


@app.callback()
def _before_any_command(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(WRONG_INPUT)


@contextmanager
def _importing() -> Iterator[None]:
    """Import JAX and what rests on it without collecting garbage: all of it stays.

    Walking through it over and over takes a sixth of a start, and an interrupt amid a collection
    gets lost in a callback of JAX.
    """
    if "jax" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _command(function: Callable[..., int]) -> Callable[..., None]:
    """Make `function`, which returns an exit code, a command that ends as DESIGN 4 says."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        raise typer.Exit(_ending(lambda: function(*args, **kwargs)))

    name = function.__name__.rstrip("_")
    app.command(name, epilog=examples.epilog(name))(guarded)
    return guarded


def _ending(function: Callable[[], int]) -> int:
    try:
        return function()
    except InputError as error:
        _complain(f"error: {error}")
        return WRONG_INPUT
    except KeyboardInterrupt:
        _complain("interrupted")
        return UNCERTIFIED
    except Exception:  # noqa: BLE001 - whatever else went wrong is ours, and says so
        traceback.print_exc()
        _complain("this is a bug in fleetsieve; please report it with the lines above")
        return BUG


def _complain(text: str) -> None:
    """One line on stderr, whatever a file put into it."""
    from fleetsieve.show import printable

    print(printable(" ".join(text.splitlines())), file=sys.stderr)


@_command
def run(
    fleet: FleetFile,
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE.db", help="The study; by default FLEET.study.db beside FLEET."),
    ] = None,
    grid: GridOption = None,
    budget: Annotated[
        float | None, typer.Option(metavar="N", help="GPU-seconds that may be spent.")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, max=1000, metavar="N", help="Measurements at once.")
    ] = None,
    stop: Annotated[Stop | None, typer.Option(help="The rule that certifies.")] = None,
    inference: Annotated[Inference | None, typer.Option(help="How the model is fitted.")] = None,
    seed: SeedOption = None,
    quiet: QuietOption = False,
    json: JsonOption = None,
) -> int:
    """Choose, measure and tell until the decision is certified, or the budget is spent."""
    from fleetsieve.inputs import Inputs

    json_text.check_writable(json)
    rules = {
        "budget_gpu_seconds": budget,
        "stop": stop and stop.value,
        "inference": inference and inference.value,
    }
    inputs = Inputs.read(fleet, grid, rules).checked()

    with _importing():
        from fleetsieve.belief import use_compilation_cache
        from fleetsieve.live import Display
        from fleetsieve.run import engine_of, run_study
        from fleetsieve.show import console
        from fleetsieve.study import Study

    use_compilation_cache()
    path = study or fleet.with_name(f"{inputs.fleet.name}.study.db")
    with (
        Study.open(path, inputs.fleet, seed, grid) as file,
        Display(console("stderr", quiet), price=inputs.fleet.price) as display,
    ):
        engine = engine_of(inputs, file)
        found = run_study(inputs, file, engine=engine, parallel=parallel, on_progress=display)
    _show_decision(found.to_dict(), inputs, json, quiet)
    return DONE if found.certified else UNCERTIFIED


@_command
def plan(fleet: FleetFile, grid: GridOption = None, json: JsonOption = None) -> int:
    """Say what there is to measure, what all of it would cost, and where to begin."""
    from fleetsieve.inputs import Inputs

    json_text.check_writable(json)
    inputs = Inputs.read(fleet, grid).checked()

    with _importing():
        from fleetsieve import reports
        from fleetsieve.belief import use_compilation_cache
        from fleetsieve.plan import plan as planned

    use_compilation_cache()
    found = planned(inputs)
    with _output(found, json) as out:
        reports.plan(out, found, inputs.units)
    return DONE


@_command
def decide(
    fleet: FleetFile,
    grid: GridOption = None,
    study: Annotated[
        Path | None, typer.Option(metavar="DB", help="Decide from a study's measurements.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, metavar="N", help="Other GPUs.")] = None,
    demand: Annotated[
        list[str] | None,
        typer.Option(metavar="W=X", help="Another demand of a workload, in requests/s."),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="W.METRIC=X", help="Another SLO of a workload, in seconds."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="CONFIG", help="As if there were no such config."),
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="gpus=8..64", help="Decide for each of these budgets.")
    ] = None,
    json: JsonOption = None,
) -> int:
    """Decide from what is known, without measuring: for questions that begin with "what if"."""
    from fleetsieve.inputs import Inputs
    from fleetsieve.what_if import budgets, changed

    json_text.check_writable(json)
    if grid is None and study is None:
        raise InputError("nothing to decide from; give --grid GRID or --study DB")
    if study is not None and not study.is_file():
        raise InputError(f"study {study} does not exist; name one that run has written")
    if sweep is not None and gpus is not None:
        raise InputError("--gpus and --sweep both say how many GPUs; give one of them")
    gpu_range = budgets(sweep) if sweep is not None else None
    inputs = Inputs.read(fleet, grid)
    other = changed(
        inputs.fleet, gpus=gpus, demands=demand or (), slos=slo or (), without=without or ()
    )
    inputs = inputs.of(other).checked()

    with _importing():
        from fleetsieve import reports
        from fleetsieve.belief import use_compilation_cache
        from fleetsieve.decide import decide as decided
        from fleetsieve.decide import known
        from fleetsieve.sweep import sweep as swept

    use_compilation_cache()
    events, seed = known(inputs, study)
    if gpu_range is not None:
        found = swept(inputs, gpu_range, events, seed)
        with _output(found, json) as out:
            reports.sweep(out, found)
        return DONE
    _show_decision(decided(inputs, events, seed).to_dict(), inputs, json)
    return DONE


@_command
def replay(
    fleet: FleetFile,
    grid: GridFile,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"May be repeated: {', '.join(POLICY_NAMES)}.",
            autocompletion=lambda: list(POLICY_NAMES),
        ),
    ] = None,
    orders: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each policy.")] = 10,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
    json: JsonOption = None,
) -> int:
    """Compare policies on a grid whose every outcome is known."""
    from fleetsieve.inputs import Inputs

    json_text.check_writable(json)
    inputs = Inputs.read(fleet, grid).checked()

    with _importing():
        from fleetsieve import reports
        from fleetsieve.belief import use_compilation_cache
        from fleetsieve.replay import replay as replayed
        from fleetsieve.replay_display import ReplayDisplay
        from fleetsieve.show import console

    use_compilation_cache()
    policies = list(dict.fromkeys(policy or ("sieve", "random", "bisect")))
    with ReplayDisplay(console("stderr", quiet)) as display:
        found = replayed(
            inputs.fleet,
            inputs.needed_grid(),
            policies=policies,
            orders=orders,
            seed=seed or 0,
            on_progress=display,
        ).to_dict()
    with _output(found, json, quiet) as out:
        reports.replay(out, found)
    return DONE


@_command
def export(
    source: Annotated[
        Path, typer.Argument(metavar="STUDY", help="A study, or the JSON of a decision.")
    ],
    to: Annotated[Format, typer.Option(help="Launch commands of an engine, or manifests.")],
    fleet: Annotated[
        Path | None,
        typer.Option(metavar="FLEET", help="Its engines serve; needed with a decision's JSON."),
    ] = None,
    grid: GridOption = None,
    image: Annotated[
        list[str] | None,
        typer.Option(metavar="IMAGE", help="The container image; KIND=IMAGE for one engine."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("-o", metavar="DIR or FILE", help="By default stdout.")
    ] = None,
) -> int:
    """Write what to deploy: replicas of a decision as they were measured."""
    from fleetsieve.export import export as exported
    from fleetsieve.export import images_of
    from fleetsieve.export.decided import decided
    from fleetsieve.export.place import write

    images = images_of(image or ())
    with _importing():
        found = decided(source, fleet, grid)
    files, warnings = exported(found, source, to.value, images)
    with _reader_may_leave():
        written = write(files, out)
    for line in (
        *(f"warning: {text}" for text in warnings),
        *(f"wrote {path}" for path in written),
    ):
        _complain(line)
    return DONE


@_command
def report(
    source: Annotated[
        Path, typer.Argument(metavar="STUDY", help="A study, or the JSON of a replay.")
    ],
    out: Annotated[
        str, typer.Option("-o", metavar="FILE", help="Write HTML there; - is stdout.")
    ] = json_text.STDOUT,
    grid: GridOption = None,
) -> int:
    """Write one HTML file that shows a decision, or a comparison, and what it rests on."""
    from fleetsieve.study import is_database

    json_text.check_writable(out, "-o")
    if is_database(source):
        with _importing():
            from fleetsieve.belief import use_compilation_cache
            from fleetsieve.report.of_study import study_page

        use_compilation_cache()
        text = study_page(source, grid)
    else:
        from fleetsieve.report.of_replay import replay_page

        if grid is not None:
            raise InputError(f"--grid is for studies, and {source} is none; leave it out")
        text = replay_page(source)
    with _reader_may_leave():
        json_text.put(text, out)
    return DONE


@_command
def watch(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="A study that run writes.")],
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any free one.")] = 8321,
    token: Annotated[
        str | None,
        typer.Option(envvar="FLEETSIEVE_WATCH_TOKEN", help="What others have to bring."),
    ] = None,
    grid: GridOption = None,
) -> int:
    """Serve a page that follows a study while a run goes on, until Ctrl-C."""
    import asyncio

    from fleetsieve.study import Study
    from fleetsieve.watch.gate import Gate
    from fleetsieve.watch.server import watch as watched

    gate = Gate(host, token)
    Study.open_read_only(study).close()

    def say(address: str) -> None:
        from fleetsieve.show import printable

        print(printable(f"{study} is shown at {address}; Ctrl-C ends this"), flush=True)

    with _reader_may_leave():
        asyncio.run(watched(study, grid, host, port, gate, say))
    return DONE


@_command
def probe(
    url: Annotated[str, typer.Argument(metavar="URL", help="A server, as http://HOST:PORT.")],
    model: Annotated[
        str | None, typer.Option(help="By default the first model that it lists.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Use the chat dialect.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Output tokens.")] = 16,
    json: JsonOption = None,
) -> int:
    """Send one streamed request and say what the client saw of it."""
    from fleetsieve_measure.probe import run

    json_text.check_writable(json)
    found = run(url, model=model, chat=chat, max_tokens=max_tokens)
    with _reader_may_leave():
        json_text.write(found, json or json_text.STDOUT)
    return DONE if found["ok"] else UNCERTIFIED


@_command
def import_(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Result files, or folders of them.")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="GRID", help="The grid (.csv or .parquet).")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A column of every row; may be repeated."),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Columns in the path: {workload}/tp{tp}/*.json."),
    ] = None,
) -> int:
    """Make a grid of other tools' results: vLLM, TensorRT-LLM, GuideLLM, AIPerf and more."""
    from fleetsieve.importing.given import PathPattern, assignments
    from fleetsieve.importing.importer import import_files
    from fleetsieve.importing.summary import gaps, lines
    from fleetsieve.importing.writing import check_out, write

    check_out(out)
    pattern = None if path is None else PathPattern(path)
    found = import_files(files, assignments(set_ or ()), pattern, out)
    write(found.grid, out, gaps(found))
    for line in lines(found, out):
        _complain(line)
    return DONE


@_command
def schema(document: Annotated[Document, typer.Argument(help="Whose schema.")]) -> int:
    """Print the JSON schema of the fleet file or of a command's output."""
    from fleetsieve.fleet import Fleet
    from fleetsieve.schemas import decision_schema, replay_schema

    made = {
        Document.fleet: Fleet.json_schema,
        Document.decision: decision_schema,
        Document.replay: replay_schema,
    }
    with _reader_may_leave():
        json_text.write(made[document](), json_text.STDOUT)
    return DONE


def _show_decision(
    found: dict[str, Any], inputs: "Inputs", out: str | None, quiet: bool = False
) -> None:
    from fleetsieve import show

    with _output(found, out, quiet) as console:
        show.decision(console, found, inputs.units, inputs.exhaustive)


@contextmanager
def _output(found: dict[str, Any], out: str | None, quiet: bool = False) -> "Iterator[Console]":
    """The console for people; it is stderr where `found`, as JSON, has stdout for itself."""
    from fleetsieve.show import console

    with _reader_may_leave():
        if out is not None:
            json_text.write(found, out)
        yield console("stderr" if out == json_text.STDOUT else "stdout", quiet)


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """A reader that closes the pipe, such as head, ends the output and is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
