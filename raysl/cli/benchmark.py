"""`raysl benchmark`, `raysl extract` and `raysl cluster`: what a checkpoint is worth, and what it sees."""

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
        from raysl.benchmarks.features.extraction import extract

        features = extract(checkpoint, split=split, out=out, trust_code=trust_code, overrides=arguments or [])
    typer.echo(f"features    {redact_uri(features.path)} ({features.num_rows:,} rows of {features.width})")


def run_cluster(
    checkpoint: Checkpoint,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value ...]",
            help="k=16000 clusters, iters=50 rounds of k-means, pca_dim=256, seed=0, and other images, such as "
            "data=parquet data.path=/b; default: those of the run.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Parquet file to write; default: beside the checkpoint.")] = None,
    trust_code: TrustCode = False,
    verbose: Verbose = False,
) -> None:
    """Cluster training images by a checkpoint's features, for ClusterFit to learn from."""
    set_up(verbose)
    with _measuring("no clusters were written"):
        from raysl.benchmarks.clusters import cluster_images

        found = cluster_images(checkpoint, arguments or [], out, trust_code)
    sizes = found.assignments.clusters.bincount(minlength=found.assignments.num_clusters)
    typer.echo(
        f"clusters    {redact_uri(found.path)} ({len(found.assignments.clusters):,} images in {len(sizes):,} clusters "
        f"of {int(sizes.min()):,} to {int(sizes.max()):,})"
    )


@contextmanager
def _measuring(left: str) -> Iterator[None]:
    """Say what takes the time inside, and what a signal leaves that ends it."""
    with heeding() as signals, waiting(process_start()) as waits:
        signals.left = left
        waits.enter("loading libraries and computing features")
        yield
