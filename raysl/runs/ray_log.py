"""Log a line for each failure on the driver of a run; the messages of Ray go to a file of the run."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from raysl.cluster.board import Board
from raysl.cluster.connection import hearing
from raysl.cluster.failures import describe_message
from raysl.errors import StorageError, log
from raysl.redact import redact
from raysl.runs.failures import Failure, FailureNotes
from raysl.runs.folder import RunFolder
from raysl.train.file_names import EVENTS_FILE, event_line, parse_events

RAY_LOG = "ray.log"
MAX_CHARACTERS = 1_000_000  # of the file


@contextmanager
def reporting_failures(folder: RunFolder, board: Board) -> Iterator["FailureReporter"]:
    """Log each failure in one line inside the block, and add all of them to the run's events at its end.

    The messages of Ray go to `ray.log` in the run's folder.
    """
    reporter = FailureReporter(folder, board)
    try:
        with hearing(reporter.hear):
            yield reporter
    finally:
        reporter.close()


class FailureReporter:
    """Logs the failures that the controller of a run notes on its board, and those that Ray prints."""

    def __init__(self, folder: RunFolder, board: Board) -> None:
        self.folder = folder
        self.board = board
        self.notes = FailureNotes(board)
        self.ray_log = RayLog(folder)
        self.reported: dict[str, Failure] = {}

    def poll(self) -> None:
        """Log new failures; to be called several times a second."""
        for name in self.notes.names():
            if name not in self.reported:
                self.reported[name] = failure = self.notes.read(name)
                self.ray_log.add(f"{failure.text}\n{failure.dump}")
                # a failure that ends the run is raised as an error
                if failure.end is None:
                    log.warning(failure.text)

    def hear(self, text: str) -> None:
        """Note a failure that Ray prints, or add other text to `ray.log`; any thread may call this."""
        if line := describe_message(text, self.notes.pids()):
            self.notes.add(Failure(time.time(), line, text))
        else:
            self.ray_log.add(text)

    def close(self) -> None:
        """Add the failures to the run's events, which no worker writes any more."""
        # a run that is stopped may have ended its cluster by now
        if self.board.is_there:
            self.poll()
            self.board.clear()
        try:
            events = self.folder.read_if_there(EVENTS_FILE)
            if new := note_failures(events, list(self.reported.values())):
                self.folder.write(EVENTS_FILE, events + new)
        except StorageError as error:
            log.warning("the events of the run lack what was lost: %s", error)
        self.ray_log.close()


class RayLog:
    """The file `ray.log` of a run, written by a thread of its own, so that a slow storage delays nobody."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.new: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._write, name="raysl-ray-log", daemon=True)
        self.thread.start()

    def add(self, text: str) -> None:
        """Add a text, with the time."""
        self.new.put(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {redact(text.rstrip())}\n\n")

    def close(self, timeout_s: float = 2.0) -> None:
        """Wait until everything is written, but not for long."""
        self.new.put(None)
        self.thread.join(timeout_s)

    def _write(self) -> None:
        texts: list[str | None] = []
        while None not in texts:
            texts = [self.new.get()]
            while not self.new.empty():
                texts.append(self.new.get())
            if text := "".join(filter(None, texts)):
                self._append(text)

    def _append(self, text: str) -> None:
        try:
            # buckets cannot append to a file, so all of it is written again, less what is too old to be kept
            content = self.folder.read_if_there(RAY_LOG) + text.encode()
            self.folder.write(RAY_LOG, content[-MAX_CHARACTERS:])
        except StorageError as error:
            log.warning("what Ray says is not in %s: %s", self.folder.uri_of(RAY_LOG), error)


def note_failures(events: bytes, failures: list[Failure]) -> bytes:
    """Return lines for failures that are not in the events of a run yet."""
    noted = {note.get("time") for note in parse_events(events) if note.get("kind") == "failure"}
    return b"".join(
        event_line(failure.text, "failure", at=failure.time) for failure in failures if failure.time not in noted
    )
