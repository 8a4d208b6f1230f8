"""Which trials are stopped early: pure functions of what the trials logged.

Trials are judged in the order in which they were drawn, never in that in which results arrive: at an epoch, a trial is
compared with those drawn before it. So a sweep that was killed, or that had another number of trials at a time, comes
to the same end; trials train on while those before them are still to come to the epoch.
"""

import math
import statistics
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from raysl.leaderboard.entry import Objective


@dataclass
class Course:
    """What a trial has logged of the number that it is judged by.

    Args:
        epochs, values: of each time that it was logged, ascending.
        reached: epochs that it has come to.
        has_ended: whether it has finished, or failed for good.
        length: epochs of the whole trial, at whose end nobody stops it any more.
    """

    epochs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    reached: float = 0.0
    has_ended: bool = False
    length: float = math.inf

    def at(self, epoch: float) -> float | None:
        """The newest value at an epoch; None where there was none yet."""
        place = bisect_right(self.epochs, epoch)
        return self.values[place - 1] if place else None

    def until(self, epoch: float) -> list[float]:
        """All values up to an epoch."""
        return self.values[: bisect_right(self.epochs, epoch)]

    def is_known(self, epoch: float) -> bool:
        """Whether nothing more can come of an epoch."""
        return self.has_ended or self.reached >= epoch


@dataclass(frozen=True)
class Verdict:
    """Why a trial was stopped.

    Args:
        epoch: at which it was judged.
        reason: in words.
    """

    epoch: float
    reason: str


Rungs = Callable[[int], list[float]]
"""Epochs at which the trial of a number is judged, ascending; of those that are compared, the same."""
Groups = Callable[[int], int]
"""Trials of one group alone are compared."""


@dataclass(frozen=True)
class Rule:
    """Decides at an epoch, from the trials drawn before that came so far.

    Args:
        score: (trial, epoch, what is better) -> what others are compared with there, or None where there is nothing;
            it sorts, and takes no others into account, so that each trial is looked at once.
        reason: (scores of those before, ascending; the trial; the epoch; what is better) -> why it is stopped, or None.
    """

    score: Callable[[Course, float, Objective], Any]
    reason: Callable[[list[Any], Course, float, Objective], str | None]


@dataclass
class _Rung:
    """What was judged at an epoch.

    Args:
        epoch: of all trials there.
        num_judged: trials of the group that were, or that did not come so far; in the order in which they were drawn.
        scores: of those that came so far, ascending.
    """

    epoch: float
    num_judged: int = 0
    scores: list[Any] = field(default_factory=list)


class Judge:
    """Says which trials are stopped, and where. What it has said, it says again.

    Args:
        rule: that decides.
        rungs: when.
        objective: what is better.
        group: which trials are compared; default: all.
    """

    def __init__(self, rule: Rule, rungs: Rungs, objective: Objective, group: Groups = lambda index: 0) -> None:
        self.rule = rule
        self.rungs = rungs
        self.objective = objective
        self.group = group
        self._stopped: dict[int, Verdict] = {}
        self._places: list[tuple[int, int]] = []  # of each trial: its group, and its place there
        self._members: dict[int, list[int]] = {}
        self._rungs: dict[int, list[_Rung]] = {}

    def verdict(self, index: int, courses: Sequence[Course]) -> Verdict | None:
        """Why and where the trial of a place is stopped; None where it goes on, or where that is not known yet.

        Args:
            index: place of the trial in the order of drawing.
            courses: of all trials that were drawn so far.
        """
        self._advance(courses)
        return self._stopped.get(index)

    def is_settled(self, index: int, courses: Sequence[Course]) -> bool:
        """Whether nothing that is still to come changes whether a trial is stopped."""
        self._advance(courses)
        group, place = self._places[index]
        course = courses[index]
        open_rungs = (own for own in self._rungs[group] if own.num_judged <= place and own.epoch <= course.reached)
        return index in self._stopped or (course.has_ended and next(open_rungs, None) is None)

    def _advance(self, courses: Sequence[Course]) -> None:
        for index in range(len(self._places), len(courses)):
            group = self.group(index)
            members = self._members.setdefault(group, [])
            self._rungs.setdefault(group, [_Rung(epoch) for epoch in self.rungs(index)])
            self._places.append((group, len(members)))
            members.append(index)
        for group, rungs in self._rungs.items():
            members = self._members[group]
            for rung in rungs:
                while rung.num_judged < len(members) and self._judge(members[rung.num_judged], rung, courses):
                    rung.num_judged += 1

    def _judge(self, index: int, rung: _Rung, courses: Sequence[Course]) -> bool:
        """Judge a trial at an epoch, once that is known of it; all before it have been."""
        earlier, own = self._stopped.get(index), courses[index]
        if earlier is not None and earlier.epoch < rung.epoch:
            return True
        if not own.is_known(rung.epoch):
            return False
        if own.reached < rung.epoch:
            return True
        if own.at(rung.epoch) is not None and rung.epoch < own.length:
            reason = self.rule.reason(rung.scores, own, rung.epoch, self.objective)
            if reason is not None:
                self._stopped[index] = Verdict(rung.epoch, reason)
        score = self.rule.score(own, rung.epoch, self.objective)
        if score is not None:
            insort(rung.scores, score)
        return True


