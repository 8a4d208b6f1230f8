"""Output for people: log lines and live displays on stderr."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("raysl")


class ToStderr(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, so that lines appear above a progress bar."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """The current stderr."""
        return sys.stderr


def set_up_logging() -> None:
    """Show log lines of raysl, and warnings of other packages, for a command."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[ToStderr()])
    log.setLevel(logging.INFO)


@contextmanager
def logging_shown(show: bool = True) -> Iterator[None]:
    """Show log lines of raysl while inside, unless the program has set up logging itself.

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
    """Log nothing but errors while inside, where the same lines were shown before."""
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def console() -> "Console":
    """Return the console for live displays on stderr."""
    from rich.console import Console

    return Console(stderr=True)


def duration(seconds: float) -> str:
    """Return a duration for people.

    >>> duration(45), duration(720), duration(11_100)
    ('45 s', '12 min', '3 h 05 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
