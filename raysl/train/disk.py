"""Writes of training into a folder that may be full, read-only, or gone for a while."""

import errno
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from raysl.errors import StorageError, log
from raysl.process.screen import duration
from raysl.storage.folder import FIRST_PAUSE_S, LONGEST_PAUSE_S, Folder, outlast
from raysl.storage.reads import LASTING, REFUSALS, refusal
from raysl.train.file_names import EVENTS_FILE, append, event_line

Action = Callable[[], object]


class Disk:
    """Writes small files of a run, in order, while training goes on.

    A disk that is full or read-only is remembered, to end the run. While the folder is gone or fails, what is to be
    written waits here.

    Args:
        logs: local folder of these files.
        folder: folder of the run, asked whether it is there; None: any folder is.

    Attributes:
        failure: message with the folder that may not be written to, or None.
    """

    def __init__(self, logs: Path, folder: Folder | None = None) -> None:
        self.logs = logs
        self.failure: str | None = None
        self._folder = folder
        self._late: deque[Action] = deque()
        self._lock = threading.RLock()  # the thread that stores checkpoints notes them here
        self._gone_since: float | None = None
        self._pause_s, self._next_try = FIRST_PAUSE_S, 0.0

    def refuses(self, folder: Path, error: BaseException | None) -> bool:
        """Whether an error, or its cause, is one of `REFUSALS`; remember it if so."""
        if (refused := refusal(error)) is None:
            return False
        self.failure = self.failure or _describe(folder, refused)
        return True

    def write(self, action: Action) -> None:
        """Call what writes into the folder: now, or later if the folder is gone for the moment.

        Args:
            action: called again if it fails, so it must not depend on when it is called.
        """
        with self._lock:
            if self.failure is None:
                self._late.append(action)
                if time.monotonic() >= self._next_try:
                    self._write_late()

    def note(self, event: str, kind: str | None = None, nodes: Sequence[str] = ()) -> None:
        """Add a line to the events of a run, as `note_event`."""
        line = event_line(event, kind, nodes)
        self.write(lambda: append(self.logs / EVENTS_FILE, line))

    def settle(self) -> None:
        """Wait until the folder is there, and everything is written.

        Raises:
            StorageError: if the folder stays away for half an hour.
        """

        def write() -> None:
            self._check_there()
            with self._lock:
                if (error := self._write_late()) is not None:
                    raise error

        if self.failure is None:
            outlast(write)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While inside, remember a write that is refused in place of raising it.

        Raises:
            StorageError: if the folder is gone for the moment.
        """
        try:
            self._check_there()
            yield
            self._check_there()
        except OSError as error:
            if not self.refuses(self.logs, error):
                self._check_there()
                raise

    def _check_there(self) -> None:
        if self._folder is not None:
            self._folder.check_there()

    def _write_late(self) -> StorageError | None:
        """Write what waits; return the error if it has to wait longer."""
        while self._late:
            try:
                with self.writing():
                    self._late[0]()
            except LASTING:  # though the folder is there
                self._late.popleft()
                raise
            except (OSError, StorageError) as error:
                return self._wait(error)
            if self.failure is not None:
                self._late.clear()
                return None
            # removed after it was written, so that a failed action is tried again before those behind it
            self._late.popleft()
            if self._gone_since is not None and not self._late:
                self._end_wait()
        return None

    def _wait(self, error: Exception) -> StorageError:
        failure = error if isinstance(error, StorageError) else StorageError(f"cannot write to {self.logs}: {error}")
        if self._gone_since is None:
            self._gone_since, self._pause_s = time.monotonic(), FIRST_PAUSE_S
            log.warning("%s; training goes on, and its logs are written when the folder is back", failure)
        self._next_try = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return failure

    def _end_wait(self) -> None:
        assert self._gone_since is not None
        waited, self._gone_since, self._next_try = time.monotonic() - self._gone_since, None, 0.0
        line = event_line(f"{self.logs} is back after {duration(waited)}; the logs of that time are written")
        self._late.append(lambda: append(self.logs / EVENTS_FILE, line))


def _describe(folder: Path, error: OSError) -> str:
    from rich.filesize import decimal

    assert error.errno is not None
    what, remedy = REFUSALS[error.errno]
    where = str(folder)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
        where += f" has {decimal(shutil.disk_usage(existing).free)} free"
    return f"{what}: {where}; {remedy}, then the same command goes on"
