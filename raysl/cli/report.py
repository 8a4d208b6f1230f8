"""`raysl report`: pages to look at."""

from pathlib import Path
from typing import Annotated

import typer

from raysl.cli.arguments import DEFAULT_CONFIG, Verbose, require_command, set_up, split_arguments
from raysl.cli.locate import find_config

app = typer.Typer(help="Write pages to look at.", invoke_without_command=True, callback=require_command)


@app.command("views")
def run_report_views(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [key=value ...]",
            help="A configuration, for the views of its method on its data, then settings such as data=photos.",
        ),
    ] = None,
    num: Annotated[int, typer.Option(min=1, help="Samples.")] = 6,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs, from the first on.")] = 2,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("views.html"),
    verbose: Verbose = False,
) -> None:
    """Write a page of a method's recipe of views, with the views of some images in some epochs."""
    set_up(verbose)
    from raysl.preview.views_page import write_views

    name, overrides = split_arguments(arguments or [])
    path = write_views(*find_config(name or DEFAULT_CONFIG, overrides, "report views"), out, num, epochs)
    typer.echo(f"views       {path}")
