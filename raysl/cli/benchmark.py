"""`raysl benchmark`, `raysl extract` and `raysl cluster`: a checkpoint's scores, features and clusters."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysl.cli.arguments import DEFAULT_STORAGE, Checkpoint, TrustCode, Verbose, is_setting, set_up
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
            metavar="[URI ...] [PATH] [NAME ...] [key=value ...]",
            help="Runs or checkpoints, several to compare; the path of other images; benchmarks, their settings such "
            "as knn.k=[20,200] or svm.data=voc2007, and other images for all such as data=parquet data.path=/b; "
            "default: the benchmarks and images of the run.",
        ),
    ] = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(metavar="URI", help="A checkpoint, or a run, whose newest one is used.")
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
    suite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Benchmarks on several datasets with their average: transfer, transfer_finetune, vtab, dense, or a "
            "YAML file of your own; may be given several times.",
        ),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Folder of the suites' datasets; default: data.root, or else $RAYSL_DATA, or ~/data."
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Let torchvision fetch datasets of the suites that are not there.")
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
    _check_names(uris, chosen, watch)
    with _measuring("finished results are kept"):
        from raysl.benchmarks.suite.evaluate import benchmark
        from raysl.benchmarks.suite.several import compare
        from raysl.benchmarks.suite.several import watch as watch_run

        options: dict[str, Any] = {"again": again, "keep_features": keep_features, "download": download}
        options |= {"trust_code": trust_code, "suite": suite, "root": root}
        result: Report | Comparison
        if watch is not None:
            result = watch_run(watch, chosen, overrides, trust_code, suite=suite, root=root)
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
    """Sort the arguments into checkpoints, names of benchmarks (None without any) and settings.

    A path of images is the setting `data=PATH`; several are refused.
    """
    from raysl.components import ALIASES
    from raysl.config.places import data_setting, has_images, is_place, kind_of

    overrides = [word for word in names if is_setting(word)]
    others = [word for word in names if word not in overrides]
    # a benchmark's name stays a benchmark where a folder of that name exists
    further = [
        word for word in others if kind_of(word) == "weights" or (is_place(word) and word not in ALIASES["benchmark"])
    ]
    # local paths alone: a URI is taken for a run or a checkpoint without looking at it
    images = [word for word in further if "://" not in word and kind_of(word) == "images" and has_images(word)]
    if len(images) > 1:
        raise ConfigError(
            f"{', '.join(map(repr, images))} are {len(images)} paths of images; give one, and measure the others by "
            "commands of their own"
        )
    uris = [*checkpoints, *(word for word in further if word not in images)]
    chosen = [word for word in others if word not in further]
    return uris, chosen or None, [*map(data_setting, images), *overrides]


def _check_names(uris: list[str], chosen: list[str] | None, watch: str | None) -> None:
    """Refuse unknown benchmarks, and a command that names nothing to measure."""
    from raysl.components import ALIASES, resolve

    lines, runs = [], []
    for word in dict.fromkeys(chosen or []):
        if word not in ALIASES["benchmark"] and (run := _run_named(word)):
            runs.append(run)
            lines.append(f"{word!r} is no benchmark, but a run: type `raysl benchmark {run}`")
        elif ":" not in word and word not in ALIASES["benchmark"]:
            try:
                resolve("benchmark", word)
            except ConfigError as error:
                lines.append(str(error))
    if bool(uris) == bool(watch) and not runs:
        many = "; give one of the two" if uris else ""
        way = "as in `raysl benchmark runs/mine`; --list shows the benchmarks"
        lines.append(f"name a run or a checkpoint to measure, or --watch RUN{many}, {way}")
    lines += [line for uri in uris for line in _problems_of(uri, "benchmark")]
    if lines:
        raise ConfigError("\n".join(lines))


def _run_named(word: str) -> str | None:
    """Return the path of the run of this name in the default storage; None where there is none."""
    from raysl.config.places import kind_of

    path = f"{DEFAULT_STORAGE}/{word}"
    return shlex.quote(path) if kind_of(path) == "run" else None


def _problems_of(uri: str, command: str) -> Iterator[str]:
    """Yield the line to type where something else than a run or a checkpoint is given."""
    from raysl.checkpoint.checkpoint_folder import ADVICE
    from raysl.config.config_files import expand
    from raysl.config.places import has_images, kind_of
    from raysl.storage.addresses import absolute
    from raysl.trained import trained_hint

    kind, quoted = kind_of(uri), shlex.quote(uri)
    if kind == "nothing" or (kind == "weights" and "://" not in uri and not os.path.exists(expand(uri))):
        hint = f"did you mean {run}? Else " if (run := _run_named(uri)) else ""
        yield f"no checkpoint at {absolute(expand(uri))!r}; {hint}{ADVICE}{trained_hint()}"
    elif kind == "weights":
        yield (
            f"{uri!r} is a file of weights; `raysl convert {quoted} --out runs/theirs` makes a run of it, then type "
            f"`raysl {command} runs/theirs PATH_OF_IMAGES`"
        )
    elif kind == "images" and "://" not in uri and has_images(uri):
        yield f"{uri!r} is no run or checkpoint; give one, and images after it: `raysl {command} runs/mine {quoted}`"


def _one_checkpoint(arguments: list[str], checkpoint: str | None, command: str) -> tuple[str, list[str]]:
    """Return the checkpoint of a command and its settings; a path of images is the setting `data=PATH`."""
    from raysl.config.places import data_setting, is_place

    settings = [word for word in arguments if is_setting(word)]
    others = [word for word in arguments if word not in settings]
    lines = []
    if checkpoint is None and others:
        checkpoint = others.pop(0)
    if checkpoint is None:
        lines.append(f"give a run or a checkpoint: `raysl {command} runs/mine`")
    else:
        lines += _problems_of(checkpoint, command)
    images, *stray = others if others and is_place(others[0]) else [None, *others]
    lines += [
        f"{word!r} is neither a path of images nor a setting; write settings as key=value" for word in stray if word
    ]
    if lines:
        raise ConfigError("\n".join(lines))
    assert checkpoint is not None
    return checkpoint, settings if images is None else [data_setting(images), *settings]


def run_extract(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URI] [PATH] [key=value ...]",
            help="The run or checkpoint; then other images by their path, or by settings such as data=parquet "
            "data.path=/b or data.test=/c; default: those of the run.",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="train or test (val means test); default: test, and train of other images without test images."
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Parquet folder to write; default: beside the checkpoint.")] = None,
    stage: Annotated[str, typer.Option(help="Name of a stage, averaged over all positions.")] = "",
    dtype: Annotated[str, typer.Option(help="Type of the stored numbers, fp32 or fp16.")] = "fp32",
    trust_code: TrustCode = False,
    verbose: Verbose = False,
) -> None:
    """Write the features that a checkpoint's backbone computes for images to a folder of Parquet files."""
    set_up(verbose)
    uri, overrides = _one_checkpoint(arguments or [], checkpoint, "extract")
    with _measuring("the same command continues with the features written so far"):
        from raysl.benchmarks.features.extract import extract

        features = extract(
            uri,
            split=split,
            out=out,
            trust_code=trust_code,
            overrides=overrides,
            stage=stage,
            dtype=dtype,  # type: ignore[arg-type]
        )
    typer.echo(f"features    {redact_uri(features.path)} ({features.num_rows:,} rows of {features.width})")


