"""Which trials are stopped early: pure functions of what the trials logged.

Trials are judged in the order in which they were drawn, never in that in which results arrive: at an epoch, a trial is
compared with those drawn before it. So a sweep that was killed, or that had another number of trials at a time, comes
to the same end; trials train on while those before them are still to come to the epoch.

A trial that failed is compared with nobody, as if it had not been drawn: a verdict that it caused before it failed is
taken back, and the trial that was stopped goes on.
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
    """The logged values of the number by which a trial is judged.

    Args:
        epochs, values: epochs at which it was logged, ascending, and its values there.
        reached: epochs that it has come to.
        has_ended: whether it has finished, or failed for good.
        length: epochs of the whole trial, at whose end nobody stops it any more.
        has_failed: whether the newest start of it failed for good, and no later one has come further.
    """

    epochs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    reached: float = 0.0
    has_ended: bool = False
    length: float = math.inf
    has_failed: bool = False

    def at(self, epoch: float) -> float | None:
        """Return the newest value at an epoch; None before the first one."""
        place = bisect_right(self.epochs, epoch)
        return self.values[place - 1] if place else None

    def until(self, epoch: float) -> list[float]:
        """Return all values up to an epoch."""
        return self.values[: bisect_right(self.epochs, epoch)]

    def is_known(self, epoch: float) -> bool:
        """Whether no further value up to an epoch can come."""
        return self.has_ended or self.has_failed or self.reached >= epoch


@dataclass(frozen=True)
class Verdict:
    """The reason for stopping a trial.

    Args:
        epoch: at which it was judged.
        is_pause: whether it waits there for trials that are drawn later, and may be promoted.
    """

    epoch: float
    reason: str
    is_pause: bool = False


Rungs = Callable[[int], list[float]]
"""Maps a trial's index to the epochs at which it is judged, ascending; the same for trials that are compared."""
Groups = Callable[[int], int]
"""Maps a trial's index to its group; only trials of one group are compared."""


@dataclass(frozen=True)
class Rule:
    """Decides at an epoch, from the earlier drawn trials that have reached it.

    Args:
        score: (trial, epoch, what is better) -> what others are compared with there, or None where there is nothing;
            it sorts, and takes no others into account, so that each trial is looked at once.
        reason: (scores of those before, ascending; the trial; the epoch; what is better) -> why it is stopped, or None.
    """

    score: Callable[[Course, float, Objective], Any]
    reason: Callable[[list[Any], Course, float, Objective], str | None]


@dataclass
class Group:
    """Trials that are compared with each other.

    Args:
        rungs: epochs at which they are judged, ascending.
        members: their places in the order in which all trials were drawn.
        num_settled: how many of the first members are settled: nothing changes any more whether they are stopped.
        seen: progress of each judged member that is not settled.
        num_known: number of rungs that are known of all members that were judged and not stopped.
        settled, scores: ascending scores at each rung, of settled members, and of all.
    """

    rungs: list[float]
    members: list[int] = field(default_factory=list)
    num_settled: int = 0
    seen: list[tuple[float, bool, bool]] = field(default_factory=list)
    num_known: int = 0
    settled: list[list[Any]] = field(default_factory=list)
    scores: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settled = [[] for _ in self.rungs]
        self.forget()

    def forget(self) -> None:
        """Forget the verdicts on members that are not settled."""
        self.seen = []
        self.num_known = len(self.rungs)
        self.scores = [list(scores) for scores in self.settled]


