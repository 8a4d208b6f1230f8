"""A storage that fails while a sweep runs: it delays what it concerns, and nothing else."""

import errno
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem
from ray.exceptions import ActorDiedError
from ray.tune.experiment import Trial as TuneTrial

from raysl.cluster.failures import reason
from raysl.config.load import load_config
from raysl.errors import ConfigError, StorageError
from raysl.leaderboard import board_files
from raysl.leaderboard.board_files import Board
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder, outlast, without_waiting
from raysl.storage.outbox import Outbox
from raysl.sweeps import ledger
from raysl.sweeps.ledger import ERROR_FILE, Ledger
from raysl.sweeps.record import Record
from raysl.tune.failures import reason_of, short_reason, trace_of
from raysl.tune.run_trial import failed_note
from raysl.tune.trial import ALONE, Note, Trial
from tests.leaderboard.boards import asha

BASE = load_config("quickstart", ["train.epochs=4"])
FIRST, SECOND = Trial({"optim.lr": 0.1}, 0), Trial({"optim.lr": 0.2}, 0)


class Unread(Record):
    """A record whose folder may be unreadable."""

    unread: set[str] = set()

    def refresh(self, folder: Folder) -> None:
        if self.trial.name in self.unread:
            raise StorageError(f"cannot read {self.trial.name}")
        super().refresh(folder)


def _ledger(folder: Path, on_update: Any = lambda record: None) -> Ledger:
    Unread.unread = set()
    made = Ledger({ALONE: BASE}, RunFolder(str(folder)), lambda trial: Unread(trial, 4, {}))
    made.on_update = on_update
    made.add(FIRST)
    made.add(SECOND)
    return made


def _finish(folder: Path, trial: Trial) -> None:
    own = Folder(str(folder)).child(trial.name)
    own.make()
    Note("finished", 4, 4.0, {"loss": 1.0}).write(own)


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


@pytest.mark.thorough
def test_the_end_of_a_trial_whose_folder_cannot_be_read_is_read_later_and_the_others_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledger, "ENDING_S", 0.5)
    own = _ledger(tmp_path)
    for trial in (FIRST, SECOND):
        own.begin(trial)
        _finish(tmp_path, trial)
    Unread.unread = {FIRST.name}
    with own.following():
        own.submit(lambda: own.end(FIRST))
        own.submit(lambda: own.end(SECOND))
    assert [record.status for record in own.records.values()] == ["waiting", "finished"]
    assert caplog.text.count(f"{FIRST.name} waits for its storage, and the others go on: cannot read") == 1
    Unread.unread = set()
    own._refresh_all()
    assert [record.status for record in own.records.values()] == ["finished", "finished"]


def test_all_that_waits_is_handled_before_the_folders_are_refreshed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "REFRESH_EVERY_S", 0.0)
    order: list[str] = []
    own = _ledger(tmp_path, on_update=lambda record: order.append("refresh"))
    for name in ("first", "second", "third"):
        own.submit(lambda name=name: order.append(name))
    own._refreshed_at = -own.folder.look_every_s
    own._step()
    assert order == ["first", "second", "third", "refresh"]


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
    own = _ledger(tmp_path)
    (tmp_path / FIRST.name).mkdir()
    own.fail_once(FIRST, "the loss is not finite", "Traceback ...", number=1, retries=2)
    assert f"{FIRST.name} failed and is tried again (retry 1 of 2): the loss is not finite" in caplog.text
    assert (tmp_path / FIRST.name / ERROR_FILE).read_text() == "Traceback ..."
    own.fail_once(FIRST, "its node is gone", "", number=0, retries=0)
    assert f"{FIRST.name} failed and is tried again: its node is gone" in caplog.text
    own.fail(FIRST, "the loss is not finite", "Traceback again")
    assert (own.records[FIRST.name].status, own.records[FIRST.name].reason) == ("failed", "the loss is not finite")
    note = Note.read(Folder(str(tmp_path / FIRST.name)))
    assert note is not None
    assert (note.status, note.reason) == ("failed", "the loss is not finite")
    assert (tmp_path / FIRST.name / ERROR_FILE).read_text() == "Traceback again"


def test_the_reason_of_a_failure_is_one_line_without_the_class_of_the_error() -> None:
    trace = (
        "ray.exceptions.RayTaskError(RunFailed): ray::X()\n  File x\nraysl.errors.RunFailed: the disk is full: /x\n\n"
    )
    assert short_reason(trace) == "the disk is full: /x"
    assert short_reason("") == "its process was lost"
    assert short_reason("KeyError: 'x'") == "KeyError: 'x'"
    assert short_reason("The actor died.") == "The actor died."


def test_the_loss_of_a_trials_process_is_read_before_tune_has_brought_it_into_the_storage(tmp_path: Path) -> None:
    class Local(TuneTrial):
        local_path = str(tmp_path)

    trial = Local("a", stub=True)
    trial.storage = SimpleNamespace(storage_filesystem=LocalFileSystem(), trial_fs_path=str(tmp_path / "storage"))
    error = ActorDiedError()
    error.base_error_msg = error.error_msg = "Worker exit detail: connection error code 2. " + "It may be ... " * 50
    trial.handle_error(error)
    assert reason_of(trial, trace_of(trial)) == reason(error)
    assert "\n" not in reason(error)
    assert "its process was killed" in reason(error)


@pytest.mark.thorough
def test_a_leaderboard_whose_folder_is_full_is_written_once_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    is_full = [True]
    board = Board(RunFolder(str(tmp_path)), lambda state: asha(state=state))
    write = board_files.write
    monkeypatch.setattr(board_files, "write", lambda *made: (_full(is_full), write(*made))[1])
    for _ in range(3):
        board.write_now_and_then(force=True)
        board.took = 0.0
    assert caplog.text.count("the leaderboard is not written, and the trials go on: cannot write 'x'") == 1
    is_full[0] = False
    board.write_now_and_then(force=True)
    assert "the leaderboard is written again" in caplog.text
    assert Leaderboard.load(str(tmp_path)).facts.state == "running"


def test_tunes_loop_goes_on_while_the_storage_hangs(tmp_path: Path) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def on_update(record: Record | None) -> None:
        if record is not None and not goes_on.is_set():
            hangs.set()
            assert goes_on.wait(60)

    own = _ledger(tmp_path, on_update)
    with own.following():
        begun = time.monotonic()
        own.submit(lambda: own.end(FIRST))
        assert hangs.wait(60)
        own.submit(lambda: own.end(SECOND))
        assert time.monotonic() - begun < 5
        _finish(tmp_path, SECOND)
        goes_on.set()
    assert own.records[SECOND.name].status == "finished", "the end of the block waits for all events"


def test_an_error_of_the_sweep_ends_it(tmp_path: Path) -> None:
    def on_update(record: Record | None) -> None:
        raise ConfigError("no whole checkpoint is left in trial_1")

    own = _ledger(tmp_path, on_update)
    with pytest.raises(ConfigError, match="no whole checkpoint is left in trial_1"), own.following():
        own.submit(lambda: own.end(FIRST))


def test_a_failed_trial_without_a_folder_has_a_note_all_the_same(tmp_path: Path) -> None:
    config = load_config("quickstart", [f"storage={tmp_path}", "name=lost", "train.epochs=4"])
    note = failed_note(config, "its process was lost")
    assert (note.status, note.epoch, note.reason) == ("failed", 0.0, "its process was lost")
