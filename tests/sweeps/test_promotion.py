"""Promotion is algorithm 2 of the ASHA paper, with trials that come to a rung in an order that no clock decides."""

import math
import random
import statistics

import pytest

from raysl.leaderboard.entry import Objective
from raysl.sweeps.judging import Course, Judge, best_share
from raysl.sweeps.promotion import Promotion
from tests.sweeps.world import is_final, verdict_on

LOSS = Objective("loss", "min")
RUNGS = [1.0, 3.0, 9.0]
END = 27.0


def _paper(losses: list[list[float]], reduction: int) -> list[float]:
    """Epochs that a single worker trains each trial to (algorithm 2, `get_job`), and then the best to the end."""
    there: list[list[int]] = [[] for _ in RUNGS]
    promoted: list[set[int]] = [set() for _ in RUNGS]
    drawn = 0

    def get_job() -> tuple[int, int] | None:
        for level in reversed(range(len(RUNGS))):
            best = sorted(there[level], key=lambda trial: losses[trial][level])[: len(there[level]) // reduction]
            if ready := [trial for trial in best if trial not in promoted[level]]:
                promoted[level].add(ready[0])
                return ready[0], level + 1
        return (drawn, 0) if drawn < len(losses) else None

    def run(trial: int, level: int) -> None:
        if level < len(RUNGS):
            there[level].append(trial)

    while (job := get_job()) is not None:
        drawn += job[1] == 0
        run(*job)
    while True:
        level = max(level for level in range(len(RUNGS)) if there[level])
        if promoted[level]:
            break
        best = min(there[level], key=lambda trial: losses[trial][level])
        promoted[level].add(best)
        run(best, level + 1)
    reached = [max(level for level in range(len(RUNGS)) if trial in there[level]) for trial in range(len(losses))]
    return [END if trial in promoted[level] else RUNGS[level] for trial, level in enumerate(reached)]


def _run(judge: Promotion, courses: list[Course], losses: list[list[float]], draw: random.Random) -> None:
    """Train trials as far as they may, in any order."""
    judge.has_all = True
    while True:
        judge.update(courses)
        left = [index for index, own in enumerate(courses) if not own.has_ended and judge.verdict(index) is None]
        if not left:
            return
        index = draw.choice(left)
        own, until = courses[index], judge.until(index)
        own.reached = END if until is None else until
        own.has_ended = until is None
        own.epochs = [epoch for epoch in RUNGS if epoch <= own.reached]
        own.values = losses[index][: len(own.epochs)]


@pytest.mark.parametrize("num", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("reduction", [2, 3])
def test_trials_train_as_far_as_a_single_worker_of_the_paper_would_have_them(num: int, reduction: int) -> None:
    for seed in range(10):
        draw = random.Random(seed)
        losses = [[draw.random() for _ in RUNGS] for _ in range(num)]
        courses = [Course(length=END) for _ in range(num)]
        judge = Promotion(reduction, lambda index: RUNGS, LOSS)
        _run(judge, courses, losses, draw)
        assert [own.reached for own in courses] == _paper(losses, reduction)
        assert all(judge.is_final(index) for index in range(num))
        assert END in [own.reached for own in courses], "one comes to its end, however few there are"


def test_no_trial_waits_for_good_before_all_are_drawn() -> None:
    courses = [Course([1.0], [float(loss)], reached=1.0, length=END) for loss in range(4)]
    judge = Promotion(3, lambda index: RUNGS, LOSS)
    verdicts = [verdict_on(judge, index, courses) for index in range(4)]
    assert verdicts[0] is None
    assert judge.until(0) == 3.0
    told = [verdict.reason for verdict in verdicts[1:] if verdict is not None]
    assert told == [f"loss {place} at epoch 1 is rank {place + 1} of 4, and one in 3 goes on" for place in (1, 2, 3)]
    assert not any(is_final(judge, index, courses) for index in range(4))


def test_one_that_fails_after_it_was_promoted_makes_room_for_another() -> None:
    courses = [Course([1.0], [float(loss)], reached=1.0, length=END) for loss in range(4)]
    judge = Promotion(3, lambda index: RUNGS, LOSS)
    courses[0].has_failed = courses[0].has_ended = True
    verdicts = [verdict_on(judge, index, courses) for index in range(4)]
    assert [verdict is None for verdict in verdicts] == [True, True, False, False]
    assert "is rank 2 of 3, and one in 3 goes on" in str(verdicts[2])


def test_a_trial_trains_to_its_own_end_where_that_comes_before_the_next_rung() -> None:
    short = [Course([1.0], [float(loss)], reached=1.0, length=2.0) for loss in range(3)]
    judge = Promotion(3, lambda index: RUNGS, LOSS)
    assert verdict_on(judge, 0, short) is None
    assert judge.until(0) is None


def test_of_eight_trials_the_stopping_variant_keeps_more_than_a_third() -> None:
    """It rounds up and decides at once: 1 + 1/2 + 1/3 + 2/4 + ... + 3/8 of 8 in the mean; promotion rounds down."""
    draw = random.Random(0)
    kept: dict[str, list[int]] = {"stopping": [], "promotion": []}
    for _ in range(2000):
        courses = [Course([1.0], [draw.random()], reached=1.0, length=9.0) for _ in range(8)]
        judges = {
            "stopping": Judge(best_share(3), lambda index: [1.0], LOSS),
            "promotion": Promotion(3, lambda index: [1.0], LOSS),
        }
        for name, judge in judges.items():
            kept[name].append(sum(verdict_on(judge, index, courses) is None for index in range(8)))
    exact = sum(math.ceil(n / 3) / n for n in range(1, 9))
    assert exact == pytest.approx(3.87, abs=0.01)
    assert statistics.fmean(kept["stopping"]) == pytest.approx(exact, abs=0.1)
    assert statistics.fmean(kept["promotion"]) == pytest.approx(2.76, abs=0.1)
