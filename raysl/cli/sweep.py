"""`raysl sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from raysl.cli.arguments import LowResource, Verbose, load_run, set_up, split_arguments
from raysl.redact import redact_uri

DEFAULT_SWEEP = "sweep/quickstart"


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
    set_up(verbose)
    from raysl.sweep_space import load_starts, load_sweep
    from raysl.sweeps import sweep

    name, overrides = split_arguments(arguments or [])
    name = name or DEFAULT_SWEEP
    space, rest = load_sweep(name, overrides)
    own_name = Path(name).stem if name.endswith((".yaml", ".yml")) else name.replace("/", "-")
    starts = load_starts(space, rest, lambda words: load_run(words, low_resource))
    first = [*space.configs, space.config][0]
    base = load_run([first, *space.settings, f"name={own_name}", *rest], low_resource)
    board = sweep(base, space, starts)
    typer.echo(board.table())
    typer.echo(f"leaderboard {redact_uri(board.path)}")
