"""The `raysl` command.

Sub-commands are thin and import what they need themselves: `raysl --help` loads neither torch nor Ray.
"""

import difflib
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from raysl.errors import ConfigError, RunFailed, Stopped
from raysl.redact import redact, redact_uri
from raysl.screen import set_up_logging
from raysl.signals import heeding, hurry
from raysl.waiting import process_start, waiting

if TYPE_CHECKING:
    from raysl.config.schema import RunConfig

DEFAULT_CONFIG = "quickstart"
DEFAULT_SWEEP = "sweep/quickstart"
INTERRUPTED = 130

app = typer.Typer(
    help="Self-supervised pre-training and evaluation of image backbones on Ray.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
speed_app = typer.Typer(help="Measure how fast raysl is on this machine.", no_args_is_help=True)
app.add_typer(speed_app, name="speed")
report_app = typer.Typer(help="Write pages to look at.", no_args_is_help=True)
app.add_typer(report_app, name="report")

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [key=value ...]",
        help="Packaged name or .yaml file, then settings such as optim.lr=0.6 (see `raysl config`).",
        show_default=False,
    ),
]

Verbose = Annotated[bool, typer.Option("--verbose", help="Show what Ray's own processes print.")]
LowResource = Annotated[
    bool, typer.Option("--low-resource", help="A quick check: 1 worker, a small batch, 500 images, 2 epochs.")
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Import code that is not raysl's where the checkpoint names it.")
]
Checkpoint = Annotated[
    str, typer.Option(metavar="URI", help="A checkpoint, or a run, whose newest one is taken.", show_default=False)
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers there too.", show_default=False)
]
LOW_RESOURCE = (
    "train.workers=1",
    "train.batch_size=32",
    "train.epochs=2",
    "optim.warmup=10%",
    "optim.phases=[]",
    "data.limit=500",
    "data.lanes=null",
)


def main() -> None:
    """Run the command line.

    Exit code 0: done, 1: the run failed, 2: the input is wrong, 130: stopped by Ctrl-C, 143: stopped by SIGTERM.
    """
    try:
        code = app(prog_name="raysl", standalone_mode=False)
    except Stopped as stopped:  # which has been shown
        hurry(stopped.code)
        sys.exit(stopped.code)
    except (ConfigError, RunFailed, typer.TyperException) as error:
        message = _usage(error) if isinstance(error, typer.TyperException) else str(error)
        if message:
            typer.echo("\n".join(f"error: {line}" for line in redact(message).splitlines()), err=True)
        code = 2 if isinstance(error, ConfigError) else 1 if isinstance(error, RunFailed) else error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception:
        sys.excepthook = _show_traceback  # in place of typer's own
        raise
    if code == INTERRUPTED:
        typer.echo("interrupted", err=True)
    sys.exit(code)


def _usage(error: typer.TyperException) -> str:
    """What is wrong with a command's words; `--epochs 3` is meant for a setting more often than not."""
    message = error.format_message()
    is_unknown = message.startswith("No such option: --") and "--" not in message.removeprefix("No such option: --")
    return f"{message}; settings are written key=value, such as train.epochs=3" if is_unknown else message


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A mistake of ours, or of a user's component."""
    typer.echo(redact("".join(traceback.format_exception(kind, error, trace))), err=True, nl=False)


def split_arguments(arguments: list[str]) -> tuple[str | None, list[str]]:
    """A command's words as (CONFIG or None, overrides): CONFIG may come first, all others are key=value.

    Raises:
        ConfigError: if another word is no key=value.
    """
    overrides = [word for word in arguments if re.match(r"[^\s=/\\]+=", word)]
    others = [word for word in arguments if word not in overrides]
    if others and others[0] == arguments[0]:
        name, *others = others
    else:
        name = None
    if others:
        rule = "settings are written key=value, and CONFIG is one word in front of them"
        raise ConfigError("\n".join(f"{word!r} is neither CONFIG nor a setting; {rule}" for word in others))
    return name, overrides


def _load(arguments: list[str] | None, low_resource: bool) -> "RunConfig":
    from raysl.config.load import load_config

    name, overrides = split_arguments(arguments or [])
    extra = [setting for setting in LOW_RESOURCE if low_resource]
    config = load_config(name or DEFAULT_CONFIG, [*extra, *overrides])
    named = any(override.startswith("name=") for override in overrides)
    return replace(config, name=f"{config.name}-low-resource") if low_resource and not named else config


