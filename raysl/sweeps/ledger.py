"""Track the trials of a running sweep, by the events of Ray Tune and the files in the runs' folders.

A thread reads and writes the storage, so that Tune's loop never waits for it. A slow folder delays its own trial only.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, log
from raysl.runs.folder import RunFolder
from raysl.runs.follow import read_nodes
from raysl.storage.folder import without_waiting
from raysl.storage.outbox import Outbox
from raysl.sweeps.record import Record
from raysl.tune.run_trial import failed_note, make_note
from raysl.tune.trial import Note, Trial

REFRESH_EVERY_S = 2.0
ENDING_S = 20.0  # most seconds that the end of a sweep waits for a storage that fails
ERROR_FILE = "error.txt"


class Ledger:
    """The trials of a sweep, in the order in which they were chosen.

    Attributes:
        on_update: function that the thread calls with each record that has ended, and with None after reading folders.
    """

    def __init__(self, bases: Mapping[str, RunConfig], folder: RunFolder, make: Callable[[Trial], Record]) -> None:
        self.bases = bases
        self.folder = folder
        self.make = make
        self.on_update: Callable[[Record | None], None] = lambda record: None
        self.records: dict[str, Record] = {}  # by run
        self.outbox = Outbox()
        self._logged: set[str] = set()
        self._failing: set[str] = set()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_closing = False
        self._refreshed_at = 0.0
        self._error: BaseException | None = None

    def add(self, trial: Trial) -> Record:
        """Return the record of a trial; a new one is read from the folder of its run."""
        if (record := self.records.get(trial.name)) is None:
            record = self.records[trial.name] = self.make(trial)
            record.refresh(self.folder.child(trial.name))
        return record

    @contextmanager
    def following(self) -> Iterator[None]:
        """Run the thread inside the block; it handles all submitted events before the block ends."""
        self._is_closing, self._error = False, None
        thread = threading.Thread(target=self._work, name="raysl-sweep", daemon=True)
        thread.start()
        end = math.inf
        try:
            yield
        except BaseException:
            end = time.monotonic() + ENDING_S
            raise
        finally:
            self._is_closing = True
            while thread.is_alive() and time.monotonic() < end:
                thread.join(0.2)  # in pieces, so that signals are handled
        if self._error is not None:
            raise self._error

    def submit(self, event: Callable[[], None]) -> None:
        """Have the thread call `event` soon; return at once."""
        self._events.put(event)

    def begin(self, trial: Trial) -> None:
        """Record that a trial has started; log the first start, not a retry."""
        record = self._record(trial)
        record.begin()
        if trial.name not in self._logged:
            self._logged.add(trial.name)
            epoch = f" from epoch {record.before:g}" if record.before else ""
            log.info("%s starts%s: %s", trial.name, epoch, trial.words())

    def fail_once(self, trial: Trial, reason: str, trace: str, number: int, retries: int) -> None:
        """Record a failure of a trial that is tried again.

        Args:
            trace: traceback without credentials.
            number: number of the failure; 0 if it does not count, because the cloud took back a node.
        """
        count = f" (retry {number} of {retries})" if number else ""
        log.warning("%s failed and is tried again%s: %s", trial.name, count, reason)
        self._keep_trace(trial, trace)

    def fail(self, trial: Trial, reason: str, trace: str) -> None:
        """Record that a trial has failed for good."""
        self._record(trial).failure = reason
        self._close(trial, partial(failed_note, reason=reason), Note("failed", 0, reason=reason), math.inf)
        self._keep_trace(trial, trace)

    def stop(self, trial: Trial, epoch: float, reason: str) -> None:
        """Record that the scheduler has stopped a trial."""
        make = partial(make_note, status="stopped", reason=reason, until=epoch)
        self._close(trial, make, Note("stopped", 0, reason=reason), epoch)

    def _close(self, trial: Trial, make: Callable[[RunConfig], Note], fallback: Note, until: float) -> None:
        """Write the note of a trial that ended early: from its run's files, or `fallback` if they cannot be read."""
        record = self._record(trial)
        record.is_running = False
        folder = self.folder.child(trial.name)
        try:
            with without_waiting():
                record.refresh(folder)
                record.note = make(trial.run_of(self.bases, self.folder.uri))
        except ConfigError:
            logged = record.logged
            epoch = min(until, logged.reached)
            record.note = replace(fallback, until=record.epochs, epoch=epoch, metrics=logged.newest(until))
        note = record.note

        def write() -> None:
            folder.make()
            note.write(folder)

        self.outbox.put(f"the note of {trial.name}", write)
        self.on_update(record)

    def end(self, trial: Trial) -> None:
        """Record that a trial has finished, or was stopped together with its sweep."""
        record = self._record(trial)
        record.is_running = False
        self._refresh(record)
        self.on_update(record)

    def _record(self, trial: Trial) -> Record:
        if (record := self.records.get(trial.name)) is None:
            record = self.records[trial.name] = self.make(trial)
            self._refresh(record)
        return record

    def _keep_trace(self, trial: Trial, trace: str) -> None:
        folder = self.folder.child(trial.name)

        def write() -> None:
            if folder.exists():
                folder.write(ERROR_FILE, trace.encode())

        if trace:
            self.outbox.put(f"{ERROR_FILE} of {trial.name}", write)

    def _refresh(self, record: Record) -> None:
        """Update a record from its folder; if the storage fails, log that once and keep the record as it is."""
        name = record.trial.name
        folder = self.folder.child(name)
        try:
            with without_waiting():
                record.refresh(folder)
                if record.is_running and not record.nodes and record.logged.reached > record.before:
                    record.nodes = read_nodes(folder)
            self._failing.discard(name)
        except ConfigError as error:
            if name not in self._failing:
                self._failing.add(name)
                log.warning("%s waits for its storage, and the others go on: %s", name, error)

    def _work(self) -> None:
        try:
            while not (self._is_closing and self._events.empty()):
                self._step()
            # retry the folders and notes that a failing storage has refused so far
            end = time.monotonic() + ENDING_S
            while (self._failing or self.outbox.num_waiting) and time.monotonic() < end:
                time.sleep(1.0)
                self._refresh_all()
            self.outbox.close()
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self._error = error

    def _step(self) -> None:
        try:
            events = [self._events.get(timeout=0.2)]
        except queue.Empty:
            events = []
        # handle all waiting events first, since reading the folders may take long
        while not self._events.empty():
            events.append(self._events.get())
        for event in events:
            event()
        if time.monotonic() - self._refreshed_at >= max(REFRESH_EVERY_S, self.folder.look_every_s):
            self._refresh_all()

    def _refresh_all(self) -> None:
        for record in list(self.records.values()):
            if record.is_running or record.trial.name in self._failing:
                self._refresh(record)
        self.outbox.flush()
        self._refreshed_at = time.monotonic()
        self.on_update(None)
