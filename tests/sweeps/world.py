"""Trials that take no time: what they log is a function of their settings, and how far they are is a number."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from raysl.leaderboard.entry import Objective
from raysl.sweeps.judging import Course, Judge, Verdict
from raysl.sweeps.promotion import Promotion
from raysl.sweeps.record import Note, Record
from raysl.sweeps.replay import Replay
from raysl.sweeps.search import Search
from raysl.sweeps.trial import Trial

KNN = Objective("knn_k20_top1", "max")
Value = Callable[[Trial, int], float]


@dataclass
class World:
    """Folders of runs, as far as a sweep sees them.

    Args:
        value: that a trial has logged at an epoch.
        epochs: that a whole run has.
        fails: names of trials that fail, and at which epoch.
    """

    value: Value
    epochs: int
    fails: dict[str, int] = field(default_factory=dict)
    progress: dict[str, int] = field(default_factory=dict)
    done: set[tuple[str, int]] = field(default_factory=set)

    def make(self, trial: Trial) -> Record:
        return Record(trial, trial.until or self.epochs)

    def look(self, record: Record) -> None:
        name, end = record.trial.name, record.epochs
        reached = min(self.progress.get(name, 0), end)
        own = self._lineage(record.trial)
        record.course.epochs = [float(epoch) for epoch in range(1, reached + 1)]
        record.course.values = [self.value(own(epoch), epoch) for epoch in range(1, reached + 1)]
        record.course.reached = float(reached)
        record.note = None
        if not record.is_running and reached == end and (name, end) in self.done:
            metrics = {KNN.metric: record.course.values[-1]}
            record.note = record.last = Note("finished", end, float(end), metrics)
        record.course.has_ended = record.has_ended

    def _lineage(self, trial: Trial) -> Callable[[int], Trial]:
        return lambda epoch: trial

    def step(self, record: Record) -> bool:
        """Train an epoch more; whether the trial has come to its end, or failed."""
        name = record.trial.name
        if self.fails.get(name) == self.progress.get(name, 0):
            record.failure = "it fails"
            return True
        if self.progress.get(name, 0) < record.epochs:
            self.progress[name] = self.progress.get(name, 0) + 1
        if self.progress[name] >= record.epochs:
            self.done.add((name, record.epochs))
            return True
        return False


def go_through(
    world: World,
    search: Callable[[], Search],
    judge: Callable[[], Judge | None],
    concurrent: int,
    chance: random.Random,
    kills: int = 0,
) -> Replay:
    """Run a sweep to its end: trials get on in a random order, and all is lost now and then but the runs' folders."""
    replay = Replay(search(), judge(), world.make, world.look)
    running: list[Record] = []
    for _ in range(100_000):
        if kills and chance.random() < 0.02:
            kills -= 1
            running.clear()
            replay = Replay(search(), judge(), world.make, world.look)
        while len(running) < concurrent and (record := replay.next()) is not None:
            record.is_running, record.failure = True, None
            running.append(record)
        if not running:
            assert replay.is_done(), "nothing runs, nothing comes, and it is not done"
            break
        record = chance.choice(running)
        has_ended = world.step(record)
        world.look(record)
        is_seen = chance.random() < 0.7  # a stop takes some time
        if has_ended or (is_seen and replay.verdict_of(record) is not None):
            record.is_running = False
            running.remove(record)
            world.look(record)
    for place in range(len(replay.records)):
        replay.verdict(place)
    return replay


def verdict_on(judge: Judge | Promotion, index: int, courses: Sequence[Course]) -> Verdict | None:
    """Return the verdict on a trial by these results."""
    judge.update(courses)
    return judge.verdict(index)


def is_final(judge: Judge | Promotion, index: int, courses: Sequence[Course]) -> bool:
    """Return whether that verdict is final."""
    judge.update(courses)
    return judge.is_final(index)


def ends(replay: Replay) -> list[tuple[str, str, float, float | None]]:
    """The table that a sweep ends with: of each trial its name, status, epoch, and number there."""
    rows = []
    for record in replay.records:
        verdict = record.verdict
        if verdict is not None:
            rows.append((record.trial.name, "stopped", verdict.epoch, record.course.at(verdict.epoch)))
        else:
            status = "failed" if record.failure else "finished"
            rows.append((record.trial.name, status, record.course.reached, record.course.at(record.epochs)))
    return rows
