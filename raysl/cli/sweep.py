"""`raysl sweep`."""

from typing import TYPE_CHECKING, Annotated

import typer

from raysl.cli.arguments import DEFAULT_STORAGE, DEFAULT_SWEEP, LowResource, Verbose, load_run, set_up, split_arguments
from raysl.cli.locate import refuse_run
from raysl.errors import ConfigError
from raysl.redact import redact_uri

if TYPE_CHECKING:
    from raysl.sweeps.run import SweepRun


def run_sweep(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SWEEP] [key=value ...]",
            help="Packaged name or .yaml file of a search space, then its settings (trials=4) and those of its runs.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the trials and their cost, and start none.")] = False,
    status: Annotated[
        str | None, typer.Option(metavar="NAME", help="Show the state of the sweep of this name (in storage=).")
    ] = None,
    watch: Annotated[
        str | None, typer.Option(metavar="NAME", help="Follow the sweep of this name until its end.")
    ] = None,
    low_resource: LowResource = False,
    verbose: Verbose = False,
) -> None:
    """Run a search over settings and print its leaderboard. SWEEP defaults to sweep/quickstart."""
    set_up(verbose)
    name, overrides = split_arguments(arguments or [])
    if status is not None or watch is not None:
        if name is not None or (status is not None and watch is not None):
            raise ConfigError("--status NAME and --watch NAME take no other arguments than storage=")
        _show(status or watch or "", overrides, is_watched=watch is not None)
        return
    run = _load(name or DEFAULT_SWEEP, overrides, low_resource)
    if dry_run:
        _list(run)
        return
    from raysl.leaderboard.best import verdict
    from raysl.process.signals import handling_signals

    with handling_signals() as signals:
        board = run.run(signals)
    typer.echo(board.table())
    if comparison := verdict(board):
        typer.echo(f"verdict     {comparison}")
    typer.echo(f"leaderboard {redact_uri(board.path)}")


def _load(name: str, overrides: list[str], low_resource: bool) -> "SweepRun":
    from raysl.sweeps.load import load_starts, load_sweep, measured_starts
    from raysl.sweeps.run import SweepRun

    refuse_run(name)
    space, rest = load_sweep(name, overrides)
    if space.checkpoints:  # measured_starts has used the other overrides
        starts = measured_starts(space, rest)
        rest = [word for word in rest if word.startswith("seed=")]
    else:
        starts = load_starts(space, rest, lambda arguments: load_run(arguments, low_resource))
    base = load_run([space.first_config, *space.settings, *rest], low_resource)
    return SweepRun.of(base, space, starts)


def _list(run: "SweepRun") -> None:
    from raysl.sweeps.progress import outdated, trial_lines

    run.check_folder()
    run.current_board()
    records = run.progress.records
    for line in [*trial_lines(records), *outdated(records, run.measures)]:
        typer.echo(line)
    typer.echo(run.progress.outlook(run.trained, run.sweep.concurrent or 1))


def _show(name: str, overrides: list[str], is_watched: bool) -> None:
    from raysl.leaderboard.status import Status, status_of, watch
    from raysl.storage.addresses import join

    storage = DEFAULT_STORAGE
    for override in overrides:
        key, _, value = override.partition("=")
        if key != "storage":
            raise ConfigError(f"{override!r} does not apply to --status and --watch; only storage= does")
        storage = value
    uri = join(storage, name)

    def tell(status: Status) -> None:
        if status.board is not None and status.board.entries:
            typer.echo(status.board.table())
        typer.echo(status.line())

    if is_watched:
        watch(uri, tell)
    else:
        tell(status_of(uri))
