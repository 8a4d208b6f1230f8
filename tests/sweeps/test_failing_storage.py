"""A storage that fails while a sweep runs: it delays what it concerns, and nothing else."""

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow.fs import LocalFileSystem
from ray.exceptions import ActorDiedError, RayTaskError
from ray.tune.experiment import Trial

from raysl.cluster.failures import reason
from raysl.config.load import load_config
from raysl.errors import ConfigError, RunFailed, StorageError
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.runs.folder import STOP_FILE, RunFolder
from raysl.storage.folder import outlast, without_waiting
from raysl.sweeps import tuning
from raysl.sweeps.board import Board
from raysl.sweeps.load import from_tree
from raysl.sweeps.outbox import Outbox
from raysl.sweeps.record import Record
from raysl.sweeps.replay import Replay
from raysl.sweeps.run_trial import failed_note
from raysl.sweeps.search import RandomSearch
from raysl.sweeps.stage import ERROR_FILE, Stage
from raysl.sweeps.stage_thread import ANSWER_S, StageThread
from raysl.sweeps.trial import ALONE
from raysl.sweeps.tuning import short_reason
from tests.leaderboard.boards import asha
from tests.sweeps.world import World

BASE = load_config("quickstart", ["train.epochs=4"])


class Failing(World):
    """A world in which the folders of some trials cannot be read."""

    unread: set[str]

    def look(self, record: Record) -> None:
        if record.trial.name in self.unread:
            raise StorageError(f"cannot read {record.trial.name}")
        super().look(record)


def _stage(folder: Path, concurrent: int = 1, told: Callable[[Record | None], object] = lambda record: None) -> Stage:
    world = Failing(lambda trial, epoch: 1.0, 4)
    world.unread = set()
    sweep = from_tree({"space": {"optim.lr": {"grid": [0.1, 0.2, 0.4]}}, "scheduler": "none"}, "")
    replay = Replay(RandomSearch(sweep, {ALONE: BASE}, 0), None, world.make, world.look)
    stage = Stage(replay, {ALONE: BASE}, RunFolder(str(folder)), concurrent, told)
    stage.world = world
    return stage


def _finish(stage: Stage, record: Record) -> None:
    name = record.trial.name
    stage.world.progress[name] = 4
    stage.world.done.add((name, 4))


def test_inside_without_waiting_the_first_failure_is_raised_and_outside_it_is_outlasted() -> None:
    calls: list[int] = []

    def fail_once() -> int:
        calls.append(1)
        if len(calls) % 2:
            raise StorageError("it does not answer")
        return len(calls)

    with without_waiting(), pytest.raises(StorageError, match="it does not answer"):
        outlast(fail_once)
    calls.clear()
    assert outlast(fail_once, sleep=lambda seconds: None) == 2


def test_the_end_of_a_trial_whose_folder_cannot_be_read_waits_while_the_others_end(tmp_path: Path) -> None:
    told: list[str] = []
    stage = _stage(tmp_path, 2, lambda record: record and told.append(record.trial.name))
    first, second = stage.start(), stage.start()
    assert first is not None
    assert second is not None
    _finish(stage, first)
    _finish(stage, second)
    stage.world.unread = {first.trial.name}
    stage.ended(first)
    stage.ended(second)
    assert told == [second.trial.name]
    assert first.is_running, "nobody is compared with it yet"
    assert not stage.is_over()
    assert stage.start() is not None, "the place of the second trial is free"
    assert stage.start() is None, "that of the first one is not"
    stage.look()
    assert told == [second.trial.name]
    stage.world.unread.clear()
    stage.look()
    assert told == [second.trial.name, first.trial.name]
    assert first.note is not None
    assert first.note.status == "finished"


def test_a_trial_whose_folder_can_not_be_read_for_half_an_hour_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysl.storage.folder.PATIENCE_S", 0.0)
    stage = _stage(tmp_path)
    first = stage.start()
    assert first is not None
    stage.world.unread = {first.trial.name}
    stage.ended(first)
    assert first.failure is not None
    assert f"its folder could not be read for 0 s: cannot read {first.trial.name}" in first.failure
    assert stage.start() is not None


def test_a_trial_that_was_drawn_while_its_folder_could_not_be_read_is_not_lost(tmp_path: Path) -> None:
    names = []
    for is_failing in (False, True):
        stage = _stage(tmp_path, 3)
        if is_failing:
            stage.world.unread = set(names[1:2])
            first = stage.start()
            assert first is not None
            assert stage.start() is None
            stage.world.unread.clear()
            assert [first.trial.name, *(stage.start().trial.name for _ in range(2))] == names
        else:
            names = [stage.start().trial.name for _ in range(3)]


def test_a_stop_that_cannot_be_written_is_asked_for_again_and_the_others_are_asked_at_once(tmp_path: Path) -> None:
    stage = _stage(tmp_path, 2)
    records = [stage.start(), stage.start()]
    folders = [tmp_path / record.trial.name for record in records if record is not None]
    folders[0].write_bytes(b"no folder")
    folders[1].mkdir()
    stage.is_ending = True
    stage.look()
    assert (folders[1] / STOP_FILE).exists()
    folders[0].unlink()
    folders[0].mkdir()
    stage.look()
    assert (folders[0] / STOP_FILE).exists()


def _full(is_full: list[bool]) -> None:
    if is_full[0]:
        error = StorageError("cannot write 'x': no space left on device; the disk is full")
        raise error from OSError(errno.ENOSPC, "no space left on device")


