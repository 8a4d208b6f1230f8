"""What a person at a terminal, or who reads a log, sees of a run: lines on stderr, and what is live above them."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("raysl")


class ToStderr(logging.StreamHandler[TextIO]):
    """Writes to `sys.stderr` as it is at that moment: above a progress bar while there is one."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Where to."""
        return sys.stderr


def set_up_logging() -> None:
    """Show raysl's own lines, and warnings of others, for a command."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[ToStderr()])
    log.setLevel(logging.INFO)


@contextmanager
def logging_shown(show: bool = True) -> Iterator[None]:
    """While inside, raysl's lines are seen; what a program has said of its logging is left as it is.

    Args:
        show: whether to change anything.
    """
    if not show or log.level != logging.NOTSET:
        yield
        return
    handler = None if log.hasHandlers() else ToStderr()
    if handler is not None:
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(logging.NOTSET)
        if handler is not None:
            log.removeHandler(handler)


@contextmanager
def only_errors() -> Iterator[None]:
    """While inside, nothing but errors is logged: what has been told is not told again."""
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def console() -> "Console":
    """For what is live; it knows whether there is a terminal."""
    from rich.console import Console

    return Console(stderr=True)


def duration(seconds: float) -> str:
    """For people: `45 s`, `12 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
