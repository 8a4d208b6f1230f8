"""Judging each trial once at each epoch says what comparing it with all trials before it says."""

import math
import random
import statistics
from collections.abc import Callable

import pytest

from raysl.leaderboard.entry import Objective
from raysl.sweeps.judging import (
    Course,
    Judge,
    Rule,
    best_share,
    bracket,
    halving_rungs,
    median_rule,
)
from tests.sweeps.world import is_final, verdict_on

LOSS = Objective("loss", "min")
Compare = Callable[[list[Course], Course, float], bool]


def _courses(num: int, epochs: int, seed: int = 0) -> list[Course]:
    """Trials that have ended, some before their last epoch, some without a first value, some with a NaN."""
    draw = random.Random(seed)
    courses = []
    for _ in range(num):
        end = draw.choice([epochs, epochs, draw.randint(1, epochs)])
        whole = [(float(epoch), draw.gauss(0, 1) - 0.1 * epoch) for epoch in range(1, end + 1)]
        kept = whole[draw.choice([0, 0, 2]) :]
        if kept and draw.random() < 0.2:
            kept[-1] = (kept[-1][0], math.nan)
        courses.append(Course([epoch for epoch, _ in kept], [value for _, value in kept], float(end), True))
    return courses


def _halved(before: list[Course], own: Course, epoch: float) -> bool:
    num_better = sum(LOSS.key(other.at(epoch)) < LOSS.key(own.at(epoch)) for other in before)
    return num_better >= math.ceil((len(before) + 1) / 3)


def _below(before: list[Course], own: Course, epoch: float) -> bool:
    finite = [[value for value in course.until(epoch) if math.isfinite(value)] for course in [*before, own]]
    averages = [statistics.fmean(values) for values in finite[:-1] if values]
    return bool(averages) and min(finite[-1], default=math.inf) > statistics.median(averages)


def _by_hand(courses: list[Course], rungs: list[float], is_stopped: Compare) -> dict[int, float]:
    """The epoch at which each trial is stopped: at each, all that were drawn before and came so far are compared."""
    stopped: dict[int, float] = {}
    for index, own in enumerate(courses):
        for rung in rungs:
            before = [other for place, other in enumerate(courses[:index]) if stopped.get(place, math.inf) >= rung]
            there = [other for other in before if other.reached >= rung]
            if own.reached >= rung and own.at(rung) is not None and is_stopped(there, own, rung):
                stopped[index] = rung
                break
    return stopped


@pytest.mark.parametrize(("rule", "is_stopped"), [(best_share(3), _halved), (median_rule(1), _below)])
@pytest.mark.parametrize("seed", range(5))
def test_trials_are_compared_with_all_that_came_so_far_before_them(rule: Rule, is_stopped: Compare, seed: int) -> None:
    courses, rungs = _courses(40, 9, seed), halving_rungs(1, 3, 9)
    judge = Judge(rule, lambda index: rungs, LOSS)
    verdicts = {index: verdict_on(judge, index, courses) for index in range(40)}
    found = {index: verdict.epoch for index, verdict in verdicts.items() if verdict is not None}
    assert found == _by_hand(courses, rungs, is_stopped)
    assert 0 < len(found) < 40
    assert all(is_final(judge, index, courses) for index in range(40))


def test_a_trial_is_looked_at_once_at_each_epoch_however_often_one_asks() -> None:
    calls = []

    def score(course: Course, epoch: float, objective: Objective) -> float | None:
        calls.append((id(course), epoch))
        return course.at(epoch)

    courses = _courses(200, 9)
    judge = Judge(Rule(score, lambda before, own, epoch, objective: None), lambda index: [1.0, 3.0], LOSS)
    courses[0].has_ended, courses[0].reached = False, 1.0  # so that all others wait for it at epoch 3
    for index in range(200):
        assert verdict_on(judge, index, courses) is None
    assert len(calls) == 200
    courses[0].has_ended = True
    for index in range(200):
        verdict_on(judge, index, courses)
    assert len(calls) == len(set(calls)) == 200 + sum(course.reached >= 3 for course in courses)


def test_the_median_needs_three_others_before_it_stops_anybody() -> None:
    courses = [Course([1.0], [float(loss)], reached=1.0, has_ended=True) for loss in range(6)]
    for least, first in ((3, 3), (1, 1)):
        judge = Judge(median_rule(least), lambda index: [1.0], LOSS)
        assert [verdict_on(judge, index, courses) is None for index in range(6)] == [
            index < first for index in range(6)
        ]


def test_a_verdict_is_taken_back_when_the_trial_that_caused_it_fails() -> None:
    courses = [Course([1.0], [loss], reached=1.0) for loss in (0.0, 5.0, 6.0)]
    judge = Judge(best_share(3), lambda index: [1.0], LOSS)
    assert [verdict_on(judge, index, courses) is None for index in range(3)] == [True, False, False]
    assert not any(is_final(judge, index, courses) for index in range(3))
    courses[0].has_ended = courses[0].has_failed = True
    assert [verdict_on(judge, index, courses) is None for index in range(3)] == [True, True, False]
    assert [is_final(judge, index, courses) for index in range(3)] == [True, False, False]
    courses[1].has_ended = True
    assert [is_final(judge, index, courses) for index in range(3)] == [True, True, True]


def test_a_trial_that_failed_behind_the_epoch_where_it_is_stopped_is_compared_with_there() -> None:
    courses = [Course([1.0], [loss], reached=1.0, has_ended=True) for loss in (0.0, 1.0, 2.0)]
    courses[1].has_failed = True
    judge = Judge(best_share(2), lambda index: [1.0], LOSS)
    verdicts = [verdict_on(judge, index, courses) for index in range(3)]
    assert "is rank 2 of 2, and the best 1 may go on" in str(verdicts[1])
    assert "is rank 3 of 3, and the best 2 may go on" in str(verdicts[2])


def test_nobody_is_stopped_at_the_end_of_a_trial_that_is_shorter_than_others() -> None:
    short = Course([1.0, 3.0], [1.0, 9.0], reached=3.0, has_ended=True, length=3.0)
    long = [Course([1.0, 3.0, 9.0], [1.0, 1.0, 1.0], reached=9.0, has_ended=True, length=9.0) for _ in range(3)]
    judge = Judge(best_share(3), lambda index: [3.0], LOSS)
    assert [verdict_on(judge, index, [*long, short]) is None for index in range(4)] == [True] * 4
    assert is_final(judge, 3, [*long, short])
    short.length = 9.0
    again = Judge(best_share(3), lambda index: [3.0], LOSS)
    assert verdict_on(again, 3, [*long, short]) is not None


def test_brackets_of_a_large_sweep_have_their_parts_after_any_number_of_trials() -> None:
    weights = [27 / 4, 9 / 3, 3 / 2, 1]
    dealt = [bracket(index, 4, 3) for index in range(2000)]
    assert dealt[:500] == [bracket(index, 4, 3) for index in reversed(range(500))][::-1]
    for num in (10, 100, 2000):
        for place, weight in enumerate(weights):
            assert abs(dealt[:num].count(place) - num * weight / sum(weights)) < 1.5
