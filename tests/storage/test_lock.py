"""One driver at a time works in a run's folder, whatever clocks, networks and processes do meanwhile."""

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs

from raysl.checkpoint.files import seal
from raysl.errors import ConfigError, RunFailed, RunInUse, StorageError
from raysl.runs.folder import RunFolder
from raysl.runs.store import RemoteStore
from raysl.storage.exclusive import Unconditional, create_new
from raysl.storage.folder import Folder
from raysl.storage.lock import LockTimes, remote_lock
from raysl.storage.lock_files import Lock, LockFiles
from tests.processes import has_ended, wait_until

FAST = LockTimes(beat_s=0.05, stale_s=1.5, look_s=0.05, settle_s=0.3)
ME = rf"process {os.getpid()} on "


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder of files that is not taken for a local one."""
    return shared(tmp_path)


def shared(path: Path) -> Folder:
    folder = on(Exclusive(), Folder(f"{path}/one"))
    folder.make()
    return folder


class Exclusive(LocalFileSystem):
    """Files that only one of several processes can create, as S3 has them."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb", **options) as file:
            file.write(value)


def on(storage: LocalFileSystem, folder: Folder) -> Folder:
    """A folder by way of another file system."""
    folder.system = fs.PyFileSystem(fs.FSSpecHandler(storage))
    folder.is_local = False
    return folder


def leave(folder: Folder, age_s: float, generation: int = 1) -> Lock:
    """Files of a driver that is no more."""
    lock = Lock(generation, "x", "process 1 on gone", time.time() - age_s)
    folder.write(lock.name, json.dumps(asdict(lock)).encode())
    return lock


def locks(folder: Folder) -> list[str]:
    return [name for name in folder.names() if name.startswith((".lock", ".beat"))]


def test_a_local_folder_is_locked_by_the_system(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "one"))
    folder.make()
    folder.write(".lock", b"left by another process")
    with folder.locked():
        taken = pytest.raises(RunInUse, match=rf"is in use by {ME}.*; wait for it, stop it, or give")
        with taken, RunFolder(folder.uri).locked():
            pass
        other = RunFolder(str(tmp_path / "two"))
        other.make()
        with other.locked():
            pass
    with folder.locked():
        pass


def test_a_folder_in_use_is_waited_for_until_it_is_free_or_the_wait_is_called_off(tmp_path: Path) -> None:
    folder, called_off = RunFolder(str(tmp_path / "one")), threading.Event()
    folder.make()
    called_off.set()
    with ThreadPoolExecutor(1) as pool:
        with folder.locked():
            assert RunFolder(folder.uri).is_in_use()
            assert not RunFolder(folder.uri).wait_until_free(called_off)
            waiting = pool.submit(RunFolder(folder.uri).wait_until_free)
            time.sleep(0.1)
            assert not waiting.done()
        assert waiting.result(timeout=20)
    assert not folder.is_in_use()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_lock_that_cannot_be_written_is_a_message(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"cannot write .*/\.lock"), RunFolder(str(tmp_path)).locked():
        pass


def test_a_folder_behind_a_uri_is_locked_while_inside() -> None:
    folder = RunFolder("memory://raysl_lock/one")
    folder.make()
    for _ in range(2):
        with folder.locked():
            assert locks(folder)
        assert locks(folder) == []


def test_a_driver_at_work_is_seen_by_its_beat_whatever_its_clock_says(folder: Folder) -> None:
    for clock_s in (-200.0, 3600.0):
        with remote_lock(folder, FAST):
            wait_until(lambda: len(locks(folder)) == 2)
            beat = locks(folder)[0]
            folder.write(beat, json.dumps({"time": time.time() + clock_s}).encode())
            with pytest.raises(RunInUse, match=ME), remote_lock(folder, FAST):
                pass