class Judge:
    """Decides which trials are stopped, and where, from the results so far.

    Args:
        group: function from a trial's index to its group; default: one group.

    Attributes:
        has_all: whether no further trial will be drawn.
    """

    def __init__(self, rule: Rule, rungs: Rungs, objective: Objective, group: Groups = lambda index: 0) -> None:
        self.rule = rule
        self.rungs = rungs
        self.objective = objective
        self.group = group
        self.has_all = False
        self._verdicts: dict[int, Verdict] = {}
        self._places: list[tuple[int, int]] = []  # of each trial: its group, and its place there
        self._groups: dict[int, Group] = {}
        self._scores: dict[tuple[int, float], Any] = {}

    def verdict(self, index: int) -> Verdict | None:
        """Return why and where a trial is stopped as of the last update; None if it continues, or if that is open."""
        return self._verdicts.get(index)

    def is_final(self, index: int) -> bool:
        """Whether no result after the last update can change the verdict on a trial."""
        key, place = self._places[index]
        return place < self._groups[key].num_settled

    def until(self, index: int) -> float | None:
        """Return the epoch to which a trial may train now; None: to its end, or until it is stopped."""
        return None

    def update(self, courses: Sequence[Course]) -> None:
        """Judge all trials that were drawn so far by their present results."""
        for index in range(len(self._places), len(courses)):
            key = self.group(index)
            group = self._groups.setdefault(key, Group(self.rungs(index)))
            self._places.append((key, len(group.members)))
            group.members.append(index)
        for group in self._groups.values():
            self._go_on(group, courses)

    def _go_on(self, group: Group, courses: Sequence[Course]) -> None:
        """Judge the members of a group, beginning with the first one that has new results."""
        now = [_seen(courses[index]) for index in group.members[group.num_settled :]]
        if now[: len(group.seen)] != group.seen:
            group.forget()
        for position in range(group.num_settled + len(group.seen), len(group.members)):
            index = group.members[position]
            is_settled = self._judge_all(index, courses[index], group, position == group.num_settled)
            if is_settled:
                group.num_settled += 1
            else:
                group.seen.append(_seen(courses[index]))

    def _judge_all(self, index: int, course: Course, group: Group, is_first: bool) -> bool:
        """Judge a trial at all epochs with enough results; return whether it is settled.

        Args:
            group: group of the trial, of which all members drawn before were judged.
            is_first: whether those are settled.
        """
        num_there = sum(rung <= course.reached for rung in group.rungs)
        num_judged, verdict = 0, None
        while num_judged < min(num_there, group.num_known) and verdict is None:
            verdict = self._judge(course, group.rungs[num_judged], group.scores[num_judged])
            num_judged += 1
        is_settled = is_first and (verdict is not None or (course.has_ended and num_there <= group.num_known))
        if verdict is not None:
            self._verdicts[index] = verdict
        else:
            self._verdicts.pop(index, None)
            if not course.is_known(math.inf):
                group.num_known = min(group.num_known, num_there)
            if course.has_failed:
                return is_settled
        for rung in range(num_judged):
            score = self._score(index, course, group.rungs[rung])
            if score is not None:
                insort(group.scores[rung], score)
                if is_settled:
                    insort(group.settled[rung], score)
        return is_settled

    def _judge(self, course: Course, epoch: float, before: list[Any]) -> Verdict | None:
        if course.at(epoch) is None or epoch >= course.length:
            return None
        reason = self.rule.reason(before, course, epoch, self.objective)
        return None if reason is None else Verdict(epoch, reason)

    def _score(self, index: int, course: Course, epoch: float) -> Any:
        if (index, epoch) not in self._scores:
            self._scores[index, epoch] = self.rule.score(course, epoch, self.objective)
        return self._scores[index, epoch]


def _seen(course: Course) -> tuple[float, bool, bool]:
    return course.reached, course.has_ended, course.has_failed


def best_share(reduction: int) -> Rule:
    """Successive halving by stopping: of the n trials that have come to a rung so far, itself counted, a trial goes on
    where it is among the best n / `reduction`, rounded up; one that was stopped never goes on later."""

    def score(course: Course, epoch: float, objective: Objective) -> tuple[bool, float]:
        return objective.key(course.at(epoch))

    def reason(before: list[Any], course: Course, epoch: float, objective: Objective) -> str | None:
        num_better = bisect_left(before, score(course, epoch, objective))
        total = len(before) + 1
        num_best = math.ceil(total / reduction)
        if num_better < num_best:
            return None
        value = f"{objective.metric} {course.at(epoch):.4g} at epoch {epoch:g}"
        return f"{value} is rank {num_better + 1} of {total}, and the best {num_best} may go on"

    return Rule(score, reason)


def _average(course: Course, epoch: float, objective: Objective) -> float | None:
    values = _finite(course.until(epoch))
    return statistics.fmean(values) if values else None


def median_rule(min_samples: int) -> Rule:
    """The median stopping rule: a trial stops whose best so far is worse than the median of the others' averages
    (Golovin et al. 2017, section 3.2.1), once so many others have an average."""

    def reason(averages: list[Any], course: Course, epoch: float, objective: Objective) -> str | None:
        if len(averages) < min_samples:
            return None
        median = (averages[(len(averages) - 1) // 2] + averages[len(averages) // 2]) / 2
        best = min(_finite(course.until(epoch)), key=objective.key, default=math.nan)
        if objective.key(best) <= objective.key(median):
            return None
        return (
            f"{objective.metric} is {best:.4g} at best until epoch {epoch:g}, worse than {median:.4g}, the median of "
            "the other trials' averages"
        )

    return Rule(_average, reason)


def _finite(values: list[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def halving_rungs(grace: int, reduction: int, epochs: int) -> list[float]:
    """Return the rungs of successive halving: the first epoch, times powers of `reduction`, before the last.

    >>> halving_rungs(1, 3, 30)
    [1.0, 3.0, 9.0, 27.0]
    """
    rungs: list[float] = []
    epoch = grace
    while epoch < epochs:
        rungs.append(float(epoch))
        epoch *= reduction
    return rungs


def bracket(index: int, num: int, reduction: int) -> int:
    """Return the bracket of HyperBand of a trial: bracket 0 stops earliest and has most trials.

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
