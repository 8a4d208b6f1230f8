"""`raysl ingest`."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

import raysl
from raysl.cli.arguments import Arguments, Verbose, load_run, set_up
from raysl.errors import ConfigError, Problems
from raysl.redact import redact, redact_uri


def run_ingest(
    arguments: Arguments = None,
    out: Annotated[
        str | None, typer.Option(metavar="URI", help="Folder of the dataset, or, with --check, of its lists.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write no dataset: list corrupt and odd images, count the others.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only compare the files in --out with the checksums of its manifest.")
    ] = False,
    resize: Annotated[
        int | None, typer.Option(min=1, help="Short side that larger images are shrunk to; default: none are.")
    ] = None,
    rows_per_file: Annotated[int | None, typer.Option(min=1, help="Images in a file; default: 10,000.")] = None,
    rows_per_group: Annotated[
        int | None, typer.Option(min=1, help="Images in a row group, which training reads at once; default: 8 MB.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the random order in which training images are stored; default: 0.")
    ] = None,
    keep_order: Annotated[
        bool, typer.Option("--keep-order", help="Store training images in the order of the source.")
    ] = False,
    quality: Annotated[
        int | None, typer.Option(min=1, max=100, help="Quality of the JPEG files that --resize makes; default: 95.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Store the images of a dataset as Parquet files, which `data=parquet` streams.

    An interrupted ingest continues when the command is given again. Images that cannot be decoded are left out and
    listed in corrupt.jsonl. With --check, corrupt images give exit code 1, with --verify, damaged files.
    """
    set_up(verbose)
    options = {"resize": resize, "rows_per_file": rows_per_file, "rows_per_group": rows_per_group, "quality": quality}
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    # `raysl.ingest` keeps the order of the source where the seed is None
    chosen |= ({} if seed is None else {"seed": seed}) | ({"seed": None} if keep_order else {})
    problems = Problems()
    problems.errors += map(ConfigError, _option_problems(chosen, keep_order and seed is not None, check, verify))
    if verify:
        return _verify(out, check, arguments, problems)
    if out is None and not check:
        problems.errors.append(ConfigError("--out is missing; give a folder or a URI, or --check to write no dataset"))
    with problems.catching():
        data = load_run(arguments, low_resource=False, command="ingest").data
    problems.check()
    if check:
        from raysl.data.ingest.inspect import inspect
        from raysl.data.ingest.on_ray import on_ray
        from raysl.storage.folder import Folder

        inspection = inspect(data, on_ray)
        typer.echo(redact(inspection.table()))
        if out is not None:
            inspection.write(Folder(out))
        if inspection.num_corrupt:
            raise typer.Exit(1)
        return
    assert out is not None
    stored = raysl.ingest(data, out, **chosen)
    for name, rows in stored.rows.items():
        typer.echo(f"{name:<12}{rows:,} images")
    typer.echo(f"corrupt     {stored.num_corrupt:,}" + (" (see corrupt.jsonl)" if stored.num_corrupt else ""))
    typer.echo(f"dataset     {redact_uri(stored.uri)}{' (was complete; nothing changed)' if stored.was_done else ''}")


def _option_problems(chosen: dict[str, Any], has_two_orders: bool, check: bool, verify: bool) -> Iterator[str]:
    """Yield a line for each two options that do not go together."""
    if has_two_orders:
        yield "--seed draws an order, and --keep-order draws none; leave out one of them"
    for name, value in chosen.items() if check or verify else ():
        only = "--check" if check else "--verify"
        option = "keep-order" if name == "seed" and value is None else name.replace("_", "-")
        yield f"--{option} has no effect beside {only}, which stores nothing; leave it out"
    if "quality" in chosen and "resize" not in chosen:
        yield "--quality has no effect without --resize, which makes the JPEG files; leave it out"


def _verify(out: str | None, check: bool, arguments: list[str] | None, problems: Problems) -> None:
    if out is None or check or arguments:
        line = "--verify compares the files of a finished ingest; give --out its folder, and nothing else"
        problems.errors.append(ConfigError(line))
    problems.check()
    assert out is not None
    from raysl.data.ingest.ingest import verify
    from raysl.storage.addresses import absolute

    damaged = verify(out)
    for name, problem in damaged.items():
        typer.echo(f"damaged     {name}: {problem}")
    if damaged:
        typer.echo("delete these files and repeat the `raysl ingest` that wrote them")
        raise typer.Exit(1)
    typer.echo(f"whole       {redact_uri(absolute(out))}")
