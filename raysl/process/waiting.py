"""What a start is waiting for: a live line on a terminal, elsewhere a line for each wait.

Commands load this module before torch and Ray, so it imports neither.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from raysl.errors import log
from raysl.process.screen import console, duration, logging_shown

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

STILL_S = 60.0


class Waiting:
    """Shows what a process is waiting for, and for how long.

    Args:
        since: start of the first wait, in seconds since the epoch.
        still_s: seconds after which a line is repeated where there is no terminal.
    """

    def __init__(self, since: float, show: bool = True, still_s: float = STILL_S) -> None:
        self.since = since
        self.show = show
        self.still_s = still_s
        self._what: str | None = None
        self._detail = ""
        self._entered = since
        self._is_over = False
        self._change = threading.Condition()
        self._live: Live | None = None

    def enter(self, what: str) -> None:
        """Begin to wait for `what`."""
        with self._change:
            if self._is_over or not self.show or what == self._what:
                return
            is_first, self._what, self._entered = self._what is None, what, time.time()
            self._detail = ""
            self._change.notify_all()
        if is_first:
            self._begin()
        if self._live is None:
            log.info("%6.1f s  %s ...", time.time() - self.since, what)

    def narrow(self, what: str) -> None:
        """Replace what is waited for by what is left of it, without a line of its own."""
        self._what = what

    def count(self, num_done: int, total: int, before: int = 0) -> None:
        """Say how much of the present wait is done, and how long the rest takes at that pace.

        Args:
            num_done: number of `total` that is done, those of `before` included.
            before: number of those that were done when the wait began.
        """
        rest_s = (time.time() - self._entered) * (total - num_done) / max(1, num_done - before)
        self._detail = f", {num_done:,} of {total:,}" + (
            f", about {duration(rest_s)} left" if before < num_done < total else ""
        )

    def end(self) -> None:
        """End the waits, and remove the live line."""
        with self._change:
            self._is_over = True
            self._change.notify_all()
        if self._live is not None:
            self._live.stop()

    def _begin(self) -> None:
        screen = console()
        if screen.is_terminal:
            from rich.live import Live

            self._live = Live(console=screen, get_renderable=self._line, transient=True, redirect_stdout=False)
            self._live.start()
        else:
            threading.Thread(target=self._repeat, name="raysl-waiting", daemon=True).start()

    def _line(self) -> "Text":
        from rich.text import Text

        now = time.time()
        return Text(
            f"{self._what}{self._detail} ... {duration(now - self._entered)} ({duration(now - self.since)} in all)"
        )

    def _repeat(self) -> None:
        with self._change:
            while not self._is_over:
                if not self._change.wait(self.still_s):
                    log.info("%6.1f s  still %s%s ...", time.time() - self.since, self._what, self._detail)


_SILENT = Waiting(0.0, show=False)
_active = _SILENT


@contextmanager
def waiting(since: float | None = None, show: bool = True) -> Iterator[Waiting]:
    """Show what this process waits for while inside; inside another such block, use that one.

    Args:
        since: start of the first wait, in seconds since the epoch; default: now.
    """
    global _active
    if _active is not _SILENT:
        yield _active
        return
    with logging_shown(show):
        _active = Waiting(time.time() if since is None else since, show)
        try:
            yield _active
        finally:
            ended, _active = _active, _SILENT
            ended.end()


def enter(what: str) -> None:
    """Begin to wait for `what`, inside a block of `waiting`; elsewhere do nothing."""
    _active.enter(what)


def narrow(what: str) -> None:
    """Replace what is waited for by what is left of it, inside a block of `waiting`; elsewhere do nothing."""
    _active.narrow(what)


def count(num_done: int, total: int, before: int = 0) -> None:
    """Say how much of the present wait is done, inside a block of `waiting`; elsewhere do nothing."""
    _active.count(num_done, total, before)


def process_start() -> float:
    """Return when this program began, in seconds since the epoch, judged by its processor time.

    The process itself may be older: a shell that runs one last command becomes that command.
    """
    return time.time() - time.process_time()
