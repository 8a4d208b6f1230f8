"""How a signal to the driver ends a run that trains in other processes."""

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
    """While inside, a signal asks the workers to save and stop, once they have made a step; gives whether one came.

    Before their first step there is nothing to save: the signal ends what goes on inside, by KeyboardInterrupt.

    Args:
        folder: of the run.
        signals: those of this process.
        stop: asks for the same as a signal, from another thread; before the first step it waits for that.
    """

    def save() -> bool:
        if not _has_begun(folder):
            return False
        print("raysl: saving a checkpoint and stopping; once more to end at once", file=sys.stderr, flush=True)
        threading.Thread(target=_ask, args=(folder,), name="raysl-ask", daemon=True).start()
        return True

    with signals.saving(save), _heeding(folder, stop):
        yield lambda: signals.asked is not None or (stop is not None and stop.is_set())


@contextmanager
def _heeding(folder: RunFolder, stop: threading.Event | None) -> Iterator[None]:
    """While inside, ask the workers to stop when the event is set and they have made a step."""
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
    """Ask the workers to stop, or say why that cannot be done."""
    try:
        outlast(partial(folder.write, STOP_FILE, b""))
    except ConfigError as error:
        log.error("the workers cannot be asked to save: %s; once more to end at once", error)


def _has_begun(folder: RunFolder) -> bool:
    """Whether the workers have made a step; also where that cannot be told."""
    try:
        return folder.exists(STARTUP_FILE)
    except StorageError:
        return True


def describe_stop(step: int, total: int, saved: str | None, uri: str) -> str:
    """What a run that was asked to stop ends with.

    Args:
        step: updates done.
        total: updates of the run.
        saved: its newest whole checkpoint.
        uri: of the run.
    """
    kept = f"saved {saved}" if saved else "no checkpoint was saved"
    return f"stopped at step {step} of {total}; {kept}; the same command goes on from there ({uri})"
