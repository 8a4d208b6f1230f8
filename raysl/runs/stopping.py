"""Stopping a run that trains in other processes: a signal to the driver becomes a note to the workers."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from raysl.errors import ConfigError, StorageError
from raysl.process.signals import Signals
from raysl.runs.folder import STOP_FILE, RunFolder
from raysl.storage.folder import outlast
from raysl.train.files import STARTUP_FILE

log = logging.getLogger("raysl")


LOOK_EVERY_S = 0.5


@contextmanager
def stopping(folder: RunFolder, signals: Signals, stop: threading.Event | None = None) -> Iterator[Callable[[], bool]]:
    """While inside, a signal asks the workers to save and stop; yields a function that tells whether one came.

    Before the first step there is nothing to save: the signal then raises KeyboardInterrupt inside.

    Args:
        folder: of the run.
        signals: of this process.
        stop: asks for the same from another thread; it takes effect after the first step.
    """

    def save() -> bool:
        if not _has_begun(folder):
            return False
        print("raysl: saving a checkpoint and stopping; once more to end at once", file=sys.stderr, flush=True)
        threading.Thread(target=_ask, args=(folder,), name="raysl-ask", daemon=True).start()
        return True

    with signals.saving(save), _heeding(folder, stop):
        yield lambda: signals.received is not None or (stop is not None and stop.is_set())


@contextmanager
def _heeding(folder: RunFolder, stop: threading.Event | None) -> Iterator[None]:
    """While inside, ask the workers to stop once the event is set and they have made a step."""
    if stop is None:
        yield
        return
    has_ended = threading.Event()

    def look() -> None:
        while not has_ended.wait(LOOK_EVERY_S):
            if stop.is_set() and _has_begun(folder):
                _ask(folder)
                return

    threading.Thread(target=look, name="raysl-heed", daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()


def _ask(folder: RunFolder) -> None:
    """Ask the workers to stop, or log why that is impossible."""
    try:
        outlast(partial(folder.write, STOP_FILE, b""))
    except ConfigError as error:
        log.error("the workers cannot be asked to save: %s; once more to end at once", error)


def _has_begun(folder: RunFolder) -> bool:
    """Whether the workers have made a step; True while the storage fails, so that nothing is lost."""
    try:
        return folder.exists(STARTUP_FILE)
    except StorageError:
        return True


def describe_stop(step: int, total: int, saved: str | None, uri: str) -> str:
    """Return the message of a run that was asked to stop.

    Args:
        step: updates done.
        total: updates in the run.
        saved: name of its newest whole checkpoint, or None.
        uri: of the run's folder.
    """
    checkpoint = f"saved {saved}" if saved else "no checkpoint was saved"
    return f"stopped at step {step} of {total}; {checkpoint}; the same command goes on from there ({uri})"
