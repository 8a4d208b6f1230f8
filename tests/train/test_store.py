"""Checkpoints and logs reach a storage that fails, and training does not wait for it."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from raysl.checkpoint.checkpoint_folder import checkpoint_name, checkpoint_names, newest_whole, seal
from raysl.errors import StorageError
from raysl.storage.folder import Folder, outlast
from raysl.train.disk import Disk
from raysl.train.file_names import EVENTS_FILE, parse_events
from raysl.train.store import LocalStore, RemoteStore
from tests.checkpoint.facts import facts
from tests.faults import Faults


@pytest.fixture
def run(tmp_path: Path, faults: Faults) -> Folder:
    folder = Folder(f"faulty://{tmp_path}/bucket/run")
    folder.make()
    return folder


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "metrics.jsonl").write_text('{"step": 1}\n')
    return logs


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysl.storage.folder.LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr("raysl.storage.folder.FIRST_PAUSE_S", 0.01)


def save_of(step: int) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        (folder / "train_state.pt").write_bytes(b"x" * 10_000)
        seal(folder, facts(step))

    return save


def noted(logs: Path) -> list[str]:
    """Return the events that tell of a storage that fails."""
    content = (logs / EVENTS_FILE).read_bytes()
    return [event["event"] for event in parse_events(content) if event.get("kind") != "save"]


def put(store: RemoteStore, *steps: int) -> None:
    for step in steps:
        store.put(checkpoint_name(step), save_of(step))


def test_checkpoints_and_logs_arrive_and_old_ones_go(run: Folder, logs: Path, faults: Faults) -> None:
    store = RemoteStore(run, Disk(logs), keep=2)
    put(store, 5, 10, 15)
    store.finish()
    assert checkpoint_names(run) == [checkpoint_name(10), checkpoint_name(15)]
    assert newest_whole(run).step == 15
    assert run.read("metrics.jsonl") == b'{"step": 1}\n'
    assert noted(logs) == []


def test_a_storage_that_fails_for_a_while_loses_nothing(run: Folder, logs: Path, faults: Faults) -> None:
    faults.add("*", "bucket/run", times=23)
    store = RemoteStore(run, Disk(logs), keep=2)
    put(store, 5)
    store.finish()
    assert faults.num_left() == 0
    assert newest_whole(run).step == 5
    (event,) = noted(logs)
    assert "the storage does not answer" in event
    assert event.endswith("training goes on, and it is tried again")


def test_what_cannot_be_stored_is_given_up_for_what_is_newer(run: Folder, logs: Path, faults: Faults) -> None:
    faults.add("write", "checkpoint_000000005", times=None)
    store = RemoteStore(run, Disk(logs), keep=2)
    put(store, 5, 10)
    store.finish()
    assert newest_whole(run).step == 10
    assert any(line.startswith("gave up checkpoint_000000005") for line in noted(logs))


@pytest.mark.thorough
def test_training_does_not_wait_for_a_slow_storage_before_the_next_but_one(
    run: Folder, logs: Path, faults: Faults
) -> None:
    faults.add("write", "checkpoint_000000005/train_state", "wait", seconds=0.5)
    store = RemoteStore(run, Disk(logs), keep=2)
    put(store, 5, 10)
    assert not run.exists("checkpoint_000000005/meta.json"), "it is still on its way"
    store.finish()
    assert checkpoint_names(run) == [checkpoint_name(5), checkpoint_name(10)]


def test_a_storage_that_never_answers_again_ends_in_an_error(
    run: Folder, logs: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysl.storage.folder.PATIENCE_S", 0.05)
    faults.add("*", "bucket/run", times=None)
    store = RemoteStore(run, Disk(logs), keep=2)
    put(store, 5)
    with pytest.raises(StorageError, match="the storage does not answer"):
        store.finish()


def test_a_last_checkpoint_that_could_not_be_written_is_an_error_though_the_logs_arrive(
    run: Folder, logs: Path, faults: Faults
) -> None:
    def full(draft: Path) -> None:
        raise OSError(28, "No space left on device")

    store = RemoteStore(run, Disk(logs), keep=2)
    put(store, 5)
    store.put(checkpoint_name(10), full)
    with pytest.raises(StorageError, match=r"cannot write checkpoint_000000010 .*No space left on device"):
        store.finish()
    put(store, 15)
    store.finish()
    assert newest_whole(run).step == 15


def test_a_local_disk_that_fails_skips_a_checkpoint_and_the_last_one_is_tried_again(
    tmp_path: Path, faults: Faults
) -> None:
    folder = Folder(str(tmp_path / "run"))
    folder.make()
    store = LocalStore(folder, Disk(Path(folder.path)), keep=2)
    put(store, 5)
    tries = []

    def broken(draft: Path) -> None:
        tries.append(draft)
        if len(tries) < 3:
            raise OSError(5, "Input/output error")
        save_of(10)(draft)

    store.put(checkpoint_name(10), broken)
    assert "Input/output error; training goes on" in noted(tmp_path / "run")[0]
    assert newest_whole(folder).step == 5
    store.finish()
    assert newest_whole(folder).step == 10
    assert len(tries) == 3


def test_patience_ends_and_other_errors_pass_at_once() -> None:
    pauses: list[float] = []

    def fail() -> None:
        raise StorageError("down")

    with pytest.raises(StorageError):
        outlast(fail, patience_s=0.1, sleep=pauses.append)
    assert sum(pauses) >= 0.1
    with pytest.raises(KeyError):
        outlast(lambda: {}["x"], sleep=pauses.append)
    is_over = threading.Event()
    is_over.set()
    num = len(pauses)
    with pytest.raises(StorageError):
        outlast(fail, goes_on=lambda: not is_over.is_set(), sleep=pauses.append)
    assert len(pauses) == num
