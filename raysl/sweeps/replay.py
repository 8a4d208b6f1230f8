"""Replay of a sweep: which trial comes next, and which is stopped, from the contents of the runs' folders."""

from collections.abc import Callable

from raysl.sweeps.judging import Course, Judge, Verdict
from raysl.sweeps.promotion import Promotion
from raysl.sweeps.record import Record
from raysl.sweeps.search import Search, Wait
from raysl.sweeps.trial import Trial

Look = Callable[[Record], None]
"""Updates a record from its run's folder."""


class Replay:
    """Goes through a sweep from its first trial: skips those that have ended and returns the others, to be run.

    A sweep that is started again is the same walk through the same trials, so it ends as one that was never stopped.

    Args:
        judge: rule that stops trials early, or None.
        make: the record of a trial, as its run's folder has it.
    """

    def __init__(
        self, search: Search, judge: Judge | Promotion | None, make: Callable[[Trial], Record], look: Look
    ) -> None:
        self.search = search
        self.judge = judge
        self.make = make
        self.look = look
        self.records: list[Record] = []
        self.courses: list[Course] = []
        self.is_drawn = False
        self._left: list[int] = []  # places of trials that may still have to run, or be judged otherwise
        self._is_fresh = False  # whether all trials were judged by what is known
        self._by_key: dict[tuple[str, int | None], Record] = {}
        self._unread: Trial | None = None  # drawn, while its run's folder could not be read

    def next(self) -> Record | None:
        """Return the earliest drawn trial that can run now; None if there is none, and, if `is_done`, will be none."""
        self.refresh()
        if (record := self._first_open()) is not None:
            return record
        had_all = self.search.has_all
        while self.draw():
            if self.judge is not None and self.records[-1].course.reached > 0:
                self.judge.update(self.courses)
            if self._is_open(len(self.records) - 1):
                return self.records[-1]
        if self.search.has_all and not had_all:  # so that one that waited for others may have to go on
            self.refresh()
            return self._first_open()
        return None

    def draw(self) -> bool:
        """Draw one more trial; return whether there was one that depends on no unfinished trial.

        A trial whose folder could not be read is not lost: the next call goes on with it.
        """
        while not self.is_drawn:
            self._is_fresh = False
            trial = self._unread or self.search.next(self.records, self.is_kept)
            if isinstance(trial, Wait):
                return False
            self._unread = trial
            if trial is None:
                self.is_drawn = True
                return False
            is_new = self._is_new(trial)
            self._unread = None
            if is_new:
                return True
        return False

    def is_done(self) -> bool:
        """Whether nothing runs and nothing is left to run."""
        self.refresh()
        return self.is_drawn and not any(self.records[place].is_running or self._is_open(place) for place in self._left)

    def refresh(self) -> None:
        """Judge all trials by their present records."""
        if self.judge is not None:
            for place in self._left:
                self.records[place].course.has_failed = self.records[place].has_failed
            self.judge.has_all = self.search.has_all
            self.judge.update(self.courses)
        for place in self._left:
            self._tell(place)
        self._left = [place for place in self._left if not self._is_past(place)]
        self._is_fresh = True

    def judged(self) -> list[Record]:
        """Return all trials so far, each with its verdict."""
        self.refresh()
        for place in range(len(self.records)):
            self._tell(place)
        return self.records

    def verdict(self, index: int) -> Verdict | None:
        """Return why and where a trial is stopped; None if it is not."""
        self.refresh()
        return self._tell(index)

    def verdict_of(self, record: Record) -> Verdict | None:
        """Return the verdict on a record."""
        return self.verdict(self.records.index(record))

    def until(self, record: Record) -> int | None:
        """Return the epoch to which a trial may train now; None: to its end."""
        if self.judge is None or record.trial.is_repeat:
            return record.trial.until
        self.refresh()
        epoch = self.judge.until(self.records.index(record))
        return None if epoch is None else int(epoch)

    def is_kept(self, index: int) -> bool | None:
        """Whether a trial finished without being stopped; None if that is still open."""
        if not self._is_fresh:
            self.refresh()
        record = self.records[index]
        if not self._is_final(index):
            return None
        if self._tell(index) is not None:
            return False
        return record.failure is None if record.has_ended else None

    def _tell(self, index: int) -> Verdict | None:
        """Return the verdict on a trial as of the last refresh, and set it in its record; further seeds have none."""
        record = self.records[index]
        if self.judge is None or record.trial.is_repeat:
            record.verdict = self.search.replaced.get(record.trial.name)
        else:
            record.verdict = self.judge.verdict(index)
        return record.verdict

    def _is_final(self, index: int) -> bool:
        """Whether the verdict on a trial, or its absence, is final."""
        return self.judge is None or self.records[index].trial.is_repeat or self.judge.is_final(index)

    def _first_open(self) -> Record | None:
        return next((self.records[place] for place in self._left if self._is_open(place)), None)

    def _is_new(self, trial: Trial) -> bool:
        """Add a trial with the contents of its run's folder, unless an equal one was drawn before."""
        key = trial.name, trial.until
        if key in self._by_key:
            self._by_key[key].draws += 1
            return False
        record = self.make(trial)
        self.look(record)
        self._by_key[key] = record
        record.course.has_failed = record.has_failed
        self._is_fresh = False
        self.records.append(record)
        if not trial.is_repeat:
            self.courses.append(record.course)
        self._left.append(len(self.records) - 1)
        return True

    def _is_past(self, index: int) -> bool:
        """Whether no future result can change a trial."""
        record = self.records[index]
        return not record.is_running and (record.has_ended or record.verdict is not None) and self._is_final(index)

    def _is_open(self, index: int) -> bool:
        """Whether a trial is to be run: it has neither ended nor been stopped."""
        record = self.records[index]
        return not record.is_running and not record.has_ended and self._tell(index) is None
