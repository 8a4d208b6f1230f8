"""How many requests a run in a bucket makes, counted in the log of a server of S3.

What a provider bills, and throttles, is requests: a run that waits makes less than 20 a minute, no file is written in
more than one, and none is an empty object for a folder.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raysl.checkpoint.checkpoint_folder import newest_whole, seal
from raysl.config.dump import dump
from raysl.config.load import load_config
from raysl.leaderboard.run_list import find_runs
from raysl.leaderboard.run_summary import RunSummary
from raysl.plan.plan import TrainPlan
from raysl.process.waiting import Waiting
from raysl.runs.folder import STOP_FILE, RunFolder
from raysl.runs.follow import _Follower
from raysl.storage.owner import Owner, OwnerFiles, OwnerTimes, own_remote
from raysl.train.disk import Disk
from raysl.train.file_names import EVENTS_FILE, METRICS_FILE, note_event
from raysl.train.store import RemoteStore
from tests.bucket import MARKER, PART, Bucket, kinds
from tests.checkpoint.facts import facts
from tests.processes import wait_until
from tests.runs.runs import finish, start

A_MINUTE = 20


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    pytest.importorskip("moto.server")
    pytest.importorskip("botocore")
    bucket = Bucket(tmp_path)
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    yield bucket
    bucket.close()


@pytest.fixture
def folder(bucket: Bucket) -> RunFolder:
    folder = RunFolder(bucket.uri("runs/one"))
    folder.make()
    return folder


def made_by(bucket: Bucket, action: Callable[[], object]) -> Counter[str]:
    """The requests of an action, by kind."""
    first = len(bucket.requests())
    action()
    return kinds(bucket.requests(first))


@pytest.mark.cluster
def test_files_and_folders_are_written_read_and_deleted_in_single_requests(
    bucket: Bucket, folder: RunFolder, tmp_path: Path
) -> None:
    (tmp_path / "state").write_bytes(bytes(3_000_000))
    assert made_by(bucket, lambda: folder.write("a", b"1")) == {"put": 1}
    assert made_by(bucket, lambda: folder.copy_in(tmp_path / "state", "inner/state")) == {"put": 1}
    assert made_by(bucket, folder.names) == {"list": 1}
    assert made_by(bucket, lambda: folder.read_if_there("a")) == {"head": 1, "get": 1}
    assert made_by(bucket, lambda: folder.read_if_there("b")) == {"head": 1}
    assert made_by(bucket, lambda: folder.remove("a")) == {"delete": 1}
    assert made_by(bucket, lambda: folder.remove_folder("inner")) == {"list": 1, "delete": 1}
    assert folder.names() == []


@pytest.mark.cluster
def test_what_a_former_version_left_in_a_bucket_is_read_and_deleted(folder: RunFolder) -> None:
    folder.system.create_dir(f"{folder.path}/checkpoint_000000001/inner", recursive=True)
    folder.write("checkpoint_000000001/a", b"1")
    folder.write("checkpoint_000000001/inner/b", b"2")
    folder.write("run.yaml.0a1b2c3d.part", b"half")
    assert folder.names() == ["checkpoint_000000001", "run.yaml.0a1b2c3d.part"]
    folder.remove_folder("checkpoint_000000001")
    assert folder.names() == ["run.yaml.0a1b2c3d.part"]


@pytest.mark.cluster
def test_runs_in_a_bucket_are_found_by_one_listing_and_a_few_reads_each(
    bucket: Bucket, folder: RunFolder, tmp_path: Path
) -> None:
    for name in ("one", "sweep/two"):
        folder.write(f"{name}/run.yaml", dump(load_config("quickstart")).encode())
        folder.write(f"{name}/{METRICS_FILE}", b'{"step": 1, "epoch": 0.1, "loss": 2.0, "step_s": 1.0}\n')
        folder.write(f"{name}/checkpoint_000000001/run.yaml", b"")
    OwnerFiles(folder.child("one")).renew(Owner(1))
    found: list[RunSummary] = []
    made = made_by(bucket, lambda: found.extend(find_runs(folder.uri)))
    states = {run.name: run.state for run in found}
    assert states == {"one": "running", "sweep/two": "interrupted"}
    assert made["list"] <= 4  # of the storage and of each run, and whether the storage is there
    assert made["get"] <= 2 * 3


@pytest.mark.cluster
def test_a_minute_of_a_run_that_waits_is_less_than_20_requests(
    bucket: Bucket, folder: RunFolder, tmp_path: Path
) -> None:
    note_event(tmp_path / "logs", "started")
    folder.upload(tmp_path / "logs" / EVENTS_FILE, EVENTS_FILE)
    folder.write(METRICS_FILE, b'{"step": 1, "loss": 2.0}\n')
    config = load_config("quickstart")
    follower = _Follower(folder, TrainPlan.from_config(config, 1000), Waiting(time.time(), show=False), 0)
    owner, files = Owner(1), OwnerFiles(folder)
    files.create(owner, settle_s=0)

    def beat() -> None:
        assert files.successor(owner) is None
        files.renew(owner)

    follower.poll()
    beat()
    look = made_by(bucket, follower.poll)
    look_for_stop = made_by(bucket, lambda: STOP_FILE in folder.versions())
    renewal = made_by(bucket, beat)
    assert look == look_for_stop == {"list": 1}
    assert renewal == {"list": 1, "put": 1}
    looks = (look.total() + look_for_stop.total()) / folder.look_every_s
    assert 60 * (looks + renewal.total() / OwnerTimes().beat_s) < A_MINUTE


@pytest.mark.cluster
def test_a_checkpoint_is_a_put_a_file_and_few_requests_beside(
    bucket: Bucket, folder: RunFolder, tmp_path: Path
) -> None:
    def save(draft: Path) -> None:
        for name in ("train_state.pt", "backbone.safetensors", "run.yaml"):
            (draft / name).write_bytes(bytes(100_000))
        seal(draft, facts(1))

    note_event(tmp_path / "logs", "started")
    with own_remote(folder) as owner:
        store = RemoteStore(folder, Disk(tmp_path / "logs"), keep=2, owner=owner)

        def put(step: int) -> None:
            note_event(tmp_path / "logs", f"step {step}")
            store.put(f"checkpoint_{step:09d}", save)
            store.finish()

        for step in (1, 2, 3):
            put(step)
        made = made_by(bucket, lambda: put(4))
    assert made[MARKER] == made[PART] == 0
    assert made["put"] == 6  # four files of the checkpoint, and the events before and after it
    assert made["delete"] == 2  # meta.json of the oldest, and then its other files
    assert made.total() <= 16
    assert newest_whole(folder).name == "checkpoint_000000004"


@pytest.mark.slow
def test_a_run_at_rest_makes_less_than_20_requests_a_minute_and_stops_within_seconds(
    bucket: Bucket, folder: RunFolder
) -> None:
    process = start(bucket.uri(), "one", "train.epochs=100000", "train.checkpoint_every=50000ep")
    wait_until(lambda: has_put(bucket, "startup.json"), timeout_s=200)
    assert len(bucket.requests()) < 100
    time.sleep(15)  # the driver reads what the first step wrote
    first = len(bucket.requests())
    time.sleep(60)  # the minute that is counted
    made = kinds(bucket.requests(first))
    assert made.total() <= A_MINUTE, made
    asked = time.monotonic()
    folder.write(STOP_FILE, b"")
    wait_until(lambda: has_put(bucket, "meta.json"), timeout_s=30)
    assert time.monotonic() - asked < folder.look_every_s + 10
    process.communicate(timeout=60)
    resumed = start(bucket.uri(), "one", "train.epochs=100000", "train.checkpoint_every=50000ep")
    first = len(bucket.requests())
    wait_until(lambda: has_put(bucket, "startup.json", first), timeout_s=200)
    assert len(bucket.requests(first)) < 150
    resumed.send_signal(signal.SIGTERM)
    resumed.communicate(timeout=60)


@pytest.mark.slow
def test_a_run_of_ten_checkpoints_makes_no_markers_and_no_parts(bucket: Bucket) -> None:
    finish(start(bucket.uri(), "one", "train.epochs=10", "train.checkpoint_every=1ep"), timeout=300)
    made = kinds(bucket.requests())
    assert made[PART] == 0
    assert made[MARKER] == 0
    assert made.total() < 300, made


def has_put(bucket: Bucket, name: str, first: int = 0) -> bool:
    return any(method == "PUT" and path.endswith(name) for method, path, _ in bucket.requests(first))
