"""One driver at a time works in a run's folder, whatever clocks, networks and processes do meanwhile."""

import fcntl
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
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs

from raysl.checkpoint.checkpoint_folder import seal
from raysl.errors import ConfigError, RunFailed, RunInUse, StorageError
from raysl.process.environment import JOB_VARIABLE
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder
from raysl.storage.owner import Owner, OwnerFiles, OwnerTimes, is_at_work, is_owned, own_folder, own_remote
from raysl.storage.owner_files import Unconditional, create_new
from raysl.train.disk import Disk
from raysl.train.store import RemoteStore
from tests.checkpoint.facts import facts
from tests.processes import has_ended, wait_until

FAST = OwnerTimes(beat_s=0.05, stale_s=1.5, look_s=0.05, settle_s=1.0)
WRITING = threading.Lock()
ME = rf"process {os.getpid()} on "
SINCE = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"


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


def leave(folder: Folder, age_s: float, generation: int = 1) -> Owner:
    """Files of a driver that is no more."""
    owner = Owner(generation, "x", "process 1 on gone", time.time() - age_s, None)
    folder.write(owner.name, json.dumps(asdict(owner)).encode())
    return owner


def newest_beat(folder: Folder) -> bytes:
    files = OwnerFiles(folder)
    owner = files.newest()
    assert owner is not None
    return files.beat(owner)


def files_of(folder: Folder) -> list[str]:
    return [name for name in folder.names() if name.startswith((".lock", ".beat"))]


@pytest.mark.thorough
def test_a_local_folder_is_locked_by_the_system(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "one"))
    folder.make()
    folder.write(".lock", b"left by another process")
    with own_folder(folder):
        taken = pytest.raises(RunInUse, match=rf"is in use by {ME}.* \(since {SINCE}\); wait for it, stop it, or give")
        with taken, own_folder(RunFolder(folder.uri)):
            pass
        other = RunFolder(str(tmp_path / "two"))
        other.make()
        with own_folder(other):
            pass
    with own_folder(folder):
        pass