def run_cluster(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URI] [PATH] [key=value ...]",
            help="The run or checkpoint; k=16000 clusters, iters=50 rounds of k-means, pca_dim=256, seed=0, and other "
            "images, such as data=parquet data.path=/b; default: those of the run.",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    out: Annotated[str | None, typer.Option(help="Parquet file to write; default: beside the checkpoint.")] = None,
    trust_code: TrustCode = False,
    verbose: Verbose = False,
) -> None:
    """Cluster training images by a checkpoint's features, for ClusterFit to learn from."""
    set_up(verbose)
    uri, overrides = _one_checkpoint(arguments or [], checkpoint, "cluster")
    with _measuring("no clusters were written"):
        from raysl.benchmarks.clusters import cluster_images

        result = cluster_images(uri, overrides, out, trust_code)
    clusters = result.assignments.clusters
    sizes = clusters.bincount(minlength=result.assignments.num_clusters)
    typer.echo(
        f"clusters    {redact_uri(result.path)} ({len(clusters):,} images in {len(sizes):,} clusters "
        f"of {int(sizes.min()):,} to {int(sizes.max()):,})"
    )


@contextmanager
def _measuring(after_interruption: str) -> Iterator[None]:
    """Show what the process waits for inside the block, and after an interruption what it leaves behind."""
    with handling_signals() as signals, waiting(process_start()) as waits:
        signals.left = after_interruption
        waits.enter("loading libraries")
        with signals.loading():
            import raysl.benchmarks.suite.evaluate  # noqa: F401
        yield
