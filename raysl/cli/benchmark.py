"""`raysl benchmark`, `raysl extract` and `raysl cluster`: a checkpoint's scores, features and clusters."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysl.cli.arguments import Checkpoint, TrustCode, Verbose, set_up
from raysl.errors import ConfigError
from raysl.process.signals import handling_signals
from raysl.process.waiting import process_start, waiting
from raysl.redact import redact_uri

if TYPE_CHECKING:
    from raysl.benchmarks.suite.evaluate import Report
    from raysl.benchmarks.suite.several import Comparison


def run_benchmark(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URI ...] [NAME ...] [key=value ...]",
            help="Further checkpoints to compare; benchmarks, their settings such as knn.k=[20,200] or "
            "svm.data=voc2007, and other images for all such as data=parquet data.path=/b or data.test=/c; default: "
            "the benchmarks and images of the run.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="URI", help="A checkpoint, or a run, whose newest one is used.", show_default=False),
    ] = None,
    watch: Annotated[
        str | None, typer.Option(metavar="RUN", help="Measure each checkpoint that this run saves, until its end.")
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Show what each benchmark needs, its protocol and its cost.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure again what was measured before.")] = False,
    keep_features: Annotated[
        bool, typer.Option("--keep-features", help="Keep the features on disk for the next time.")
    ] = False,
    out: Annotated[str | None, typer.Option(help="Folder of the comparison of several checkpoints.")] = None,
    low_resource: Annotated[bool, typer.Option("--low-resource", help="A quick check: 500 images per split.")] = False,
    trust_code: TrustCode = False,
    verbose: Verbose = False,
) -> None:
    """Measure checkpoints beside their untrained backbones and raw pixels, and write results and reports."""
    set_up(verbose)
    if show_list:
        from raysl.benchmarks.suite.settings import benchmark_table

        typer.echo(benchmark_table())
        return
    uris, chosen, overrides = _sort_arguments(names or [], checkpoint or [])
    if low_resource:
        overrides = ["data.limit=500", *overrides]
    if bool(uris) == bool(watch):
        raise ConfigError("give --checkpoint URI, a checkpoint or a run, or --watch RUN; --list shows the benchmarks")
    with _measuring("finished results are kept"):
        from raysl.benchmarks.suite.evaluate import benchmark
        from raysl.benchmarks.suite.several import compare
        from raysl.benchmarks.suite.several import watch as watch_run

        options: dict[str, Any] = {"trust_code": trust_code, "again": again, "keep_features": keep_features}
        result: Report | Comparison
        if watch is not None:
            result = watch_run(watch, chosen, overrides, trust_code)
        elif len(uris) > 1:
            result = compare(uris, chosen, overrides, out, **options)
        else:
            result = benchmark(uris[0], chosen, overrides, **options)
    _show(result)
    result.check()


def _show(result: "Report | Comparison") -> None:
    from raysl.benchmarks.suite.several import Comparison
    from raysl.report.summary import score_table
    from raysl.report.verdict import remarks

    reports = result.reports if isinstance(result, Comparison) else [result]
    for report in reports:
        if isinstance(result, Comparison):
            typer.echo(f"checkpoint  {redact_uri(report.checkpoint)}")
        for line in (score_table(report.scores), *remarks(report.scores)):
            typer.echo(line)
        typer.echo(f"report      {redact_uri(report.path)}")
    if isinstance(result, Comparison):
        typer.echo(f"comparison  {redact_uri(result.path)}")


def _sort_arguments(names: list[str], checkpoints: list[str]) -> tuple[list[str], list[str] | None, list[str]]:
    """Sort the arguments into checkpoints, names of benchmarks (None without any) and settings."""
    overrides = [word for word in names if re.match(r"[^\s=/\\]+=", word)]
    others = [word for word in names if word not in overrides]
    further = [word for word in others if _is_place(word)]
    return [*checkpoints, *further], [word for word in others if word not in further] or None, overrides


def _is_place(word: str) -> bool:
    """Whether a word is the path or URI of a checkpoint, not a benchmark: `module:Class` or `mine/file.py:Class`."""
    if "://" in word or Path(word).expanduser().is_dir():
        return True
    return ":" not in word and re.search(r"[/\\]", word) is not None


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
    out: Annotated[str | None, typer.Option(help="Parquet folder to write; default: beside the checkpoint.")] = None,
    stage: Annotated[str, typer.Option(help="Name of a stage, averaged over all positions.")] = "",
    dtype: Annotated[str, typer.Option(help="Type of the stored numbers, fp32 or fp16.")] = "fp32",
    trust_code: TrustCode = False,
    verbose: Verbose = False,
) -> None:
    """Write the features that a checkpoint's backbone computes for images to a folder of Parquet files."""
    set_up(verbose)
    with _measuring("the same command continues with the features written so far"):
        from raysl.benchmarks.features.extraction import extract

        features = extract(
            checkpoint,
            split=split,
            out=out,
            trust_code=trust_code,
            overrides=arguments or [],
            stage=stage,
            dtype=dtype,  # type: ignore[arg-type]
        )
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

        result = cluster_images(checkpoint, arguments or [], out, trust_code)
    clusters = result.assignments.clusters
    sizes = clusters.bincount(minlength=result.assignments.num_clusters)
    typer.echo(
        f"clusters    {redact_uri(result.path)} ({len(clusters):,} images in {len(sizes):,} clusters "
        f"of {int(sizes.min()):,} to {int(sizes.max()):,})"
    )


@contextmanager
def _measuring(left: str) -> Iterator[None]:
    """Show what the process waits for inside the block; `left` tells what an interruption leaves behind."""
    with handling_signals() as signals, waiting(process_start()) as waits:
        signals.left = left
        waits.enter("loading libraries")
        yield