def test_a_look_at_a_local_folder_keeps_nobody_from_owning_it(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with open(tmp_path / ".lock") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.1, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        with own_folder(Folder(str(tmp_path))):
            assert is_owned(Folder(str(tmp_path)))


@pytest.mark.thorough
def test_the_refusal_of_a_second_driver_names_the_ray_job_of_the_first(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = json.dumps({"runtime_env": {}, "metadata": {"job_submission_id": "raysubmit_7", "job_name": "mine"}})
    wanted = (
        rf"is in use by the Ray job raysubmit_7, {ME}.* \(since {SINCE}\); wait for it, "
        "stop it by `ray job stop raysubmit_7`, or give"
    )
    local = RunFolder(str(tmp_path / "local"))
    local.make()
    monkeypatch.setenv(JOB_VARIABLE, job)
    with own_folder(local), own_remote(folder, times=FAST):
        monkeypatch.delenv(JOB_VARIABLE)
        with pytest.raises(RunInUse, match=wanted), own_folder(RunFolder(local.uri)):
            pass
        with pytest.raises(RunInUse, match=wanted), own_remote(folder, times=FAST):
            pass


def test_a_driver_at_work_is_seen_at_once_and_one_that_was_killed_is_not(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    assert not is_at_work(folder, folder.versions())
    with own_remote(folder, times=FAST):
        wait_until(lambda: len(files_of(folder)) == 2)
        before = files_of(folder)
        start = time.monotonic()
        assert is_at_work(folder, folder.versions())
        assert time.monotonic() - start < FAST.stale_s
        assert files_of(folder) == before
    assert not is_at_work(folder, folder.versions())
    assert not caplog.records, "nothing doubts that it lives"
    beat = OwnerFiles(folder)
    beat.renew(killed := leave(folder, age_s=1000.0))
    os.utime(f"{folder.path}/{killed.beat_name}", (1e9, 1e9))
    assert not is_at_work(folder, folder.versions())


def test_a_free_folder_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = RunFolder(str(tmp_path / "one"))
    folder.make()
    with caplog.at_level(logging.INFO, logger="raysl"):
        assert folder.wait_until_free()
    assert not caplog.records


@pytest.mark.thorough
def test_a_folder_in_use_is_waited_for_until_it_is_free_or_the_wait_is_called_off(tmp_path: Path) -> None:
    folder, called_off = RunFolder(str(tmp_path / "one")), threading.Event()
    folder.make()
    called_off.set()
    with ThreadPoolExecutor(1) as pool:
        with own_folder(folder):
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
    with pytest.raises(ConfigError, match=r"cannot write .*/\.lock"), own_folder(RunFolder(str(tmp_path))):
        pass


def test_a_folder_behind_a_uri_is_locked_while_inside() -> None:
    folder = RunFolder("memory://raysl_lock/one")
    folder.make()
    for _ in range(2):
        with own_folder(folder):
            assert files_of(folder)
        assert files_of(folder) == []


def test_a_driver_at_work_is_seen_by_its_beat_whatever_its_clock_says(folder: Folder) -> None:
    for clock_s in (-200.0, 3600.0):
        with own_remote(folder, times=FAST):
            wait_until(lambda: len(files_of(folder)) == 2)
            beat = files_of(folder)[0]
            folder.write(beat, json.dumps({"time": time.time() + clock_s}).encode())
            with pytest.raises(RunInUse, match=rf"{ME}.* \(since {SINCE}\); wait"), own_remote(folder, times=FAST):
                pass


def files_of_a_former_version(folder: Folder, age_s: float) -> Callable[[int], None]:
    """Write what an owner of that version has written; return what writes its next beat."""
    then = time.time() - age_s
    owner = {"generation": 3, "token": "0f", "who": "process 7 on there", "time": then}
    place = {"boot": "1-2", "space": "pid:[4026531836]", "pid": 7, "started": "99"}
    folder.write(".lock-000003", json.dumps(owner | {"process": place}).encode())

    def beat(number: int) -> None:
        folder.write(".beat-0f", json.dumps({"time": then + number, "number": number}).encode())

    beat(1)
    return beat


@pytest.mark.thorough
def test_an_owner_of_a_former_version_is_respected_while_it_is_at_work(folder: Folder) -> None:
    beat = files_of_a_former_version(folder, 0.0)
    at_work = threading.Timer(0.3, beat, [2])
    at_work.start()
    with (
        pytest.raises(RunInUse, match=rf"in use by process 7 on there \(since {SINCE}\)"),
        own_remote(folder, times=replace(FAST, stale_s=60.0)),
    ):
        pass
    at_work.join()


def test_a_folder_that_an_owner_of_a_former_version_left_behind_is_taken_over(folder: Folder) -> None:
    files_of_a_former_version(folder, 1000.0)
    with own_remote(folder, times=replace(FAST, stale_s=60.0)):
        wait_until(lambda: len(files_of(folder)) == 2)
        assert ".lock-000004" in files_of(folder)
        assert ".beat-0f" not in files_of(folder)


@pytest.mark.thorough
def test_an_owner_whose_file_was_read_half_written_is_respected(folder: Folder, tmp_path: Path) -> None:
    owner, storage = leave(folder, 0.0), Storage()
    contents = iter([b"{", folder.read(owner.name)])

    def write_on(path: str) -> None:
        if path.endswith(owner.name) and (content := next(contents, None)) is not None:
            Path(path).write_bytes(content)

    storage.fail = write_on
    at_work = threading.Timer(0.3, OwnerFiles(folder).renew, [owner])
    at_work.start()
    with (
        pytest.raises(RunInUse, match="in use by process 1 on gone"),
        own_remote(on(storage, shared(tmp_path)), times=FAST),
    ):
        pass
    at_work.join()


@pytest.mark.thorough
@pytest.mark.parametrize("age_s", [-3600.0, 0.0, 200.0])
def test_a_lock_left_behind_is_taken_over_when_it_gave_no_sign_for_a_while(
    folder: Folder, age_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    owner = leave(folder, age_s, generation=7)
    start = time.monotonic()
    with caplog.at_level(logging.INFO, "raysl"), own_remote(folder, times=FAST):
        assert time.monotonic() - start >= FAST.stale_s
        assert [name for name in files_of(folder) if "lock" in name] == [".lock-000008"]
    assert f"in use by {owner}: waiting up to 2 s for a sign of it" in caplog.text
    assert files_of(folder) == []


def test_a_lock_older_than_any_clock_is_wrong_is_taken_over_at_once(folder: Folder) -> None:
    leave(folder, FAST.stale_s + FAST.clock_error_s + 10)
    with own_remote(folder, times=replace(FAST, stale_s=60.0, clock_error_s=200.0)):
        assert ".lock-000002" in files_of(folder)


@pytest.mark.thorough
def test_a_lock_given_back_during_the_wait_is_free(folder: Folder) -> None:
    owner = leave(folder, 0)
    removal = threading.Timer(0.3, folder.remove, [owner.name])
    removal.start()
    with own_remote(folder, times=replace(FAST, stale_s=60.0)):
        assert ".lock-000001" in files_of(folder)
    removal.join()


@pytest.mark.thorough
@pytest.mark.parametrize("left_s", [None, 0.0, 1000.0], ids=["free", "left behind", "left behind long ago"])
def test_of_many_at_once_one_wins(tmp_path: Path, left_s: float | None) -> None:
    if left_s is not None:
        leave(shared(tmp_path), left_s)
    assert num_owners(lambda: shared(tmp_path), 16, stale_s=4.0 if left_s == 0.0 else 60.0) == 1
    assert files_of(shared(tmp_path)) == []


def num_owners(open_folder: Callable[[], Folder], num: int, **times: float) -> int:
    """How many of several threads that begin together become the owner, while all are there."""
    ready, over = threading.Barrier(num), threading.Barrier(num)
    with ThreadPoolExecutor(num) as pool:
        return sum(pool.map(lambda _: contend(open_folder(), ready, over, **times), range(num)))


def contend(folder: Folder, ready: Any, over: Any, stale_s: float = 60.0, settle_s: float = 1.0) -> bool:
    ready.wait()
    try:
        with own_remote(folder, times=replace(FAST, stale_s=stale_s, settle_s=settle_s)):
            over.wait()
            return True
    except RunInUse:
        over.wait()
        return False


def contend_alone(path: Path, ready: Any, over: Any, won: Any) -> None:
    if contend(shared(path), ready, over):
        with won:
            won.value += 1


@pytest.mark.cluster
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
        with WRITING:  # an object is written whole, unlike a file that two open
            super().pipe_file(path, value, "overwrite" if self.ignores_mode else mode, **options)
        if self.loses_answers:
            raise FileExistsError(path)


def fail_for_a_while(storage: Storage) -> None:
    storage.fail = Failures(4)
    wait_until(lambda: storage.fail.left == 0)


def fail_for_longer_than_a_lock_lasts(storage: Storage) -> None:
    storage.fail = Failures(float("inf"))
    time.sleep(FAST.stale_s + 0.2)
    storage.fail = lambda path: None


def list_nothing(storage: Storage) -> None:
    storage.vanished = 5  # one stat that fails empties a whole listing of fsspec's
    wait_until(lambda: storage.vanished == 0)


@pytest.mark.thorough
@pytest.mark.parametrize("misbehave", [fail_for_a_while, fail_for_longer_than_a_lock_lasts, list_nothing])
def test_a_storage_that_fails_for_everybody_stops_nobody(
    folder: Folder, misbehave: Callable[[Storage], None], caplog: pytest.LogCaptureFixture
) -> None:
    storage = Storage()
    lost: list[str] = []
    with own_remote(on(storage, folder), lost.append, FAST):
        misbehave(storage)
        beat = newest_beat(folder)
        wait_until(lambda: newest_beat(folder) != beat)
    assert lost == []
    assert ("cannot renew the lock of the run, trying again: cannot" in caplog.text) == (misbehave is not list_nothing)
    assert files_of(folder) == []


def test_a_client_that_looks_before_it_writes_is_not_taken_for_exclusive(tmp_path: Path) -> None:
    folder = on(LocalFileSystem(), Folder(f"{tmp_path}"))
    with pytest.raises(Unconditional, match="LocalFileSystem"):
        create_new(folder.system, f"{tmp_path}/file", b"mine")


class Failures:
    """Fails so many times."""

    def __init__(self, num: float) -> None:
        self.left = num

    def __call__(self, path: str) -> None:
        if self.left > 0:
            self.left -= 1
            raise OSError("no route to host")


@pytest.mark.thorough
def test_a_driver_that_was_overtaken_while_its_network_was_cut_stops_when_it_is_back(
    folder: Folder, tmp_path: Path
) -> None:
    storage = Storage()
    is_lost = threading.Event()

    def work() -> None:
        with own_remote(on(storage, folder), lambda message: is_lost.set(), FAST):
            storage.fail = Failures(float("inf"))
            with own_remote(shared(tmp_path), times=FAST):
                storage.fail = lambda path: None
                assert is_lost.wait(20)

    with pytest.raises(RunFailed, match=loss(f"{ME}.*")):
        work()


def test_a_worker_stores_nothing_for_a_driver_that_was_overtaken(folder: Folder, tmp_path: Path) -> None:
    owner = leave(folder, 0)
    (tmp_path / "logs").mkdir()
    store = RemoteStore(folder, Disk(tmp_path / "logs"), keep=2, owner=owner)
    store.put("checkpoint_000000005", lambda draft: seal(draft, facts(5)))
    store.finish()
    taken = replace(leave(folder, 0, generation=2), who="process 2 on there")
    folder.write(taken.name, json.dumps(asdict(taken)).encode())
    store.put("checkpoint_000000010", lambda draft: seal(draft, facts(10)))
    with pytest.raises(StorageError, match=r"nothing more is stored in .*, which is now held by process 2 on there"):
        store.finish()
    assert "checkpoint_000000010" not in folder.names()


@pytest.mark.cluster
def test_a_lock_of_a_process_of_this_machine_that_has_ended_is_taken_over_at_once(folder: Folder) -> None:
    script = (
        "import dataclasses, json; from raysl.storage.owner import Owner; "
        "print(json.dumps(dataclasses.asdict(Owner(1))))"
    )
    content = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    folder.write(".lock-000001", content)
    with own_remote(folder, times=replace(FAST, stale_s=600.0)):
        assert ".lock-000002" in files_of(folder)
        with pytest.raises(RunInUse, match=ME), own_remote(folder, times=FAST):
            pass


def work_until_lost(folder: Folder, change: Callable[[], object]) -> None:
    messages: list[str] = []
    with own_remote(folder, messages.append, FAST):
        change()
        wait_until(lambda: messages != [])


def loss(who: str) -> str:
    return rf"is now held by {who}; this process stops, and the same command goes on from the newest checkpoint"


@pytest.mark.parametrize("generation", [1, 2], ids=["replaced", "taken over"])
def test_a_driver_that_lost_its_folder_stops_and_leaves_the_files_of_the_other_one(
    folder: Folder, generation: int
) -> None:
    with pytest.raises(RunFailed, match=loss(rf"process 1 on gone \(since {SINCE}\)")):
        work_until_lost(folder, lambda: leave(folder, 0, generation))
    assert f".lock-00000{generation}" in files_of(folder)


def test_a_driver_whose_files_were_removed_stops(folder: Folder) -> None:
    with pytest.raises(RunFailed, match=loss(r"no one \(its files were removed\)")):
        work_until_lost(folder, lambda: folder.remove(".lock-000001"))
    assert ".lock-000001" not in files_of(folder)


def test_one_who_comes_after_others_took_over_and_left_starts_again(folder: Folder) -> None:
    left = leave(folder, 1000.0, generation=5)
    storage = Storage()

    def others_come_and_go(path: str) -> None:
        storage.create = lambda path: None
        folder.remove(left.name)
        assert path.endswith(".lock-000006")

    storage.create = others_come_and_go
    with own_remote(on(storage, folder), times=replace(FAST, stale_s=60.0)):
        assert [name for name in files_of(folder) if "lock" in name] == [".lock-000001"]


def test_a_lost_answer_to_the_creation_loses_no_lock(folder: Folder) -> None:
    storage = Storage()
    storage.loses_answers = True
    with own_remote(on(storage, folder), times=FAST):
        assert ".lock-000001" in files_of(folder)


@pytest.mark.thorough
def test_a_storage_that_ignores_the_condition_is_noticed_and_asked_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def open_folder() -> Folder:
        storage = Storage()
        storage.ignores_mode = True
        return on(storage, shared(tmp_path))

    # longer than a machine stands still under load: without the condition, only this time keeps two from both winning
    assert num_owners(open_folder, 4, settle_s=5.0) == 1
    assert "has no writes that only one process can make" in caplog.text


# drivers that stop

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from raysl.storage.owner import own_remote
from tests.storage.test_owner import FAST, shared
folder = shared(Path(sys.argv[1]))
with own_remote(folder, times=FAST):
    child = subprocess.Popen(["sleep", "600"])
    folder.write("written", b"")
    print(child.pid, flush=True)
    while True:
        folder.write("written", str(time.time()).encode())
"""


@pytest.mark.cluster
def test_a_driver_that_slept_too_long_ends_with_all_it_started(folder: Folder, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGSTOP)
    with own_remote(folder, times=FAST):
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 1
        assert errors.count("error: ") == 1
        assert f"is now held by process {os.getpid()} on " in errors
        written = folder.read("written")
        wait_until(lambda: has_ended(child))
    assert folder.read("written") == written


# S3


@pytest.fixture
def s3_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A folder in a bucket of a server on this machine."""
    moto_server = pytest.importorskip("moto.server")
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    query = f"?endpoint_override={host}:{port}&scheme=http&region=us-east-1&allow_bucket_creation=true"
    folder = Folder(f"s3://bucket/runs/one{query}")
    folder.make()
    yield folder
    server.stop()


def test_a_lock_in_a_bucket_is_exclusive(s3_bucket: Folder) -> None:
    pytest.importorskip("botocore")
    assert s3_bucket.system.type_name == "s3"
    assert create_new(s3_bucket.system, f"{s3_bucket.path}/file", b"1")
    assert not create_new(s3_bucket.system, f"{s3_bucket.path}/file", b"2")
    assert s3_bucket.read("file") == b"1"
    leave(s3_bucket, 1000.0)
    with own_remote(s3_bucket, times=replace(FAST, stale_s=60.0)):
        assert ".lock-000002" in files_of(s3_bucket)
        with pytest.raises(RunInUse, match=ME), own_remote(s3_bucket, times=replace(FAST, stale_s=60.0)):
            pass
    assert files_of(s3_bucket) == []


def test_a_bucket_without_a_client_for_conditions_is_locked_by_reading_back(
    s3_bucket: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with own_remote(s3_bucket, times=replace(FAST, stale_s=60.0)):
        assert "s3:// needs boto3" in caplog.text
        with pytest.raises(RunInUse, match=ME), own_remote(s3_bucket, times=replace(FAST, stale_s=60.0)):
            pass
    assert files_of(s3_bucket) == []


class Unable(BaseHTTPRequestHandler):
    """A storage in the manner of S3 that does not know conditions."""

    def do_PUT(self) -> None:
        self.send_response(501)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *values: object) -> None:
        pass


@pytest.mark.cluster
def test_a_server_that_does_not_implement_conditions_is_taken_for_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("botocore")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with HTTPServer(("127.0.0.1", 0), Unable) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        system = fs.S3FileSystem(
            access_key="a", secret_key="b", endpoint_override=address, scheme="http", region="us-east-1"
        )
        with pytest.raises(Unconditional, match="501"):
            create_new(system, "bucket/file", b"1")
        server.shutdown()
