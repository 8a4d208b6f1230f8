"""How a sweep shows that it goes on: a live table on a terminal, elsewhere a line a minute."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raysl.errors import log
from raysl.process.screen import console, duration
from raysl.sweeps.record import Record

EVERY_S = 60.0
MOST_NAMED = 8  # running trials in a plain line


class SweepView:
    """Shows the running trials and the state of the sweep, `with view.screen:`.

    Args:
        metric: number that the table shows of each trial.
    """

    def __init__(self, metric: str, every_s: float = EVERY_S) -> None:
        self.metric = metric
        self.every_s = every_s
        self.shown_at = time.monotonic()
        is_terminal = (screen := console()).is_terminal
        self._live = Live(console=screen, refresh_per_second=2, transient=True, redirect_stdout=False)
        self.screen: AbstractContextManager[Any] = self._live if is_terminal else nullcontext()

    def show(self, rows: Sequence[Record], state: str) -> None:
        """Show the running trials, and the state of the sweep in words."""
        if self.screen is self._live:
            self._live.update(self.table(rows, state))
        elif time.monotonic() - self.shown_at >= self.every_s:
            self.shown_at = time.monotonic()
            log.info(plain_line(rows, state))

    def table(self, rows: Sequence[Record], state: str) -> RenderableType:
        """Return the running trials in a table."""
        if not rows:
            return Text(state)
        table = Table(box=None, pad_edge=False, header_style="dim")
        has_nodes = len({node for row in rows for node in row.nodes}) > 1
        for name in ("trial", "settings", *(["nodes"] if has_nodes else []), "", "", "time"):
            table.add_column(name, no_wrap=name != "settings", overflow="ellipsis")
        for row in rows:
            nodes = [" ".join(row.nodes)] if has_nodes else []
            seconds = duration(time.time() - row.began)
            table.add_row(row.trial.name, row.trial.words(), *nodes, row.progress, row.told(self.metric), seconds)
        return Group(table, Text(state))


def plain_line(rows: Sequence[Record], state: str) -> str:
    """Return the state of a sweep and its running trials in one line."""
    named = [
        f"{row.trial.name} ({row.progress}{' on ' + ', '.join(row.nodes) if row.nodes else ''})"
        for row in rows[:MOST_NAMED]
    ]
    more = [f"{len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else []
    return f"{state}; running: {', '.join([*named, *more])}" if rows else state
