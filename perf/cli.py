"""`python -m perf`: how fast raysl is on this machine."""

import json
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from perf.harness import Numbers, check_writable
from raysl.cli.arguments import Verbose, set_up

app = typer.Typer(help="Measure how fast raysl is on this machine.", no_args_is_help=True)

JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers there too.", show_default=False)
]
Repeats = Annotated[int, typer.Option(min=1, help="Turns of each contender.")]
CoreCases = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A case such as dino/parquet; again for more.")
]
LossCases = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A case such as nt_xent; again for more.")]
BenchmarkCases = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A case such as knn; again for more.")]
SweepCases = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A case such as overhead; again for more.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of each contender; default: one a CPU.")]
COMMON = {"json_file": (JsonFile, None), "verbose": (Verbose, False)}
"""Types and defaults of the options that every measurement has."""


def measurement(options: Callable[..., Numbers]) -> Callable[..., None]:
    """Register `python -m perf NAME`: `perf.NAME.measure` takes the options of a function, `perf.NAME.table` shows.

    Only the module of the measurement that runs is imported.
    """
    name = options.__name__

    @wraps(options)
    def run(json_file: Path | None, verbose: bool, **arguments: Any) -> None:
        set_up(verbose)
        check_writable(json_file)
        module = import_module("perf.peers.measure" if name == "peers" else f"perf.{name}")
        numbers = module.measure(**options(**arguments))
        if json_file is not None:
            json_file.write_text(json.dumps(numbers, indent=1) + "\n")
        typer.echo(module.table(numbers))

    common = [
        Parameter(key, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for key, (kind, default) in COMMON.items()
    ]
    own = signature(options).parameters.values()
    run.__signature__ = signature(options).replace(  # type: ignore[attr-defined]
        parameters=[parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own] + common,
        return_annotation=None,
    )
    app.command(name)(run)
    return run


@measurement
def step(
    repeats: Repeats = 5, steps: Annotated[int, typer.Option(min=1, help="Training steps that a turn times.")] = 3
) -> Numbers:
    """Compare raysl's loop, alone and on Ray Train, with a bare torch loop on the same CPUs."""
    return {"repeats": repeats, "steps": steps}


@measurement
def options(
    model: Annotated[str, typer.Option(help="resnet50 (SimCLR) or vit_s (DINO with crops).")] = "resnet50",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A combination such as 'bf16 compile plain'; again for more."),
    ] = None,
    repeats: Repeats = 3,
    batch_size: Annotated[int, typer.Option(min=4, help="Images in a step.")] = 8,
    threads: Threads = None,
) -> Numbers:
    """Compare steps in fp32 and bf16, channels last, compiled, recomputed and accumulated with plain ones."""
    return {"model": model, "names": only, "repeats": repeats, "batch_size": batch_size, "threads": threads}


@measurement
def start(repeats: Repeats = 3) -> Numbers:
    """Time from `raysl pretrain` to its first training step, say where the seconds go, and compare with Ray Train."""
    return {"repeats": repeats}


@measurement
def recovery(
    repeats: Annotated[int, typer.Option(min=1, help="Runs that lose their worker, then their driver.")] = 3,
) -> Numbers:
    """Time what a run loses when its training worker is killed, and when its driver is. Linux only."""
    return {"repeats": repeats}


@measurement
def pipeline(
    repeats: Repeats = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds that a turn measures.")] = 3.0,
    size: Annotated[int | None, typer.Option(help="Side of the views, 32 or 224; default: both.")] = None,
    threads: Threads = None,
    only: Annotated[str | None, typer.Option(metavar="LETTERS", help="Contenders, such as df; default: all.")] = None,
    beside: Annotated[Path | None, typer.Option(metavar="CHECKOUT", help="Another version of raysl.")] = None,
) -> Numbers:
    """Compare the way from encoded images to views with torchvision's and lightly's, on the same CPUs."""
    sizes = {} if size is None else {"sizes": (size,)}
    return {"only": only, "repeats": repeats, "seconds": seconds, "threads": threads, "beside": beside, **sizes}


@measurement
def cores(
    repeats: Repeats = 5,
    batches: Annotated[int, typer.Option(min=1, help="Batches that a turn times.")] = 2,
    only: CoreCases = None,
) -> Numbers:
    """Count the images a second that one CPU core makes for SimCLR and DINO, from each kind of storage."""
    return {"names": only or (), "repeats": repeats, "batches": batches}


@measurement
def loss(
    repeats: Repeats = 5,
    only: LossCases = None,
    memory: Annotated[bool, typer.Option(help="Measure memory too, in processes of their own.")] = True,
) -> Numbers:
    """Compare the losses, Sinkhorn-Knopp, k-means and a teacher's update with lightly's, faiss and plain forms."""
    return {"names": only or (), "repeats": repeats, "with_memory": memory}


@measurement
def benchmark(
    repeats: Repeats = 3,
    only: BenchmarkCases = None,
    quick: Annotated[bool, typer.Option("--quick", help="About a tenth of everything.")] = False,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="A size such as keys=100000; again for more.")
    ] = None,
) -> Numbers:
    """Compare kNN, linear probes, SVMs and extraction with scikit-learn, faiss and plain forms; memory beside."""
    from perf.classifiers import QUICK, Sizes, with_changes

    return {"names": only or (), "repeats": repeats, "sizes": with_changes(QUICK if quick else Sizes(), size or [])}


@measurement
def order() -> Numbers:
    """Count the bytes that runs of ImageNet's shape read beside those they use, and how well they shuffle."""
    return {}


@measurement
def scale() -> Numbers:
    """Count the data of large runs through, and measure the stream of a rank."""
    return {}


@measurement
def memory() -> Numbers:
    """Watch the memory of all processes of a long run, to see whether it grows. Linux only."""
    return {}


@measurement
def sweep(
    repeats: Repeats = 3,
    only: SweepCases = None,
    trials: Annotated[int, typer.Option(min=2, help="Trials of a sweep that is compared with bare runs.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Trials of a few steps alone.")] = False,
) -> Numbers:
    """Compare trials with bare runs, count trials an hour, and time the start of a sweep of a thousand."""
    return {"names": only or (), "repeats": repeats, "trials": trials, "is_quick": quick}


@measurement
def peers(
    data: Annotated[Path, typer.Option(metavar="FOLDER", help="CIFAR-10 as Parquet files.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A result of each run; those that are there stay.")],
    only: Annotated[list[str] | None, typer.Option(metavar="METHOD", help="Such as simclr; again for more.")] = None,
    library: Annotated[
        list[str] | None, typer.Option(metavar="LIBRARY", help="Such as lightly; again for more.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method in each library.")] = 2,
    images: Annotated[int, typer.Option(min=256, help="Training images.")] = 10_000,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over them.")] = 8,
    threads: Annotated[int, typer.Option(min=1, help="Of each process.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
) -> Numbers:
    """Compare what raysl, lightly and stable-pretraining learn from the same images with the same budget."""
    sizes = {"seeds": seeds, "images": images, "epochs": epochs, "threads": threads, "jobs": jobs}
    return {"data": data, "folder": out, "methods": only or (), "libraries": library or (), **sizes}
