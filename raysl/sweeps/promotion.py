"""Asynchronous successive halving by promotion (Li et al. 2020, arXiv 1810.05934, algorithm 2).

Every trial trains to the first rung and waits there. Where it is among the best `1 / reduction` of those that have come
to its rung, rounded down, it is promoted: it trains on to the next rung.

The paper promotes when a worker is free. Here trials come to a rung in an order that does not depend on time: to the
first one as they were drawn, to the next one as they were promoted. That is what a single worker does. A trial that
fails after it was promoted leaves all rungs, and others may be promoted in its place.

The paper draws trials without end. Here they are counted, and the highest rung may hold too few of them for a share;
then its best trial is promoted, so that one comes to its end.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from raysl.leaderboard.entry import Objective
from raysl.sweeps.judging import Course, Groups, Rungs, Verdict

Arrival = tuple[Any, int, int]
"""A trial at a rung: its sort key, best first, earlier arrivals, and its index in the order of drawing."""


@dataclass
class _Rung:
    """Trials at an epoch.

    Args:
        epoch: epoch to which they train.
        queue: those that were sent to it, in that order, from the first one on that has not come yet.
        there: those that have come, the best first.
        waiting: those of `there` that may not train on, the best first.
        num_arrived: trials that have reached it in all.
    """

    epoch: float
    queue: deque[int] = field(default_factory=deque)
    there: list[Arrival] = field(default_factory=list)
    waiting: list[Arrival] = field(default_factory=list)
    num_arrived: int = 0


class Promotion:
    """Decides how far each trial may train, from the results so far.

    Args:
        reduction: one in so many is promoted.
        rungs: epochs at which trials wait.
        group: function from a trial's index to its group; default: one group.

    Attributes:
        has_all: whether no further trial will be drawn.
    """

    def __init__(self, reduction: int, rungs: Rungs, objective: Objective, group: Groups = lambda index: 0) -> None:
        self.reduction = reduction
        self.rungs = rungs
        self.objective = objective
        self.group = group
        self.has_all = False
        self._ladders: dict[int, _Ladder] = {}
        self._seen: list[tuple[float, bool, bool]] = []
        self._is_finished = False

    def verdict(self, index: int) -> Verdict | None:
        """Return where a trial waits as of the last update; None if it may train on, or was drawn since."""
        return self._ladders[self.group(index)].verdict(index) if index < len(self._seen) else None

    def is_final(self, index: int) -> bool:
        """Whether no result after the last update can promote a trial: all are drawn, and each waits or has ended."""
        return self._is_finished and all(ladder.is_over() for ladder in self._ladders.values())

    def until(self, index: int) -> float | None:
        """Return the epoch to which a trial may train as of the last update; None: to its end."""
        return self._ladders[self.group(index)].limits[index]

    def update(self, courses: Sequence[Course]) -> None:
        """Promote trials by the present results, in the order of a single worker."""
        now = [(course.reached, course.has_ended, course.has_failed) for course in courses]
        if now[: len(self._seen)] != self._seen:
            self._ladders, self._seen, self._is_finished = {}, [], False
        for index in range(len(self._seen), len(courses)):
            group = self.group(index)
            if group not in self._ladders:
                self._ladders[group] = _Ladder(self.rungs(index), self.reduction, self.objective)
            self._ladders[group].enter(index, courses[index])
        self._seen = now
        if self.has_all and not self._is_finished:
            self._is_finished = True
            for ladder in self._ladders.values():
                ladder.finish()


class _Ladder:
    """The rungs of trials that are compared with each other.

    Attributes:
        limits: epoch to which each trial may train; None: to its end.
    """

    def __init__(self, epochs: Sequence[float], reduction: int, objective: Objective) -> None:
        self.rungs = [_Rung(epoch) for epoch in epochs]
        self.reduction = reduction
        self.objective = objective
        self.courses: dict[int, Course] = {}
        self.limits: dict[int, float | None] = {}
        self._levels: dict[int, int] = {}
        self._arrivals: dict[int, list[Arrival]] = {}

    def enter(self, index: int, course: Course) -> None:
        """Add a trial, which trains to the first rung."""
        self.courses[index] = course
        self._arrivals[index] = []
        self._send(index, 0)

    def finish(self) -> None:
        """Promote the best trial of the highest rung if none was, since no further trial will be drawn."""
        while not any(rung.queue for rung in self.rungs):
            level = max((level for level, rung in enumerate(self.rungs) if rung.there), default=None)
            if level is None or len(self.rungs[level].waiting) < len(self.rungs[level].there):
                return
            self._send(self.rungs[level].waiting.pop(0)[-1], level + 1)

    def is_over(self) -> bool:
        """Whether each trial waits, or has ended."""
        return all(course.has_ended or self.verdict(index) is not None for index, course in self.courses.items())

    def verdict(self, index: int) -> Verdict | None:
        """Return where a trial waits, and why."""
        level, course = self._levels[index], self.courses[index]
        limit = self.limits[index]
        if limit is None or course.reached < limit:
            return None
        rung, arrivals = self.rungs[level], self._arrivals[index]
        if len(arrivals) <= level:
            reason = f"trials that were drawn before it have not come to epoch {limit:g} yet"
            return Verdict(limit, reason, is_pause=True)
        place, total = bisect_left(rung.there, arrivals[level]) + 1, len(rung.there)
        metric, share = self.objective.metric, f"one in {self.reduction} goes on"
        if (value := course.at(limit)) is None:
            return Verdict(limit, f"it has no {metric} at epoch {limit:g}, and {share}", is_pause=True)
        reason = f"{metric} {value:.4g} at epoch {limit:g} is rank {place} of {total}, and {share}"
        return Verdict(limit, reason, is_pause=True)

    def _send(self, index: int, level: int) -> None:
        """Let a trial train to a rung, or to its end if that comes first."""
        self._levels[index] = level
        is_last = level == len(self.rungs) or self.rungs[level].epoch >= self.courses[index].length
        self.limits[index] = None if is_last else self.rungs[level].epoch
        if level < len(self.rungs):
            self.rungs[level].queue.append(index)
            self._receive(level)
        elif self.courses[index].has_failed:
            self._drop(index)

    def _receive(self, level: int) -> None:
        """Add the trials that have reached a rung, up to the first one that has not."""
        rung = self.rungs[level]
        while rung.queue and self.courses[rung.queue[0]].is_known(rung.epoch):
            index = rung.queue.popleft()
            course = self.courses[index]
            if course.reached >= rung.epoch:
                arrival = (self.objective.key(course.at(rung.epoch)), rung.num_arrived, index)
                rung.num_arrived += 1
                self._arrivals[index].append(arrival)
                insort(rung.there, arrival)
                if self.limits[index] is not None:
                    insort(rung.waiting, arrival)
            if course.has_failed and (course.reached < rung.epoch or self.limits[index] is None):
                self._drop(index)
            self._promote(level)

    def _promote(self, level: int) -> None:
        rung = self.rungs[level]
        while rung.waiting and bisect_left(rung.there, rung.waiting[0]) < len(rung.there) // self.reduction:
            self._send(rung.waiting.pop(0)[-1], level + 1)

    def _drop(self, index: int) -> None:
        for level, arrival in enumerate(self._arrivals[index]):
            self.rungs[level].there.remove(arrival)
        for level in reversed(range(len(self._arrivals[index]))):
            self._promote(level)
