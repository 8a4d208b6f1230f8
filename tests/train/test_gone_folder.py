"""A folder that has gone for a while, as when a shared disk is not mounted, loses nothing and stops nobody."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from raysl.checkpoint.checkpoint_folder import checkpoint_names, newest_whole
from raysl.errors import StorageError
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.storage.folder import Folder, outlast
from raysl.storage.owner import own_local
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.logs import MetricsLog, OnDisk, parse_metrics
from raysl.train.callbacks.tensorboard import TensorBoard
from raysl.train.disk import Disk
from raysl.train.reporter import Save
from raysl.train.store import LocalStore
from tests.train.problem import batches, problem


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("raysl.storage.folder", "raysl.train.disk"):
        monkeypatch.setattr(f"{module}.FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(f"{module}.LONGEST_PAUSE_S", 0.001)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder that counts as gone without its sign."""
    folder = Folder(str(tmp_path / "disk" / "run"))
    folder.make()
    folder.write(".probe", b"here")
    folder.sign = f"{folder.path}/.probe"
    return folder


class Unmount(Callback):
    """Takes a folder away after a step, with an empty one in its place, and brings it back after a later one."""

    def __init__(self, path: Path, gone: int, back: int | None) -> None:
        self.path, self.gone, self.back = path, gone, back

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if step.index == self.gone:
            self.path.rename(self.path.with_name("away"))
            self.path.mkdir()
        if step.index == self.back:
            self.bring_back()

    def bring_back(self) -> None:
        self.path.rmdir()  # fails if anything was written there
        self.path.with_name("away").rename(self.path)


class StoreReporter(LocalReporter):
    """Stores checkpoints as a run on Ray does."""

    def __init__(self, folder: Folder, disk: Disk) -> None:
        super().__init__(folder.path)
        self.store = LocalStore(folder, disk, keep=100)

    @override
    def report(self, metrics: dict[str, Any], save: Save | None) -> None:
        if save is not None:
            self.store.put(f"checkpoint_{int(metrics['step']):09d}", save)


def train(folder: Folder, unmount: Unmount, after: Callable[[], None] = lambda: None) -> Disk:
    state, plan = problem("train.epochs=2", "train.log_every=1st", "train.checkpoint_every=2st")
    path = Path(folder.path)
    disk = Disk(path, folder)
    reporter = StoreReporter(folder, disk)
    writers = OnDisk([MetricsLog(path), TensorBoard(path)], disk)
    fit(state, state.method, plan, batches(plan), callbacks=[unmount, writers], reporter=reporter)
    after()
    disk.settle()
    reporter.store.finish()
    disk.settle()
    assert newest_whole(folder).step == plan.total_steps
    lines = parse_metrics(folder.read("metrics.jsonl"))
    assert [line["step"] for line in lines] == list(range(1, plan.total_steps + 1))
    return disk


def events(folder: Folder) -> list[str]:
    return [json.loads(line)["event"] for line in folder.read("events.jsonl").splitlines()]


@pytest.mark.thorough
def test_logs_of_the_time_without_a_folder_are_written_when_it_is_back(folder: Folder) -> None:
    disk = train(folder, Unmount(Path(folder.path), gone=1, back=4))
    assert disk.failure is None
    assert any(f"{folder.path} is back after " in event for event in events(folder))


@pytest.mark.thorough
def test_a_folder_that_is_back_after_the_last_step_has_the_last_checkpoint_and_all_logs(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    unmount = Unmount(Path(folder.path), gone=1, back=None)
    train(folder, unmount, unmount.bring_back)
    told = [line.getMessage() for line in caplog.records if "training goes on, and its logs" in line.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(f"the folder {folder.uri} has gone, or its file .probe; bring it back as it was")
    assert checkpoint_names(folder)


def test_what_is_not_found_in_a_folder_that_has_gone_is_no_answer(folder: Folder, tmp_path: Path) -> None:
    child = folder.child("checkpoint_000000001")
    Path(folder.path).rename(tmp_path / "away")
    for ask in (partial(folder.exists, "metrics.jsonl"), folder.names, child.names, partial(folder.read_if_there, "a")):
        with pytest.raises(StorageError, match=r"has gone, or its file \.probe; bring it back as it was"):
            ask()
    with pytest.raises(StorageError, match="has gone"):
        folder.write("b", b"")
    assert not Path(folder.path).exists()
    pauses: list[float] = []

    def bring_back(seconds: float) -> None:
        pauses.append(seconds)
        (tmp_path / "away").rename(folder.path)

    assert outlast(folder.names, sleep=bring_back) == [".probe"]
    assert len(pauses) == 1


def test_a_folder_counts_as_gone_only_while_a_process_owns_it(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "run"))
    folder.make()
    with own_local(folder):
        Path(folder.path).rename(tmp_path / "away")
        with pytest.raises(StorageError, match="has gone"):
            folder.exists()
    assert not folder.exists()
