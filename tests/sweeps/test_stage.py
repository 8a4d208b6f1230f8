"""What is asked of trials, and those that end without a result."""

from collections.abc import Callable
from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.runs.folder import STOP_FILE, RunFolder
from raysl.runs.stopping import describe_stop
from raysl.sweeps.judging import Verdict
from raysl.sweeps.load import from_tree
from raysl.sweeps.record import Note, Record, measures_of
from raysl.sweeps.replay import Replay
from raysl.sweeps.run import SweepRun
from raysl.sweeps.schedulers import judge_of
from raysl.sweeps.search import RandomSearch
from raysl.sweeps.stage import MOST_ENDS_WITHOUT, Stage
from raysl.sweeps.trial import ALONE, Trial
from tests.sweeps.world import World

BASE = load_config("quickstart", ["train.epochs=4"])


def _sweep(**settings: object):
    return from_tree({"space": {"optim.lr": {"grid": [0.1, 0.2]}}, "scheduler": "none", **settings}, "")


def _stage(folder: Path, told: Callable[[Record | None], object] = lambda record: None) -> Stage:
    world = World(lambda trial, epoch: 1.0, 4)
    replay = Replay(RandomSearch(_sweep(), {ALONE: BASE}, 0), None, world.make, world.look)
    return Stage(replay, {ALONE: BASE}, RunFolder(str(folder)), 1, told)


def test_a_trial_that_ends_again_and_again_without_a_result_is_given_up(tmp_path: Path) -> None:
    stage = _stage(tmp_path)
    first = stage.start()
    assert first is not None
    for turn in range(MOST_ENDS_WITHOUT + 1):
        assert first.failure is None
        stage.ended(first)
        if turn < MOST_ENDS_WITHOUT:
            assert stage.start() is first
    assert first.failure == "it ends again and again without having come to its end"
    second = stage.start()
    assert second is not None
    assert second is not first, "the others go on"


def test_a_trial_that_gets_on_at_each_start_is_not_given_up(tmp_path: Path) -> None:
    world = World(lambda trial, epoch: 1.0, 9)
    replay = Replay(RandomSearch(_sweep(), {ALONE: BASE}, 0), None, world.make, world.look)
    stage = Stage(replay, {ALONE: BASE}, RunFolder(str(tmp_path)), 1, lambda record: None)
    for epoch in range(1, 9):
        record = stage.start()
        assert record is replay.records[0]
        world.progress[record.trial.name] = epoch
        stage.ended(record)
        assert record.failure is None


def test_a_trial_that_was_stopped_goes_on_when_the_one_before_it_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world = World(lambda trial, epoch: -trial.settings["optim.lr"], 4)
    sweep = _sweep(scheduler="asha")
    replay = Replay(RandomSearch(sweep, {ALONE: BASE}, 0), judge_of(sweep, 4), world.make, world.look)
    stage = Stage(replay, {ALONE: BASE}, RunFolder(str(tmp_path)), 2, lambda record: None)
    first, second = stage.start(), stage.start()
    assert first is not None
    assert second is not None
    world.progress = {first.trial.name: 1, second.trial.name: 1}
    world.look(first)
    stage.ended(second)
    assert second.verdict is not None
    assert stage.start() is None
    stage.ended(first, "the loss is not finite")
    assert stage.start() is second
    assert f"{second.trial.name} goes on from epoch 1: one that it was compared with has failed since" in caplog.text
    assert not stage.is_over()


def test_a_trial_that_waits_to_be_promoted_trains_to_its_rung_alone(tmp_path: Path) -> None:
    world = World(lambda trial, epoch: -trial.settings["optim.lr"], 4)
    sweep = _sweep(scheduler="asha", variant="promotion", reduction=2)
    replay = Replay(RandomSearch(sweep, {ALONE: BASE}, 0), judge_of(sweep, 4), world.make, world.look)
    first = replay.next()
    assert first is not None
    assert replay.until(first) == 1
    world.progress[first.trial.name] = 1
    world.look(first)
    second = replay.next()
    assert second is not None
    assert second is not first
    world.progress[second.trial.name] = 1
    world.look(second)
    assert replay.next() is first
    assert replay.until(first) == 2


def test_a_trial_that_leaves_a_note_of_its_failure_is_not_tried_again_and_keeps_the_reason(tmp_path: Path) -> None:
    stage = _stage(tmp_path)
    record = stage.start()
    assert record is not None
    record.last = Note("failed", 4, reason="method.temperature and method.queue do not go together")
    stage.ended(record)
    assert record.failure == "method.temperature and method.queue do not go together"
    assert record.course.has_ended, "so that others are judged without it"
    second = stage.start()
    assert second is not None
    assert second is not record
    old = second.last = Note("failed", 4, reason="of an earlier start")
    stage.earlier[second.trial.name] = old
    stage.ended(second)
    assert second.failure is None


def test_what_is_to_stop_is_asked_to_by_a_note_in_its_folder(tmp_path: Path) -> None:
    told: list[Record | None] = []
    stage = _stage(tmp_path, told.append)
    record = stage.start()
    assert record is not None
    run = tmp_path / record.trial.name
    run.mkdir()
    stage.look()
    assert not (run / STOP_FILE).exists()
    stage.is_ending = True
    stage.look()
    asked = "its sweep was asked to end; the command that started the sweep goes on from there"
    assert (run / STOP_FILE).read_text() == asked
    assert told == [None, None]


def test_a_run_that_its_sweep_stops_says_so_and_names_no_command(tmp_path: Path) -> None:
    stage = _stage(tmp_path)
    record = stage.start()
    assert record is not None
    run = tmp_path / record.trial.name
    run.mkdir()
    stage.replay.search.replaced[record.trial.name] = Verdict(1.0, "loss 4 at epoch 1 is rank 2 of 2")
    stage.look()
    reason = (run / STOP_FILE).read_text()
    assert describe_stop(9, 32, "checkpoint_9", str(run), reason) == (
        "stopped at step 9 of 32; saved checkpoint_9; its sweep stopped it early: loss 4 at epoch 1 is rank 2 of 2"
    )


def test_trials_that_measure_otherwise_are_asked_for_their_own_measurements(tmp_path: Path) -> None:
    sweep = _sweep(
        space={"benchmarks.knn.k": {"grid": [[5], [20]]}}, metric="knn/k20/top1", benchmarks=["knn"], trials=1
    )
    base = load_config("quickstart", [f"storage={tmp_path}", "name=s", "train.epochs=4"])
    run = SweepRun.of(base, sweep)
    trials = [run.replay.search.next([], lambda index: None) for _ in range(2)]
    assert all(isinstance(trial, Trial) for trial in trials)
    asked = [run.measures(trial) for trial in trials]
    assert asked[0] != asked[1]
    assert asked == [measures_of(trial.run_of(run.bases, str(tmp_path))) for trial in trials]