@pytest.mark.parametrize("age_s", [-3600.0, 0.0, 200.0])
def test_a_lock_left_behind_is_taken_over_when_it_gave_no_sign_for_a_while(
    folder: Folder, age_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    leave(folder, age_s, generation=7)
    start = time.monotonic()
    with caplog.at_level(logging.INFO, "raysl"), remote_lock(folder, FAST):
        assert time.monotonic() - start >= FAST.stale_s
        assert [name for name in locks(folder) if "lock" in name] == [".lock-000008"]
    assert "in use by process 1 on gone: waiting up to 2 s for a sign of it" in caplog.text
    assert locks(folder) == []


def test_a_lock_older_than_any_clock_is_wrong_is_taken_over_at_once(folder: Folder) -> None:
    leave(folder, FAST.stale_s + FAST.clock_error_s + 10)
    with remote_lock(folder, replace(FAST, stale_s=60.0, clock_error_s=200.0)):
        assert ".lock-000002" in locks(folder)


def test_a_lock_given_back_during_the_wait_is_free(folder: Folder) -> None:
    lock = leave(folder, 0)
    removal = threading.Timer(0.3, folder.remove, [lock.name])
    removal.start()
    with remote_lock(folder, replace(FAST, stale_s=60.0)):
        assert ".lock-000001" in locks(folder)
    removal.join()


@pytest.mark.parametrize("left_s", [None, 0.0, 1000.0], ids=["free", "left behind", "left behind long ago"])
def test_of_many_at_once_one_wins(tmp_path: Path, left_s: float | None) -> None:
    if left_s is not None:
        leave(shared(tmp_path), left_s)
    num, ready, over = 16, threading.Barrier(16), threading.Barrier(16)

    def contend(_: int) -> bool:
        folder = shared(tmp_path)
        ready.wait()
        try:
            with remote_lock(folder, replace(FAST, stale_s=2.0 if left_s == 0.0 else 60.0)):
                over.wait()
                return True
        except RunInUse:
            over.wait()
            return False

    with ThreadPoolExecutor(num) as pool:
        assert sum(pool.map(contend, range(num))) == 1
    assert locks(shared(tmp_path)) == []


def contend_alone(path: Path, ready: Any, over: Any, won: Any) -> None:
    folder = shared(path)
    ready.wait()
    try:
        with remote_lock(folder, replace(FAST, stale_s=60.0)):
            with won:
                won.value += 1
            over.wait()
    except RunInUse:
        over.wait()


def test_of_several_processes_one_wins(tmp_path: Path) -> None:
    leave(shared(tmp_path), 1000.0)
    context = multiprocessing.get_context("fork")
    ready, over, won = context.Barrier(6, timeout=60), context.Barrier(6, timeout=60), context.Value("i", 0)
    processes = [context.Process(target=contend_alone, args=(tmp_path, ready, over, won)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    assert won.value == 1


# storage that misbehaves


class Storage(Exclusive):
    """A file system with faults."""

    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fail: Callable[[str], None] = lambda path: None  # called before files are opened
        self.create: Callable[[str], None] = lambda path: None  # called before files are created exclusively
        self.ignores_mode = False
        self.loses_answers = False
        self.vanished = 0  # listings during which a file is removed

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        if self.vanished:
            self.vanished -= 1
            raise FileNotFoundError(path)
        return super().ls(path, detail, **options)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.fail(path)
        return super()._open(path, mode, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if mode == "create":
            self.create(path)
        super().pipe_file(path, value, "overwrite" if self.ignores_mode else mode, **options)
        if self.loses_answers:
            raise FileExistsError(path)


def test_a_storage_that_fails_for_a_while_costs_no_lock(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    storage = Storage()
    lost: list[str] = []
    with remote_lock(on(storage, folder), FAST, lost.append):
        storage.fail = Failures(4)
        wait_until(lambda: storage.fail.left == 0)
        beat = LockFiles(folder).beat(LockFiles(folder).highest())
        wait_until(lambda: LockFiles(folder).beat(LockFiles(folder).highest()) != beat)
    assert lost == []
    assert "cannot renew the lock of the run, trying again: cannot" in caplog.text
    assert locks(folder) == []


def test_a_client_that_looks_before_it_writes_is_not_taken_for_exclusive(tmp_path: Path) -> None:
    folder = on(LocalFileSystem(), Folder(f"{tmp_path}"))
    with pytest.raises(Unconditional, match="LocalFileSystem"):
        create_new(folder.system, f"{tmp_path}/file", b"mine")


def test_a_listing_that_lacks_files_costs_no_lock(folder: Folder) -> None:
    storage = Storage()
    lost: list[str] = []
    with remote_lock(on(storage, folder), FAST, lost.append):
        storage.vanished = 5  # one stat that finds nothing empties a whole listing of fsspec's
        wait_until(lambda: storage.vanished == 0)
        beat = LockFiles(folder).beat(LockFiles(folder).highest())
        wait_until(lambda: LockFiles(folder).beat(LockFiles(folder).highest()) != beat)
    assert lost == []


class Failures:
    """Fails so many times."""

    def __init__(self, num: float) -> None:
        self.left = num

    def __call__(self, path: str) -> None:
        if self.left > 0:
            self.left -= 1
            raise OSError("no route to host")


def test_a_storage_that_fails_for_longer_than_a_lock_lasts_ends_no_driver(folder: Folder) -> None:
    storage = Storage()
    lost: list[str] = []
    with remote_lock(on(storage, folder), FAST, lost.append):
        storage.fail = Failures(float("inf"))
        time.sleep(FAST.stale_s + 0.2)
        storage.fail = lambda path: None
        beat = LockFiles(folder).beat(LockFiles(folder).highest())
        wait_until(lambda: LockFiles(folder).beat(LockFiles(folder).highest()) != beat)
    assert lost == []


def test_a_driver_that_was_overtaken_while_its_network_was_cut_stops_when_it_is_back(
    folder: Folder, tmp_path: Path
) -> None:
    storage = Storage()
    told = threading.Event()

    def work() -> None:
        with remote_lock(on(storage, folder), FAST, lambda message: told.set()):
            storage.fail = Failures(float("inf"))
            with remote_lock(shared(tmp_path), FAST):
                storage.fail = lambda path: None
                assert told.wait(20)

    with pytest.raises(RunFailed, match=told_of(f"{ME}.*")):
        work()


def test_a_worker_stores_nothing_for_a_driver_that_was_overtaken(folder: Folder, tmp_path: Path) -> None:
    lock = leave(folder, 0)
    told: list[str] = []
    (tmp_path / "logs").mkdir()
    store = RemoteStore(folder, tmp_path / "logs", keep=2, tell=told.append, lock=lock)
    store.put("checkpoint_000000005", lambda draft: seal(draft, {"step": 5}))
    store.finish()
    taken = replace(leave(folder, 0, generation=2), who="process 2 on there")
    folder.write(taken.name, json.dumps(asdict(taken)).encode())
    store.put("checkpoint_000000010", lambda draft: seal(draft, {"step": 10}))
    with pytest.raises(StorageError, match=r"nothing more is stored in .*, which is held by process 2 on there now"):
        store.finish()
    assert "checkpoint_000000010" not in folder.names()


def test_a_lock_of_a_process_of_this_machine_that_has_ended_is_taken_over_at_once(folder: Folder) -> None:
    script = "from raysl.storage.lock_files import *; import json; print(json.dumps(asdict(Place.here())))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    left = {**asdict(leave(folder, 0)), "place": json.loads(said)}
    folder.write(".lock-000001", json.dumps(left).encode())
    with remote_lock(folder, replace(FAST, stale_s=600.0)):
        assert ".lock-000002" in locks(folder)
        with pytest.raises(RunInUse, match=ME), remote_lock(folder, FAST):
            pass


def test_a_driver_whose_lock_was_taken_hears_who_has_it(folder: Folder) -> None:
    with pytest.raises(RunFailed, match=told_of("process 1 on gone")):
        work_until_lost(folder, lambda: leave(folder, 0, generation=2))
    assert ".lock-000002" in locks(folder), "the lock of the other one stays"


def work_until_lost(folder: Folder, change: Callable[[], object]) -> None:
    told: list[str] = []
    with remote_lock(folder, FAST, told.append):
        change()
        wait_until(lambda: told != [])


def told_of(who: str) -> str:
    return rf"is held by {who} now; this process stops, and the same command goes on from the newest checkpoint"


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_driver_whose_note_is_not_its_own_any_more_stops(folder: Folder, change: str) -> None:
    who = r"no one \(its files were removed\)" if change == "removed" else "process 1 on gone"
    with pytest.raises(RunFailed, match=told_of(who)):
        work_until_lost(folder, lambda: leave(folder, 0) if change == "replaced" else folder.remove(".lock-000001"))
    assert (".lock-000001" in locks(folder)) == (change == "replaced")


def test_one_who_comes_after_others_took_over_and_left_starts_again(folder: Folder) -> None:
    left = leave(folder, 1000.0, generation=5)
    storage = Storage()

    def others_come_and_go(path: str) -> None:
        storage.create = lambda path: None
        folder.remove(left.name)
        assert path.endswith(".lock-000006")

    storage.create = others_come_and_go
    with remote_lock(on(storage, folder), replace(FAST, stale_s=60.0)):
        assert [name for name in locks(folder) if "lock" in name] == [".lock-000001"]


def test_a_lost_answer_to_the_creation_loses_no_lock(folder: Folder) -> None:
    storage = Storage()
    storage.loses_answers = True
    with remote_lock(on(storage, folder), FAST):
        assert ".lock-000001" in locks(folder)


def test_a_storage_that_ignores_the_condition_is_noticed_and_asked_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ready, over = threading.Barrier(4), threading.Barrier(4)

    def contend(_: int) -> bool:
        storage = Storage()
        storage.ignores_mode = True
        folder = on(storage, shared(tmp_path))
        ready.wait()
        try:
            with remote_lock(folder, replace(FAST, stale_s=60.0)):
                over.wait()
                return True
        except RunInUse:
            over.wait()
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(contend, range(4))) == 1
    assert "has no writes that only one process can make" in caplog.text


# drivers that stop

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from raysl.storage.lock import LockTimes, remote_lock
from tests.storage.test_lock import FAST, shared
folder = shared(Path(sys.argv[1]))
with remote_lock(folder, FAST):
    child = subprocess.Popen(["sleep", "600"])
    print(child.pid, flush=True)
    while True:
        folder.write("written", str(time.time()).encode())
"""


def test_a_driver_that_slept_too_long_ends_with_all_it_started(folder: Folder, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGSTOP)
    with remote_lock(folder, FAST):
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 1
        assert said.count("error: ") == 1
        assert f"is held by process {os.getpid()} on " in said
        written = folder.read("written")
        wait_until(lambda: has_ended(child))
    assert folder.read("written") == written


# S3


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A folder in a bucket of a server on this machine."""
    server_of = pytest.importorskip("moto.server")
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    server = server_of.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    query = f"?endpoint_override={host}:{port}&scheme=http&region=us-east-1&allow_bucket_creation=true"
    folder = Folder(f"s3://bucket/runs/one{query}")
    folder.make()
    yield folder
    server.stop()


def test_a_lock_in_a_bucket_is_exclusive(bucket: Folder) -> None:
    pytest.importorskip("botocore")
    assert bucket.system.type_name == "s3"
    assert create_new(bucket.system, f"{bucket.path}/file", b"1")
    assert not create_new(bucket.system, f"{bucket.path}/file", b"2")
    assert bucket.read("file") == b"1"
    leave(bucket, 1000.0)
    with remote_lock(bucket, replace(FAST, stale_s=60.0)):
        assert ".lock-000002" in locks(bucket)
        with pytest.raises(RunInUse, match=ME), remote_lock(bucket, replace(FAST, stale_s=60.0)):
            pass
    assert locks(bucket) == []


def test_a_bucket_without_a_client_for_conditions_is_locked_by_reading_back(
    bucket: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with remote_lock(bucket, replace(FAST, stale_s=60.0)):
        assert "s3:// needs boto3" in caplog.text
        with pytest.raises(RunInUse, match=ME), remote_lock(bucket, replace(FAST, stale_s=60.0)):
            pass
    assert locks(bucket) == []