def _set_up_logging(verbose: bool) -> None:
    set_up_logging()
    if verbose:
        os.environ["RAYSL_VERBOSE"] = "1"


def _show_version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(f"raysl {version('raysl')}")
        except PackageNotFoundError:
            typer.echo("raysl (not installed, run from its source)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


@app.command("config")
def show_config(arguments: Arguments = None) -> None:
    """Print the resolved settings, each with its meaning. The output is itself a configuration file."""
    from raysl.config.docs import annotate
    from raysl.config.load import load_config

    name, overrides = split_arguments(arguments or [])
    typer.echo(annotate(load_config(name or DEFAULT_CONFIG, overrides)), nl=False)


@app.command("pretrain")
def run_pretrain(
    arguments: Arguments = None,
    low_resource: LowResource = False,
    verbose: Verbose = False,
) -> None:
    """Pre-train, measure and report. CONFIG defaults to quickstart: real images, no download.

    Ctrl-C or SIGTERM saves a checkpoint and stops, a second one ends at once; the same command goes on. Exit code 0:
    done, 1: the run failed, 2: the input is wrong, 130: stopped by Ctrl-C, 143: stopped by SIGTERM.
    """
    _set_up_logging(verbose)
    with heeding(), waiting(process_start()) as waits:
        waits.enter("loading libraries")
        config = _load(arguments, low_resource)
        from raysl.train.pretrain import pretrain

        pretrain(config)
    if low_resource:
        typer.echo("note        --low-resource shows that a run works; its numbers say little")


@contextmanager
def _measuring(left: str) -> Iterator[None]:
    """Say what takes the time inside, and what a signal leaves that ends it."""
    with heeding() as signals, waiting(process_start()) as waits:
        signals.left = left
        waits.enter("loading libraries and computing features")
        yield


@app.command("benchmark")
def run_benchmark(
    checkpoint: Checkpoint,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME ...] [key=value ...]",
            help="Benchmarks, their settings such as knn.k=[20,200], and other images such as data=parquet "
            "data.path=/b or data.test=/c; default: the benchmarks and images of the run.",
            show_default=False,
        ),
    ] = None,
    trust_code: TrustCode = False,
    verbose: Verbose = False,
) -> None:
    """Measure a checkpoint beside its untrained backbone and raw pixels, keep the results and write the report."""
    _set_up_logging(verbose)
    words = names or []
    overrides = [word for word in words if "=" in word]
    chosen = [word for word in words if word not in overrides] or None
    with _measuring("the results that are there are kept"):
        from raysl.benchmarks.evaluate import benchmark
        from raysl.report.summary import score_table

        report = benchmark(checkpoint, chosen, overrides, trust_code=trust_code)
    typer.echo(score_table(report.scores))
    typer.echo(f"report      {redact_uri(report.path)}")
    report.check()


@app.command("extract")
def run_extract(
    checkpoint: Checkpoint,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value ...]",
            help="Other images, such as data=parquet data.path=/b or data.test=/c; default: those of the run.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "test",
    out: Annotated[str | None, typer.Option(help="Parquet file to write; default: beside the checkpoint.")] = None,
    trust_code: TrustCode = False,
    verbose: Verbose = False,
) -> None:
    """Write the features of images, by a checkpoint's backbone, to a Parquet file."""
    _set_up_logging(verbose)
    with _measuring("no features were written"):
        from raysl.benchmarks.features import extract

        features = extract(checkpoint, split=split, out=out, trust_code=trust_code, overrides=arguments or [])
    rows, width = features.features.shape
    typer.echo(f"features    {redact_uri(features.path)} ({rows:,} rows of {width})")


