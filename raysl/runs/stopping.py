"""Stopping a run that trains in other processes: a signal to the driver becomes a note to its workers.

Where no worker trains (none is there yet, or one is being replaced) there is nothing to save, and the run ends at once.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from raysl.cluster.board import Board
from raysl.errors import ConfigError, RunFailed, Stopped, log
from raysl.process.screen import duration
from raysl.process.signals import Signals
from raysl.runs.failures import FailureNotes
from raysl.runs.folder import STOP_FILE, RunFolder
from raysl.storage.folder import outlast, without_waiting

PATIENCE_S = 30.0
"""Seconds after which a run that was asked to stop says that it still waits for its workers."""


class Stopping:
    """Asks the workers of a run to save a checkpoint and stop, or ends the run where none trains.

    Args:
        left: returns a description of what is kept if the run ends now.
    """

    def __init__(
        self, folder: RunFolder, board: Board, signals: Signals, stop: threading.Event | None, left: Callable[[], str]
    ) -> None:
        self.folder = folder
        self.notes = FailureNotes(board)
        self.signals = signals
        self.stop = stop
        self.left = left
        self.asked_at: float | None = None
        self.patience_s = PATIENCE_S

    @property
    def is_requested(self) -> bool:
        """Whether the run is to stop."""
        return self.signals.received is not None or (self.stop is not None and self.stop.is_set())

    def poll(self) -> None:
        """Act on a request; to be called several times a second by the thread that waits for the workers.

        Raises:
            Stopped: if no worker trains.
        """
        if not self.is_requested:
            return
        _, phase = self.notes.group()
        # by then everything is trained and stored, and the run ends by itself in a moment
        if phase == "done":
            return
        if not self.notes.can_save():
            self.signals.left = self.left()
            raise self.signals.stopped
        if self.asked_at is None:
            self._ask()
        elif time.monotonic() - self.asked_at > self.patience_s:
            waited = duration(time.monotonic() - self.asked_at)
            log.warning("the workers have not stopped for %s; once more to end at once", waited)
            self.patience_s += 60.0

    def _ask(self) -> None:
        self.asked_at = time.monotonic()
        if self.signals.received is not None:
            print("raysl: saving a checkpoint and stopping; once more to end at once", file=sys.stderr, flush=True)
        # in a thread: the caller looks for failures too, and must not wait for a slow storage
        threading.Thread(target=_write_note, args=(self.folder,), name="raysl-ask", daemon=True).start()


@contextmanager
def noting_end(folder: RunFolder) -> Iterator[None]:
    """Note in the run's events why training inside ends before its end, for `raysl runs`."""
    try:
        yield
    except (ConfigError, RunFailed, Stopped) as error:
        kind = "stopped" if isinstance(error, Stopped) else "failed"
        try:
            with without_waiting():  # read by another command, `raysl runs`, where no command is "the same"
                folder.note(str(error).replace("the same command", "the command that started it"), kind)
        except (ConfigError, RunFailed) as unnoted:
            log.warning("the end of the run could not be noted: %s", unnoted)
        raise


def _write_note(folder: RunFolder) -> None:
    try:
        outlast(partial(folder.write, STOP_FILE, b""))
    except ConfigError as error:
        log.error("the workers cannot be asked to save: %s; once more to end at once", error)


def describe_stop(step: int, total: int, saved: str | None, uri: str, reason: str = "") -> str:
    """Return the message of a run that was asked to stop.

    Args:
        reason: reason of the stop and next step, where they are not the user's: what a sweep has noted.
    """
    checkpoint = f"saved {saved}" if saved else "no checkpoint was saved"
    way = reason or f"the same command goes on from there ({uri})"
    return f"stopped at step {step} of {total}; {checkpoint}; {way}"
