"""How a sweep goes on: which trial comes next, and which is stopped, from what the runs' folders hold."""

from collections.abc import Callable

from raysl.sweeps.judging import Course, Judge, Verdict
from raysl.sweeps.record import Record
from raysl.sweeps.search import Search, Wait
from raysl.sweeps.trial import Trial

Look = Callable[[Record], None]
"""Brings a record up to what its run's folder has."""


class Replay:
    """Goes through a sweep from its first trial: those that have ended are passed, the others are given to be run.

    A sweep that is started again is the same walk through the same trials, so it ends as one that was never stopped.

    Args:
        search: where trials come from.
        judge: which are stopped; None: none.
        make: the record of a trial, as its run's folder has it.
        look: brings one up to date.
    """

    def __init__(self, search: Search, judge: Judge | None, make: Callable[[Trial], Record], look: Look) -> None:
        self.search = search
        self.judge = judge
        self.make = make
        self.look = look
        self.records: list[Record] = []
        self.courses: list[Course] = []
        self.is_drawn = False
        self._left: list[int] = []  # places of trials that may still have to run
        self._by_key: dict[tuple[str, int | None], Record] = {}

    def next(self) -> Record | None:
        """A trial to be run now, the earliest drawn first; None where there is none, or, where `is_done`, will be."""
        self._left = [place for place in self._left if not self._is_past(place)]
        for place in self._left:
            if self._is_open(place):
                return self.records[place]
        while self.draw():
            if self._is_open(len(self.records) - 1):
                return self.records[-1]
        return None

    def draw(self) -> bool:
        """Draw one trial more; whether there is one that does not depend on what others have yet to come to."""
        while not self.is_drawn:
            trial = self.search.next(self.records, self.is_kept)
            if isinstance(trial, Wait):
                return False
            if trial is None:
                self.is_drawn = True
            elif self._is_new(trial):
                return True
        return False

    def is_done(self) -> bool:
        """Whether nothing runs and nothing is left to run."""
        return self.is_drawn and not any(self.records[place].is_running or self._is_open(place) for place in self._left)

    def verdict(self, index: int) -> Verdict | None:
        """Why and where a trial is stopped, if it is."""
        record, judge = self.records[index], self._judge_of(index)
        if judge is not None:
            record.verdict = judge.verdict(index, self.courses)
        else:
            record.verdict = self.search.replaced.get(record.trial.name)
        return record.verdict

    def verdict_of(self, record: Record) -> Verdict | None:
        """That of a record."""
        return self.verdict(self.records.index(record))

    def is_kept(self, index: int) -> bool | None:
        """Whether a trial came to its end and was not stopped; None where that is still open."""
        record, judge = self.records[index], self._judge_of(index)
        if self.verdict(index) is not None:
            return False
        if not record.has_ended or (judge is not None and not judge.is_settled(index, self.courses)):
            return None
        return record.failure is None

    def _judge_of(self, index: int) -> Judge | None:
        """Who stops a trial, if anybody does: further seeds of what came to its end are the last, and not judged."""
        return None if self.records[index].trial.is_repeat else self.judge

    def _is_new(self, trial: Trial) -> bool:
        """Take a trial that was drawn up with what its run's folder has, unless an equal one was drawn before."""
        key = trial.name, trial.until
        if key in self._by_key:
            self._by_key[key].draws += 1
            return False
        record = self._by_key[key] = self.make(trial)
        self.look(record)
        self.records.append(record)
        if not trial.is_repeat:
            self.courses.append(record.course)
        self._left.append(len(self.records) - 1)
        return True

    def _is_past(self, index: int) -> bool:
        """Whether a trial will never run any more in this process."""
        record = self.records[index]
        return not record.is_running and (record.has_ended or self.verdict(index) is not None)

    def _is_open(self, index: int) -> bool:
        """Whether a trial is to be run: it has not ended, and nothing has stopped it."""
        record = self.records[index]
        return not record.is_running and not record.has_ended and self.verdict(index) is None
