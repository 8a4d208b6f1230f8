"""Output for people: log lines and live displays on stderr."""

import logging
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from raysl.errors import log

if TYPE_CHECKING:
    from rich.console import Console


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
    """Show log lines of raysl while inside, unless the program has set up logging itself."""
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


@contextmanager
def warnings_named(name: str) -> Iterator[None]:
    """Put a name before each of raysl's warnings while inside, and show equal ones once.

    Args:
        name: subject of the warnings; empty for none.
    """
    shown: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        text = record.getMessage()
        record.msg, record.args = f"{name}: {text}" if name else text, None
        is_first = text not in shown
        shown.add(text)
        return is_first

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


_shown: int | None = None  # a copy of file descriptor 2, while native code writes to nowhere


def mute_native_code() -> None:
    """Discard what native code, such as Ray's core, writes to stderr from now on; Python's lines still appear.

    Does nothing where RAYSL_VERBOSE=1, or where this process has no stderr.
    """
    global _shown
    if _shown is not None or os.environ.get("RAYSL_VERBOSE") == "1":
        return
    with suppress(OSError, ValueError):
        shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        # Python's lines go to a copy of the screen, as descriptor 2 is about to lead nowhere
        if _descriptor(sys.stderr) == 2:
            sys.stderr = os.fdopen(os.dup(shown), "w", buffering=1, errors="backslashreplace")
        os.dup2(nowhere, 2)
        os.close(nowhere)
        _shown = shown


def unmute_native_code() -> None:
    """Undo `mute_native_code`."""
    global _shown
    if _shown is not None:
        os.dup2(_shown, 2)
        os.close(_shown)
        _shown = None


def stderr_descriptor() -> int:
    """Return the file descriptor of the screen, for lines that Python's stderr cannot take."""
    return 2 if _shown is None else _shown


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # of a notebook
        return None


def console() -> "Console":
    """Return the console for live displays on stderr."""
    from rich.console import Console

    return Console(stderr=True)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    >>> counted(1, "trial"), counted(0, "trial"), counted(1_000, "batch")
    ('1 trial', '0 trials', '1,000 batches')
    """
    return f"{number:,} {plural(noun, number)}"


def named(noun: str, names: Collection[object]) -> str:
    """Return names after their noun.

    >>> named("node", ["10.0.0.1", "10.0.0.2"])
    'nodes 10.0.0.1, 10.0.0.2'
    """
    return f"{plural(noun, len(names))} {', '.join(map(str, names))}"


def plural(noun: str, number: int) -> str:
    """Return a noun in the plural, unless the number is 1."""
    return noun if number == 1 else f"{noun}{'es' if noun.endswith(('ch', 'sh', 's', 'x')) else 's'}"


def duration(seconds: float) -> str:
    """Return a duration for people.

    >>> duration(45), duration(720), duration(11_100)
    ('45 s', '12 min', '3 h 05 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
