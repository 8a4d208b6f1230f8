"""What is known of a sweep's trials while it runs: told by Ray Tune, and read from the runs' folders.

A thread reads and writes the storage, so that Tune's loop waits for none: one trial's folder delays no other trial.
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

LOOK_EVERY_S = 2.0
ENDING_S = 20.0  # for which the end of a sweep waits for a storage that fails
ERROR_FILE = "error.txt"


class Ledger:
    """The trials of a sweep, in the order in which they were chosen.

    Attributes:
        told: called by the thread after each look, and with a record when its trial has ended.
    """

    def __init__(self, bases: Mapping[str, RunConfig], folder: RunFolder, make: Callable[[Trial], Record]) -> None:
        self.bases = bases
        self.folder = folder
        self.make = make
        self.told: Callable[[Record | None], None] = lambda record: None
        self.records: dict[str, Record] = {}  # by run
        self.outbox = Outbox()
        self._logged: set[str] = set()
        self._failing: set[str] = set()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_closing = False
        self._looked = 0.0
        self._error: BaseException | None = None

    def add(self, trial: Trial) -> Record:
        """Return the record of a trial, which is read from its run's folder where it is new."""
        if (record := self.records.get(trial.name)) is None:
            record = self.records[trial.name] = self.make(trial)
            record.look(self.folder.child(trial.name))
        return record

    @contextmanager
    def following(self) -> Iterator[None]:
        """Handle what is told inside by a thread; all of it before the block ends."""
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

    def do(self, event: Callable[[], None]) -> None:
        """Have the thread call something soon; returns at once."""
        self._events.put(event)

    def begin(self, trial: Trial) -> None:
        """Record that a trial has started, and log that, but not when it is tried again."""
        record = self._known(trial)
        record.begin()
        if trial.name not in self._logged:
            self._logged.add(trial.name)
            epoch = f" from epoch {record.before:g}" if record.before else ""
            log.info("%s starts%s: %s", trial.name, epoch, trial.words())

    def fail_once(self, trial: Trial, reason: str, trace: str, number: int, retries: int) -> None:
        """Record the failure `number` of a trial that is tried again; 0 if a node was taken back, which does not count.

        Args:
            trace: text for a file in its folder, without credentials.
        """
        count = f" (retry {number} of {retries})" if number else ""
        log.warning("%s failed and is tried again%s: %s", trial.name, count, reason)
        self._keep_trace(trial, trace)

    def fail(self, trial: Trial, reason: str, trace: str) -> None:
        """Record that a trial has failed for good."""
        self._known(trial).failure = reason
        self._close(trial, partial(failed_note, reason=reason), Note("failed", 0, reason=reason), math.inf)
        self._keep_trace(trial, trace)

    def stop(self, trial: Trial, epoch: float, reason: str) -> None:
        """Record that the scheduler has stopped a trial."""
        make = partial(make_note, status="stopped", reason=reason, until=epoch)
        self._close(trial, make, Note("stopped", 0, reason=reason), epoch)

    def _close(self, trial: Trial, make: Callable[[RunConfig], Note], bare: Note, until: float) -> None:
        """Note an end that the run itself has not noted: by what is in its folder, or by what is known of it."""
        record = self._known(trial)
        record.is_running = False
        folder = self.folder.child(trial.name)
        try:
            with without_waiting():
                record.look(folder)
                record.note = make(trial.run_of(self.bases, self.folder.uri))
        except ConfigError:
            logged = record.logged
            epoch = min(until, logged.reached)
            record.note = replace(bare, until=record.epochs, epoch=epoch, metrics=logged.newest(until))
        note = record.note

        def write() -> None:
            folder.make()
            note.write(folder)

        self.outbox.put(f"the note of {trial.name}", write)
        self.told(record)

    def end(self, trial: Trial) -> None:
        """Record that a trial has come to its end, or has been asked to stop with its sweep."""
        record = self._known(trial)
        record.is_running = False
        self._look(record)
        self.told(record)

    def _known(self, trial: Trial) -> Record:
        if (record := self.records.get(trial.name)) is None:
            record = self.records[trial.name] = self.make(trial)
            self._look(record)
        return record

    def _keep_trace(self, trial: Trial, trace: str) -> None:
        folder = self.folder.child(trial.name)

        def write() -> None:
            if folder.exists():
                folder.write(ERROR_FILE, trace.encode())

        if trace:
            self.outbox.put(f"{ERROR_FILE} of {trial.name}", write)

    def _look(self, record: Record) -> None:
        """Read a record's folder; log once that its storage fails, and leave it as it is."""
        name = record.trial.name
        folder = self.folder.child(name)
        try:
            with without_waiting():
                record.look(folder)
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
            # what could not be read when its trial ended
            end = time.monotonic() + ENDING_S
            while (self._failing or self.outbox.num_waiting) and time.monotonic() < end:
                time.sleep(1.0)
                self._look_at_all()
            self.outbox.close()
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self._error = error

    def _step(self) -> None:
        try:
            events = [self._events.get(timeout=0.2)]
        except queue.Empty:
            events = []
        # all that wait, since the look below may take long
        while not self._events.empty():
            events.append(self._events.get())
        for event in events:
            event()
        if time.monotonic() - self._looked >= max(LOOK_EVERY_S, self.folder.look_every_s):
            self._look_at_all()

    def _look_at_all(self) -> None:
        for record in list(self.records.values()):
            if record.is_running or record.trial.name in self._failing:
                self._look(record)
        self.outbox.flush()
        self._looked = time.monotonic()
        self.told(None)
