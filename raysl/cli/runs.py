"""`raysl runs`: all runs under a storage."""

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysl.cli.arguments import DEFAULT_STORAGE, set_up, show_json
from raysl.process.screen import duration

if TYPE_CHECKING:
    from raysl.leaderboard.run_summary import RunSummary


def run_runs(
    storage: Annotated[str, typer.Argument(metavar="[STORAGE]", help="A folder or a URI with runs.")] = DEFAULT_STORAGE,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Only runs where this holds, such as method=dino, state=failed or 'optim.lr>=0.1'; may be repeated.",
        ),
    ] = None,
    show: Annotated[
        str | None,
        typer.Option(
            metavar="KEY,...",
            help="Numbers and settings to show, such as knn/k20/top1,optim.lr; default: the loss and the online kNN.",
        ),
    ] = None,
    best: Annotated[
        str | None, typer.Option(metavar="KEY", help="Sort by this number or setting, the largest first.")
    ] = None,
    least: Annotated[
        str | None, typer.Option(metavar="KEY", help="Sort by this number or setting, the smallest first.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of objects.")] = False,
    as_page: Annotated[
        bool, typer.Option("--page", help="Write runs.html into the storage: a table, and curves side by side.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show that page at an address of this machine, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --serve; 0 takes a free one.")] = 8264,
) -> None:
    """List the runs under a storage: their state, where they are, and their numbers. The last changed come first.

    Exit code 0: done, 2: the input is wrong.
    """
    set_up(False)
    from raysl.errors import ConfigError
    from raysl.leaderboard.run_list import as_row, check_keys, find_runs, value_of
    from raysl.report.contents import online_names

    if best is not None and least is not None:
        raise ConfigError("--best and --least exclude each other; give one")
    if as_json + as_page + serve > 1:
        raise ConfigError("--json, --page and --serve exclude each other; give one")
    columns = [key.strip() for key in (show or "").split(",") if key.strip()]
    if as_page or serve:
        _page(storage, where or [], columns, best, least, port if serve else None)
        return
    runs = find_runs(storage, where or [])
    check_keys(runs, [*columns, *filter(None, (best, least))])
    if show is None:
        columns = ["loss", *online_names(name for run in runs for name in run.metrics)]
    if key := best or least:
        columns = [key, *(column for column in columns if column != key)]
        runs = [run for run in runs if _is_number(value_of(run, key))]
        runs.sort(key=lambda run: value_of(run, key), reverse=best is not None)
    if as_json:
        show_json([as_row(run) for run in runs])
    elif not runs:
        typer.echo(f"no runs in {storage}" + (" for which that holds" if where or key else ""))
    else:
        for line in _table(runs, columns):
            typer.echo(line)


def _page(
    storage: str, where: list[str], show: list[str], best: str | None, least: str | None, port: int | None
) -> None:
    from raysl.benchmarks.suite.protocols import stored_protocols
    from raysl.leaderboard.entry import Objective
    from raysl.leaderboard.of_runs import RunsPage
    from raysl.leaderboard.serve import RunsServer

    key = best or least
    objective = Objective(key, "max" if best else "min") if key else None
    pages = RunsPage(storage, where, show, objective, stored_protocols)
    if port is None:
        typer.echo(f"page        {pages.write()}")
        return
    pages.board()  # a storage that is not there is told before anything is served
    with RunsServer(pages, port) as server:
        typer.echo(f"page        {server.url}    Ctrl-C ends")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _table(runs: list["RunSummary"], columns: list[str]) -> list[str]:
    """Return the lines of the table, numbers to the right."""
    from raysl.leaderboard.run_list import value_of
    from raysl.report.summary import aligned

    has_datasets = len({run.dataset for run in runs}) > 1
    head = ["run", "state", "method", *(["dataset"] * has_datasets), "step", "epoch", "left", "changed", *columns]
    rows = [
        [
            run.name,
            run.state,
            run.method,
            *([run.dataset] * has_datasets),
            str(run.step),
            f"{run.epoch:.4g}/{run.epochs}",
            "" if run.left_s is None else duration(run.left_s),
            "" if run.updated is None else f"{_ago(time.time() - run.updated)} ago",
            *(_shown(value_of(run, column)) for column in columns),
        ]
        for run in runs
    ]
    first, *others = aligned([head, *rows], num_names=3 + has_datasets)
    lines = [first]
    for run, line in zip(runs, others, strict=True):
        lines += [line, f"    {_first_line(run.reason)}"] if run.reason else [line]
    return lines


def _ago(seconds: float) -> str:
    return duration(seconds) if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _first_line(text: str) -> str:
    line = text.splitlines()[0]
    return line if len(line) <= 160 else f"{line[:157]}..."
