"""A full disk ends a run cleanly: it is named, nothing whole is lost, and no step fails of it."""

import errno
import os
import resource
from functools import partial
from pathlib import Path

import pytest

from raysl.checkpoint.backbone import load_backbone
from raysl.checkpoint.checkpoint_folder import checkpoint_name, newest
from raysl.errors import StorageError
from raysl.methods.method import StepOutput
from raysl.runs.folder import RunFolder
from raysl.runs.follow import read_events
from raysl.schedule import Step
from raysl.storage.folder import Folder, outlast
from raysl.storage.reads import refusal
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.logs import MetricsLog, OnDisk, parse_metrics
from raysl.train.callbacks.stop import StopRequest
from raysl.train.callbacks.tensorboard import TensorBoard
from raysl.train.disk import Disk
from raysl.train.file_names import EVENTS_FILE, METRICS_FILE, parse_events
from raysl.train.store import LocalStore
from tests.train.problem import batches, problem

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def fill(folder: Path) -> None:
    """Write to a device that is always full."""
    (folder / "half").write_bytes(b"x" * 1000)
    with open("/dev/full", "wb") as file:
        file.write(b"x" * 100_000)


def test_a_checkpoint_that_a_refusal_refuses_is_named_and_leaves_the_one_before(tmp_path: Path) -> None:
    run = tmp_path / "run"
    disk = Disk(run)
    run.mkdir()
    store = LocalStore(Folder(str(run)), disk, keep=2)
    state, _ = problem()
    state.step = 5
    store.put(checkpoint_name(5), lambda folder: state.save(folder, {}))
    assert disk.failure is None
    store.put(checkpoint_name(10), fill)
    assert disk.failure is not None
    assert disk.failure.startswith(f"the disk is full: {run} has ")
    assert disk.failure.endswith(" free; make room there, then the same command goes on")
    with pytest.raises(StorageError, match="No space left on device"):
        store.finish()
    assert sorted(path.name for path in run.iterdir()) == [checkpoint_name(5), EVENTS_FILE]
    assert newest(str(run)) == f"{run}/{checkpoint_name(5)}"
    assert load_backbone(str(run)).feature_dim == state.method.export().feature_dim


def test_a_run_says_which_checkpoints_it_has_saved_and_its_report_does_not(tmp_path: Path) -> None:
    state, _ = problem()
    store = LocalStore(Folder(str(tmp_path)), Disk(tmp_path), keep=2)
    store.put(checkpoint_name(5), lambda folder: state.save(folder, {}))
    assert read_events(RunFolder(str(tmp_path))) == ["saved checkpoint_000000005"]
    assert read_events(RunFolder(str(tmp_path)), with_saves=False) == []


class _FillDisk(Callback):
    """Has the metrics go to a device that is always full from a step on."""

    def __init__(self, logs: Path, at: int) -> None:
        self.logs = logs
        self.at = at

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if step.index == self.at:
            (self.logs / METRICS_FILE).unlink()
            (self.logs / METRICS_FILE).symlink_to("/dev/full")


@pytest.mark.thorough
def test_logs_that_a_refusal_refuses_stop_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    disk = Disk(logs)
    state, plan = problem("train.epochs=2000", "train.log_every=1st")
    stop = StopRequest(lambda: False, has_failed=lambda: disk.failure is not None)
    writers = OnDisk([MetricsLog(logs), TensorBoard(logs)], disk)
    callbacks = [_FillDisk(logs, at=3), stop, writers]
    fit(state, state.method, plan, batches(plan), callbacks=callbacks, reporter=LocalReporter(tmp_path / "run"))
    assert state.step in (3, 4)
    assert disk.failure is not None
    assert disk.failure.startswith(f"the disk is full: {logs} has ")
    assert newest(str(tmp_path / "run")).endswith(checkpoint_name(state.step))


def test_a_start_leaves_out_a_damaged_line_of_metrics_alone_and_keeps_the_file_aside(tmp_path: Path) -> None:
    state, plan = problem()
    state.step = 3
    good = [b'{"step": 1, "loss": 1.0}\n', b'{"step": 3, "loss": 0.5}\n']
    content = good[0] + b'{"step": 2, \0\0\0\0\n' + good[1]
    (tmp_path / METRICS_FILE).write_bytes(content)
    MetricsLog(tmp_path).on_train_start(Run(state, plan))
    assert (tmp_path / METRICS_FILE).read_bytes() == b"".join(good)
    assert (tmp_path / f"{METRICS_FILE}.damaged").read_bytes() == content
    (event,) = parse_events((tmp_path / EVENTS_FILE).read_bytes())
    assert event["event"].startswith(f"{tmp_path / METRICS_FILE}: 1 damaged line is left out: line 2: ")
    assert event["event"].endswith(f"; the file as it was is {METRICS_FILE}.damaged")


def test_metrics_of_before_outlive_a_start_on_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, plan = problem()
    state.step = 1
    (tmp_path / METRICS_FILE).write_bytes(b'{"step": 1, "loss": 1.0}\n')
    (tmp_path / f"{METRICS_FILE}.part").symlink_to("/dev/full")
    disk = Disk(tmp_path)
    OnDisk([MetricsLog(tmp_path)], disk).on_train_start(Run(state, plan))
    assert disk.failure is not None
    assert parse_metrics((tmp_path / METRICS_FILE).read_bytes()) == [{"step": 1, "loss": 1.0}]


@pytest.mark.parametrize(
    ("number", "what", "remedy"),
    [
        (errno.ENOSPC, "the disk is full: ", "free; make room there"),
        (errno.EDQUOT, "the quota is used up: ", "free; make room there, or have it raised"),
        (errno.EFBIG, "a file would be larger than this process may write: ", "raise the limit (ulimit -f)"),
        (errno.EROFS, "the folder is read-only: ", "make it writable"),
        (errno.EACCES, "this user may not write there: ", "give the right to"),
    ],
)
def test_a_disk_that_refuses_is_remembered_with_what_to_do(tmp_path: Path, number: int, what: str, remedy: str) -> None:
    disk = Disk(tmp_path)
    with disk.writing():
        raise OSError(number, os.strerror(number))
    assert disk.failure is not None
    assert disk.failure.startswith(f"{what}{tmp_path}")
    assert disk.failure.endswith(f"{remedy}, then the same command goes on")
    assert "\n" not in disk.failure


def test_a_limit_of_the_size_of_files_counts_as_a_full_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    store = LocalStore(Folder(str(tmp_path)), disk, keep=2)
    state, _ = problem()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        store.put(checkpoint_name(5), lambda folder: state.save(folder, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert disk.failure is not None
    assert disk.failure.startswith(f"a file would be larger than this process may write: {tmp_path};")
    assert not any(path.name.startswith("checkpoint") for path in tmp_path.iterdir())


def test_other_errors_of_a_disk_are_not_taken_for_a_full_one(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with pytest.raises(OSError, match="Input/output"), disk.writing():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    assert disk.failure is None


def test_a_refusal_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(bytes(100_000))
    (tmp_path / "kept").symlink_to("/dev/full")
    pauses: list[float] = []
    with pytest.raises(StorageError, match=r"No space left on device; the disk is full: make room there"):
        outlast(partial(Folder(str(tmp_path)).copy_in, tmp_path / "model", "kept"), sleep=pauses.append)
    assert pauses == []


def test_an_error_that_is_behind_itself_has_an_end() -> None:
    first, second = OSError(errno.EIO, os.strerror(errno.EIO)), ValueError("again")
    first.__cause__, second.__cause__ = second, first
    assert refusal(first) is None