@app.command("ingest")
def run_ingest(
    arguments: Arguments = None,
    out: Annotated[
        str | None, typer.Option(metavar="URI", help="Folder to fill, or, with --check, for its lists.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only look: list corrupt and odd images, count the others.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only compare the files in --out with the checksums of its manifest.")
    ] = False,
    resize: Annotated[
        int | None, typer.Option(min=1, help="Short side that larger images are shrunk to; default: none are.")
    ] = None,
    rows_per_file: Annotated[int | None, typer.Option(min=1, help="Images in a file; default: 10,000.")] = None,
    rows_per_group: Annotated[
        int | None, typer.Option(min=1, help="Images that training reads at once; default: 256.")
    ] = None,
    quality: Annotated[
        int | None, typer.Option(min=1, max=100, help="Of the JPEG files that --resize makes; default: 95.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Store the images of a dataset as Parquet files, which `data=parquet` streams.

    A start that was cut off goes on when the command is given again. Images that cannot be decoded are left out and
    listed in corrupt.jsonl; with --check, their presence is exit code 1, and so are damaged files with --verify.
    """
    _set_up_logging(verbose)
    options = {"resize": resize, "rows_per_file": rows_per_file, "rows_per_group": rows_per_group, "quality": quality}
    given = {name: value for name, value in options.items() if value is not None}
    for name in given if check or verify else ():
        only = "--check" if check else "--verify"
        raise ConfigError(f"--{name.replace('_', '-')} has no effect beside {only}, which stores nothing; leave it out")
    if quality is not None and resize is None:
        raise ConfigError("--quality has no effect without --resize, which makes the JPEG files; leave it out")
    if verify:
        return _verify(out, check, arguments)
    if out is None and not check:
        raise ConfigError("where to? give --out a folder or a URI, or --check to only look")
    data = _load(arguments, low_resource=False).data
    from raysl.data.ingest.ray_tasks import on_ray

    if check:
        from raysl.data.ingest.inspect import inspect
        from raysl.storage import Folder

        found = inspect(data, on_ray)
        typer.echo(redact(found.table()))
        if out is not None:
            found.write(Folder(out))
        if found.num_corrupt:
            raise typer.Exit(1)
        return
    from raysl.data.ingest.ingest import ingest
    from raysl.data.ingest.shard import Layout

    assert out is not None
    done = ingest(data, out, Layout(**given), on_ray)
    for name, rows in done.rows.items():
        typer.echo(f"{name:<12}{rows:,} images")
    typer.echo(f"corrupt     {done.num_corrupt:,}" + (" (see corrupt.jsonl)" if done.num_corrupt else ""))
    typer.echo(f"dataset     {redact_uri(done.uri)}" + (" (was complete; nothing changed)" if done.was_done else ""))


def _verify(out: str | None, check: bool, arguments: list[str] | None) -> None:
    if out is None or check or arguments:
        raise ConfigError("--verify compares the files of a finished ingest; give --out its folder, and nothing else")
    from raysl.addresses import absolute
    from raysl.data.ingest.ingest import verify

    damaged = verify(out)
    for name, problem in damaged.items():
        typer.echo(f"damaged     {name}: {problem}")
    if damaged:
        typer.echo("delete these files and give the `raysl ingest` that wrote them again")
        raise typer.Exit(1)
    typer.echo(f"whole       {redact_uri(absolute(out))}")


@app.command("sweep")
def run_sweep(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SWEEP] [key=value ...]",
            help="Packaged name or .yaml file of a search space, then its settings (trials=4) and those of its runs.",
            show_default=False,
        ),
    ] = None,
    low_resource: LowResource = False,
    verbose: Verbose = False,
) -> None:
    """Run a search over settings and print its leaderboard. SWEEP defaults to sweep/quickstart."""
    _set_up_logging(verbose)
    from raysl.config.space import load_sweep
    from raysl.sweeps import sweep

    name, overrides = split_arguments(arguments or [])
    name = name or DEFAULT_SWEEP
    space, rest = load_sweep(name, overrides)
    own_name = Path(name).stem if name.endswith((".yaml", ".yml")) else name.replace("/", "-")
    board = sweep(_load([space.config, f"name={own_name}", *rest], low_resource), space)
    typer.echo(board.table())
    typer.echo(f"leaderboard {redact_uri(board.path)}")


@app.command("list")
def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="methods, backbones, sources, transforms, benchmarks, optimizers or configs.",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of objects.")] = False,
) -> None:
    """List what a setting can name, with its class and what it is."""
    from raysl.config.names import KINDS, names_of

    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"no list {kind!r}; {hint}Known: {', '.join(KINDS)}")
    rows = names_of(kind)
    if as_json:
        typer.echo(json.dumps([{"name": name, "class": where, "doc": doc} for name, where, doc in rows], indent=2))
        return
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for name, where, doc in rows:
        typer.echo(f"{name:<{widths[0]}}  {where:<{widths[1]}}  {doc}".rstrip())


@report_app.command("views")
def run_report_views(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [key=value ...]",
            help="A configuration, for the views of its method on its data, then settings such as data=photos.",
            show_default=False,
        ),
    ] = None,
    num: Annotated[int, typer.Option(min=1, help="Samples.")] = 6,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs, from the first on.")] = 2,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("views.html"),
    verbose: Verbose = False,
) -> None:
    """Show what a method sees: its recipe, and the views of some images in some epochs."""
    _set_up_logging(verbose)
    from raysl.report.views import write_views

    name, overrides = split_arguments(arguments or [])
    path = write_views(name or DEFAULT_CONFIG, overrides, out, num, epochs)
    typer.echo(f"views       {path}")


@speed_app.command("step")
def run_speed_step(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Training steps that a turn times.")] = 3,
    verbose: Verbose = False,
) -> None:
    """Compare raysl's loop, alone and on Ray Train, with a bare torch loop on the same CPUs."""
    _set_up_logging(verbose)
    from raysl.speed.numbers import check_writable, write
    from raysl.speed.step import measure_step, step_table

    check_writable(json_file)
    numbers = measure_step(repeats=repeats, steps=steps)
    write(json_file, numbers)
    typer.echo(step_table(numbers))


@speed_app.command("start")
def run_speed_start(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Starts.")] = 3,
    verbose: Verbose = False,
) -> None:
    """Time from `raysl pretrain` to its first training step, and say where the seconds go."""
    _set_up_logging(verbose)
    from raysl.speed.numbers import check_writable, write
    from raysl.speed.start import measure_start, start_table

    check_writable(json_file)
    numbers = measure_start(repeats=repeats)
    write(json_file, numbers)
    typer.echo(start_table(numbers))


@speed_app.command("recovery")
def run_speed_recovery(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs that lose their worker, then their driver.")] = 3,
    verbose: Verbose = False,
) -> None:
    """Time what a run loses when its training worker is killed, and when its driver is. Linux only."""
    _set_up_logging(verbose)
    from raysl.speed.numbers import check_writable, write
    from raysl.speed.recovery import measure_recovery, recovery_table

    check_writable(json_file)
    numbers = measure_recovery(repeats=repeats)
    write(json_file, numbers)
    typer.echo(recovery_table(numbers))


@speed_app.command("pipeline")
def run_speed_pipeline(
    json_file: JsonFile = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds that a turn measures.")] = 3.0,
    size: Annotated[int | None, typer.Option(help="Side of the views, 32 or 224; default: both.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of each contender; default: one a CPU.")] = None,
    verbose: Verbose = False,
) -> None:
    """Compare the way from encoded images to views with torchvision's and lightly's, on the same CPUs."""
    _set_up_logging(verbose)
    from raysl.speed.numbers import check_writable, write
    from raysl.speed.pictures import STORED
    from raysl.speed.pipeline import measure_pipeline, pipeline_table

    if size is not None and size not in STORED:
        raise ConfigError(f"--size {size}: there are pictures for {' and '.join(map(str, STORED))}")
    check_writable(json_file)
    sizes = tuple(STORED) if size is None else (size,)
    numbers = measure_pipeline(sizes=sizes, repeats=repeats, seconds=seconds, threads=threads)
    write(json_file, numbers)
    typer.echo(pipeline_table(numbers))


@speed_app.command("order")
def run_speed_order(
    json_file: JsonFile = None,
    rows: Annotated[int, typer.Option(min=1, help="Images of the simulated dataset.")] = 1_000_000_000,
    world: Annotated[int, typer.Option(min=1, help="Simulated workers.")] = 1024,
    verbose: Verbose = False,
) -> None:
    """Simulate the sample order of a large run: memory of a process, seconds to its first batch."""
    _set_up_logging(verbose)
    from raysl.speed.numbers import check_writable, write
    from raysl.speed.order import OrderTask, measure_order, order_table

    check_writable(json_file)
    task = OrderTask(rows=rows, world=world, lanes=world, batch_size=32 * world)
    if rows < task.batch_size:
        raise ConfigError(f"--rows {rows} do not fill a batch of {task.batch_size} (32 for each of {world} workers)")
    numbers = measure_order(task, ranks=sorted({0, world // 2, world - 1}))
    write(json_file, numbers)
    typer.echo(order_table(numbers))
