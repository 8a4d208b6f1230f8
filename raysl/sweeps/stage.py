"""The state of a sweep that runs: which trials run, which have ended, and what is written about them.

Nothing here waits for a storage that fails. What cannot be read or written is tried again at the next look, so that one
trial's folder delays no other trial.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, StorageError, log
from raysl.process.screen import duration
from raysl.runs.folder import STOP_FILE, RunFolder
from raysl.runs.follow import read_nodes
from raysl.storage import folder as storage
from raysl.storage.folder import without_waiting
from raysl.sweeps.judging import Verdict
from raysl.sweeps.outbox import Outbox
from raysl.sweeps.record import Note, Record
from raysl.sweeps.replay import Replay

LOOK_EVERY_S = 2.0
ENDING_S = 20.0
"""Seconds for which a sweep that was asked to end waits for a storage that fails."""
ERROR_FILE = "error.txt"
MOST_ENDS_WITHOUT = 2
NEXT = "the next trial"


@dataclass
class End:
    """The end of a trial whose folder is still to be read.

    Args:
        failure: why it failed for good, or None.
        since: when it ended, by the monotonic clock.
    """

    record: Record
    failure: str | None
    since: float = field(default_factory=time.monotonic)


class Stage:
    """The state of a sweep that runs.

    Args:
        told: called after each look, and when a trial has ended.
    """

    def __init__(
        self,
        replay: Replay,
        bases: Mapping[str, RunConfig],
        folder: RunFolder,
        concurrent: int,
        told: Callable[[Record | None], None],
    ) -> None:
        self.replay = replay
        self.bases = bases
        self.folder = folder
        self.concurrent = concurrent
        self.told = told
        self.running: dict[str, Record] = {}  # by trial, until their folders have been read after their end
        self.ends: dict[str, End] = {}
        self.earlier: dict[str, Note | None] = {}  # notes of starts before, by trial
        self.begun: dict[str, tuple[float, float]] = {}  # when each trial started, and the epoch that it had come to
        self.ends_without: dict[str, int] = {}  # progress, by trial: one asked to stop for nothing starts again
        self.stopped: dict[str, Verdict] = {}
        self.until: dict[str, int | None] = {}  # epoch to which each trial that was started may train
        self.nodes: dict[str, tuple[str, ...]] = {}  # of each trial's workers, once it gets on
        self._reached: dict[str, float] = {}  # epoch at each trial's newest start: its nodes are noted before the next
        self.outbox = Outbox()
        self.is_ending = False
        self._looked = 0.0
        self._logged: set[str] = set()  # trials whose start was logged
        self._failing: dict[str, float] = {}  # what the storage refuses, and since when

    def start(self) -> Record | None:
        """Return a trial to start now; None if there is no room, no trial, or its folder cannot be read yet.

        Raises:
            StorageError: if the storage has failed for half an hour.
            ConfigError: if a trial cannot be started, such as one of a population whose parent has no checkpoint.
        """
        if self.is_ending or len(self.running) >= self.concurrent:
            return None
        try:
            with without_waiting():
                record = self.replay.next()
        except StorageError as error:
            if not self._is_patient(NEXT, error):
                raise
            return None
        self._failing.pop(NEXT, None)
        if record is not None:
            name = record.trial.name
            if (before := self.stopped.pop(name, None)) is not None:
                why = "it is promoted" if before.is_pause else "one that it was compared with has failed since"
                log.info("%s goes on from epoch %g: %s", name, before.epoch, why)
            record.is_running, record.failure = True, None
            self.running[name] = record
            self.until[name] = self.replay.until(record)
            self.earlier[name] = record.last
            self.begun[name] = time.time(), record.course.reached
            self._forget_nodes(record)
        return record

    def begins(self, record: Record) -> None:
        """Log that a trial has started; not when it is tried again, which `failed_once` has logged."""
        name = record.trial.name
        if name not in self._logged:
            self._logged.add(name)
            epoch = f" from epoch {record.course.reached:g}" if record.course.reached else ""
            log.info("%s starts%s: %s", name, epoch, record.trial.words())

    def take_back(self, record: Record) -> None:
        """Undo `start` for a trial that will not run, since the sweep ends."""
        record.is_running = False
        self.running.pop(record.trial.name, None)

    def failed_once(self, record: Record, reason: str, trace: str, number: int, retries: int) -> None:
        """Record a failure of a trial, which is tried again if `number` is at most `retries`.

        Args:
            trace: text for a file in its folder, without credentials.
            number: number of failures so far, this one included; those do not count in which a node was taken back.
        """
        name = record.trial.name
        if number <= retries:
            count = f" (retry {number} of {retries})" if number else ""
            log.warning("%s failed and is tried again%s: %s", name, count, reason)
            self._forget_nodes(record)
        folder = self.folder.child(name)

        def write() -> None:
            if folder.exists():
                folder.write(ERROR_FILE, trace.encode())

        if trace:
            self.outbox.put(f"{ERROR_FILE} of {name}", write)

    def is_over(self) -> bool:
        """Whether no further trial will come."""
        return self.is_ending or self.replay.is_done()

    def look_now_and_then(self) -> None:
        """Look at the trials, unless that was done in the last seconds."""
        if time.monotonic() - self._looked >= max(LOOK_EVERY_S, self.folder.look_every_s):
            self.look()

    def look(self) -> None:
        """Read the logs of running trials, ask stopped ones to end, and try again what the storage has refused."""
        running = [record for name, record in self.running.items() if name not in self.ends]
        for record in running:
            self._try(record, self._look)
        for record in running:
            if self.is_ending or self.replay.verdict_of(record) is not None:
                self._try(record, self._ask_to_stop)
        for end in list(self.ends.values()):
            self._settle(end)
        self.outbox.flush()
        self._looked = time.monotonic()
        self.told(None)

    def ended(self, record: Record, failure: str | None = None) -> None:
        """Record the end of a trial, as soon as its folder can be read.

        Args:
            failure: why it failed for good; None if it came to its end.
        """
        self.ends[record.trial.name] = end = End(record, failure)
        self._settle(end)

    def _look(self, record: Record) -> None:
        self.replay.look(record)
        name = record.trial.name
        if name not in self.nodes and record.course.reached > self._reached[name]:
            self.nodes[name] = read_nodes(self.folder.child(name))

    def _forget_nodes(self, record: Record) -> None:
        self._reached[record.trial.name] = record.course.reached
        self.nodes.pop(record.trial.name, None)

    def _try(self, record: Record, action: Callable[[Record], None]) -> None:
        name = record.trial.name
        try:
            with without_waiting():
                action(record)
            self._failing.pop(name, None)
        except ConfigError as error:
            self._is_patient(name, error)

    def _is_patient(self, what: str, error: ConfigError) -> bool:
        """Log the first of several failures of a storage; return whether it may still be waited for."""
        now = time.monotonic()
        if what not in self._failing:
            self._failing[what] = now
            log.warning("%s waits for its storage, and the others go on: %s", what, error)
        return now - self._failing[what] < storage.PATIENCE_S

    def _ask_to_stop(self, record: Record) -> None:
        """Write a note with the reason into the folder of a trial's run, whose workers then stop."""
        folder = self.folder.child(record.trial.name)
        if folder.exists() and not folder.exists(STOP_FILE):
            verdict = record.verdict
            why = "its sweep was asked to end; the command that started the sweep goes on from there"
            if verdict is not None:
                why = f"its sweep {'has it wait' if verdict.is_pause else 'stopped it early'}: {verdict.reason}"
            folder.write(STOP_FILE, why.encode())

    def _settle(self, end: End) -> None:
        """Judge a trial that has ended by what it has left in its folder; leave that for later if it cannot be read."""
        record, name = end.record, end.record.trial.name
        record.is_running, record.failure = False, end.failure
        try:
            with without_waiting():
                self.replay.look(record)
            self._failing.pop(name, None)
        except ConfigError as error:
            waited, most = time.monotonic() - end.since, ENDING_S if self.is_ending else storage.PATIENCE_S
            if isinstance(error, StorageError) and waited < most:
                record.is_running, record.failure = True, None  # nobody is judged by it until it is known
                self._is_patient(name, error)
                return
            record.fail(end.failure or f"its folder could not be read for {duration(waited)}: {error}")
        del self.ends[name]
        self.running.pop(name, None)
        self._logged.discard(name)
        self._judge(record, end.failure)
        self.told(record)

    def _judge(self, record: Record, failure: str | None) -> None:
        name, is_new = record.trial.name, record.last != self.earlier.get(record.trial.name)
        if record.last is not None and record.last.status == "failed" and is_new and failure is None:
            record.fail(record.last.reason)
        verdict = self.replay.verdict_of(record)
        if verdict is not None:
            self.stopped[name] = verdict
        is_open = record.note is None and record.failure is None and verdict is None
        has_gained = name in self.begun and record.course.reached > self.begun[name][1]
        if is_open and not has_gained and not self.is_ending:
            self.ends_without[name] = self.ends_without.get(name, 0) + 1
            if self.ends_without[name] > MOST_ENDS_WITHOUT:
                record.fail("it ends again and again without having come to its end")
