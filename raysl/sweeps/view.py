"""How a sweep shows that it goes on: a live table on a terminal, elsewhere a line a minute."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raysl.errors import log
from raysl.process.screen import console, duration

EVERY_S = 60.0
STARTING, STOPPING, ENDING = "starting", "stopping", "ending"
MOST_NAMED = 8
"""Running trials that a plain line names."""


@dataclass(frozen=True)
class TrialRow:
    """A running trial.

    Args:
        nodes: on which its workers run; empty before its first epoch is logged.
        value: newest number that the sweep looks at, with its name; empty while there is none.
        seconds: since it started.
        phase: activity when it does not train: `STARTING`, `STOPPING`, `ENDING`; else empty.
    """

    name: str
    settings: str
    nodes: tuple[str, ...]
    epoch: float
    epochs: int
    value: str
    seconds: float
    phase: str = ""

    @property
    def progress(self) -> str:
        """Where it is, in words."""
        return self.phase or f"epoch {self.epoch:.3g}/{self.epochs}"


class SweepView:
    """Shows the running trials and the state of the sweep while inside."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self.every_s = every_s
        self.shown_at = time.monotonic()
        self._lock = threading.Lock()
        self._rows: Sequence[TrialRow] = ()
        self._state = ""
        self._updated = time.monotonic()
        screen = console()
        self._live = (
            Live(
                console=screen, get_renderable=self._table, refresh_per_second=2, transient=True, redirect_stdout=False
            )
            if screen.is_terminal
            else None
        )

    def __enter__(self) -> "SweepView":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, rows: Sequence[TrialRow], state: str) -> None:
        """Show the running trials, and the state of the sweep in words."""
        with self._lock:
            self._rows, self._state, self._updated = rows, state, time.monotonic()
        if self._live is None and time.monotonic() - self.shown_at >= self.every_s:
            self.shown_at = time.monotonic()
            log.info(plain_line(rows, state))

    def _table(self) -> RenderableType:
        with self._lock:
            rows, state, since = self._rows, self._state, time.monotonic() - self._updated
        if not rows:
            return Text(state)
        table = Table(box=None, pad_edge=False, header_style="dim")
        has_nodes = len({node for row in rows for node in row.nodes}) > 1
        for name in ("trial", "settings", *(["nodes"] if has_nodes else []), "", "", "time"):
            table.add_column(name, no_wrap=name != "settings", overflow="ellipsis")
        for row in rows:
            nodes = [" ".join(row.nodes)] if has_nodes else []
            table.add_row(row.name, row.settings, *nodes, row.progress, row.value, duration(row.seconds + since))
        return Group(table, Text(state))


def plain_line(rows: Sequence[TrialRow], state: str) -> str:
    """Return the state of a sweep and its running trials in one line."""
    named = [
        f"{row.name} ({row.progress}{' on ' + ', '.join(row.nodes) if row.nodes else ''})" for row in rows[:MOST_NAMED]
    ]
    more = [f"{len(rows) - MOST_NAMED} more"] if len(rows) > MOST_NAMED else []
    return f"{state}; running: {', '.join([*named, *more])}" if rows else state