def best_share(reduction: int) -> Rule:
    """Successive halving: of those that came to a rung, one in `reduction` goes on (Li et al. 2020, algorithm 2)."""

    def score(course: Course, epoch: float, objective: Objective) -> tuple[bool, float]:
        return objective.key(course.at(epoch))

    def reason(before: list[Any], own: Course, epoch: float, objective: Objective) -> str | None:
        num_better = bisect_left(before, score(own, epoch, objective))
        total = len(before) + 1
        if num_better < math.ceil(total / reduction):
            return None
        return f"{objective.metric} {own.at(epoch):.4g} at epoch {epoch:g} is number {num_better + 1} of {total} there"

    return Rule(score, reason)


def _average(course: Course, epoch: float, objective: Objective) -> float | None:
    values = _finite(course.until(epoch))
    return statistics.fmean(values) if values else None


def _is_below(averages: list[Any], own: Course, epoch: float, objective: Objective) -> str | None:
    if not averages:
        return None
    median = (averages[(len(averages) - 1) // 2] + averages[len(averages) // 2]) / 2
    best = min(_finite(own.until(epoch)), key=objective.key, default=math.nan)
    if objective.key(best) <= objective.key(median):
        return None
    return f"{objective.metric} {best:.4g} at best until epoch {epoch:g}, and the others' averages have {median:.4g}"


above_median = Rule(_average, _is_below)
"""The median stopping rule: a trial stops whose best so far is worse than the median of the others' averages (Golovin
et al. 2017, section 3.2.1)."""


def _finite(values: list[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def halving_rungs(grace: int, reduction: int, epochs: int) -> list[float]:
    """Epochs of successive halving: the first one, and each `reduction` times as many, before the last."""
    rungs: list[float] = []
    epoch = grace
    while epoch < epochs:
        rungs.append(float(epoch))
        epoch *= reduction
    return rungs


def bracket(index: int, num: int, reduction: int) -> int:
    """Bracket of HyperBand of the trial of a place: 0 stops first and has most trials.

    Bracket b of B has a part of `reduction ** (B - 1 - b) / (B - b)`, as in table 1 of Li et al. 2018; trials are dealt
    so that after any number of them each bracket has its part as nearly as can be.
    """
    return _dealt(1 << index.bit_length(), num, reduction)[index]


@cache
def _dealt(trials: int, num: int, reduction: int) -> list[int]:
    weights = [reduction ** (num - 1 - place) / (num - place) for place in range(num)]
    total = sum(weights)
    counts = [0] * num
    chosen = []
    for turn in range(trials):
        chosen.append(max(range(num), key=lambda place: weights[place] / total * (turn + 1) - counts[place]))
        counts[chosen[-1]] += 1
    return chosen
