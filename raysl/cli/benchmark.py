"""`raysl benchmark` and `raysl extract`: what a checkpoint is worth."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from raysl.cli.arguments import Checkpoint, TrustCode, Verbose, set_up
from raysl.redact import redact_uri
from raysl.signals import heeding
from raysl.waiting import process_start, waiting


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
    set_up(verbose)
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
    set_up(verbose)
    with _measuring("no features were written"):
        from raysl.benchmarks.features import extract

        features = extract(checkpoint, split=split, out=out, trust_code=trust_code, overrides=arguments or [])
    rows, width = features.features.shape
    typer.echo(f"features    {redact_uri(features.path)} ({rows:,} rows of {width})")


@contextmanager
def _measuring(left: str) -> Iterator[None]:
    """Say what takes the time inside, and what a signal leaves that ends it."""
    with heeding() as signals, waiting(process_start()) as waits:
        signals.left = left
        waits.enter("loading libraries and computing features")
        yield