def test_what_a_full_disk_refuses_is_written_when_there_is_room_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    is_full, outbox = [True], Outbox()
    outbox.put("the note of trial_1", lambda: _full(is_full))
    outbox.flush()
    assert caplog.text.count("the note of trial_1 waits to be written: cannot write 'x': no space left") == 1
    assert outbox.num_waiting == 1
    is_full[0] = False
    outbox.flush()
    assert outbox.num_waiting == 0
    assert "the note of trial_1 is written now" in caplog.text
    is_full[0] = True
    outbox.put("error.txt of trial_2", lambda: _full(is_full))
    outbox.close()
    assert "error.txt of trial_2 is lost: its storage has failed until the end" in caplog.text


def test_the_traceback_of_a_failure_and_its_retry_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = _stage(tmp_path)
    record = stage.start()
    assert record is not None
    (tmp_path / record.trial.name).mkdir()
    stage.failed_once(record, "the loss is not finite", "Traceback ...", number=1, retries=2)
    assert f"{record.trial.name} failed and is tried again (retry 1 of 2): the loss is not finite" in caplog.text
    assert (tmp_path / record.trial.name / ERROR_FILE).read_text() == "Traceback ..."
    stage.failed_once(record, "its node is gone", "", number=0, retries=0)
    assert f"{record.trial.name} failed and is tried again: its node is gone" in caplog.text
    caplog.clear()
    stage.failed_once(record, "the loss is not finite", "Traceback ...", number=3, retries=2)
    assert "is tried again" not in caplog.text


def test_the_reason_of_a_failure_is_one_line_without_the_class_of_the_error() -> None:
    trace = (
        "ray.exceptions.RayTaskError(RunFailed): ray::X()\n  File x\nraysl.errors.RunFailed: the disk is full: /x\n\n"
    )
    assert short_reason(trace) == "the disk is full: /x"
    assert short_reason("") == "its process was lost"
    assert short_reason("KeyError: 'x'") == "KeyError: 'x'"
    assert short_reason("The actor died.") == "The actor died."


def test_the_loss_of_a_trials_process_is_one_line_without_what_ray_says_of_it() -> None:
    text = "The actor died unexpectedly.\n\tpid: 7\nWorker exit detail: connection error code 2."
    error = ActorDiedError()
    error.base_error_msg = error.error_msg = text
    assert tuning._reason(error, str(error)) == reason(error)
    assert "\n" not in tuning._reason(error, str(error))
    lost = RayTaskError("trial", "Traceback", RunFailed("the loss is not finite"))
    assert tuning._reason(lost, "raysl.errors.RunFailed: the loss is not finite") == "the loss is not finite"


def test_the_loss_of_a_trials_process_is_read_before_tune_has_brought_it_into_the_storage(tmp_path: Path) -> None:
    class Local(Trial):
        local_path = str(tmp_path)

    trial = Local("a", stub=True)
    trial.storage = SimpleNamespace(storage_filesystem=LocalFileSystem(), trial_fs_path=str(tmp_path / "storage"))
    error = ActorDiedError()
    error.base_error_msg = error.error_msg = "Worker exit detail: connection error code 2. " + "It may be ... " * 50
    trial.handle_error(error)
    assert tuning._reason(tuning._error(trial), tuning._trace(trial)) == reason(error)
    assert "its process was killed" in reason(error)


def test_a_leaderboard_whose_folder_is_full_is_written_once_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    is_full = [True]
    board = Board(RunFolder(str(tmp_path)), lambda state: asha(state=state))
    write = board.files.write
    monkeypatch.setattr(board.files, "write", lambda made: (_full(is_full), write(made))[1])
    for _ in range(3):
        board.write_now_and_then(force=True)
        board.took = 0.0
    assert caplog.text.count("the leaderboard is not written, and the trials go on: cannot write 'x'") == 1
    is_full[0] = False
    board.write_now_and_then(force=True)
    assert "the leaderboard is written again" in caplog.text
    assert Leaderboard.load(str(tmp_path)).facts.state == "running"


def test_tunes_loop_takes_trials_and_hands_over_events_while_the_storage_hangs(tmp_path: Path) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def told(record: Record | None) -> None:
        if record is not None:
            hangs.set()
            assert goes_on.wait(60)

    stage = _stage(tmp_path, 1, told)
    with StageThread(stage) as thread:
        while (record := thread.take()) is None:
            pass
        _finish(stage, record)
        begun = time.monotonic()
        thread.do(lambda: stage.ended(record))
        assert hangs.wait(60)
        assert thread.take() is None
        assert time.monotonic() - begun < ANSWER_S + 5
        assert not thread.is_over
        goes_on.set()
        while (second := thread.take()) is None:
            pass
        assert second is not record
        stage.is_ending = True
        thread.do(lambda: stage.ended(second))
    assert not stage.running, "the end of the block waits for all events"


def test_an_error_of_the_sweep_reaches_tunes_loop(tmp_path: Path) -> None:
    stage = _stage(tmp_path)
    stage.start = lambda: (_ for _ in ()).throw(ConfigError("no whole checkpoint is left in trial_1"))

    def take_all() -> None:
        with StageThread(stage) as thread:
            while True:
                thread.take()

    with pytest.raises(ConfigError, match="no whole checkpoint is left in trial_1"):
        take_all()


def test_a_failed_trial_without_a_folder_has_a_note_all_the_same(tmp_path: Path) -> None:
    config = load_config("quickstart", [f"storage={tmp_path}", "name=lost", "train.epochs=4"])
    note = failed_note(config, "its process was lost")
    assert (note.status, note.epoch, note.reason) == ("failed", 0.0, "its process was lost")
