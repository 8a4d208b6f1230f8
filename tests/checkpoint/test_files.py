"""A checkpoint is whole or absent, on a disk and on a storage that tears, loses and delays."""

import json
import shutil
from pathlib import Path

import pytest

from raysl.checkpoint.checkpoint_folder import (
    Damaged,
    checkpoint_name,
    checkpoint_names,
    newest_whole,
    remove_old,
    seal,
    sweep,
    upload,
    verify,
    write_local,
)
from raysl.errors import ConfigError, StorageError
from raysl.storage.folder import Folder
from tests.checkpoint.facts import facts
from tests.faults import Faults


@pytest.fixture(params=["local", "faulty"])
def run(request: pytest.FixtureRequest, tmp_path: Path, faults: Faults) -> Folder:
    """A run's folder on a disk, and the same behind a URI."""
    folder = Folder(f"{'' if request.param == 'local' else 'faulty://'}{tmp_path}/runs/one")
    folder.make()
    return folder


def fill(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train_state.pt").write_bytes(b"state %d" % step * 1000)
    (folder / "extra").mkdir(exist_ok=True)
    (folder / "extra" / "note").write_text("of a callback")
    seal(folder, facts(step))


def put(run: Folder, step: int, tmp_path: Path) -> None:
    if run.is_local:
        write_local(Path(run.path), checkpoint_name(step), lambda folder: fill(folder, step))
        return
    draft = tmp_path / "draft"
    shutil.rmtree(draft, ignore_errors=True)
    fill(draft, step)
    upload(draft, run, checkpoint_name(step))


def test_the_newest_is_found_and_lists_every_file(run: Folder, tmp_path: Path) -> None:
    assert newest_whole(run).name is None
    for step in (5, 10):
        put(run, step, tmp_path)
    found = newest_whole(run)
    assert (found.name, found.step, found.passed_over) == ("checkpoint_000000010", 10, ())
    assert set(found.meta["files"]) == {"train_state.pt", "extra/note"}
    assert found.meta["files"]["train_state.pt"]["size"] == 8000


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "meta.json").unlink(), r"has no meta\.json"),
        (lambda folder: (folder / "meta.json").write_text('{"format": 1, "st'), r"meta\.json is damaged"),
        (lambda folder: (folder / "train_state.pt").write_bytes(b"cut off"), r"train_state\.pt has 7 of 8,000 bytes"),
        (lambda folder: (folder / "train_state.pt").write_bytes(b"X" * 8000), r"train_state\.pt is not what was wri"),
        (lambda folder: (folder / "extra" / "note").unlink(), r"extra/note is missing"),
    ],
)
def test_a_damaged_one_is_passed_over_for_the_one_before_and_said_why(
    run: Folder, tmp_path: Path, damage: object, reason: str
) -> None:
    for step in (5, 10):
        put(run, step, tmp_path)
    damage(Path(run.path) / "checkpoint_000000010")  # type: ignore[operator]
    found = newest_whole(run)
    assert found.step == 5
    (told,) = found.passed_over
    assert told.startswith("checkpoint_000000010: ")
    with pytest.raises(Damaged, match=reason):
        verify(run.child("checkpoint_000000010"))


def test_a_part_of_it_can_be_verified_alone(run: Folder, tmp_path: Path) -> None:
    put(run, 5, tmp_path)
    state = Path(run.path) / "checkpoint_000000005" / "train_state.pt"
    state.unlink()
    assert verify(run.child("checkpoint_000000005"), ["extra/note"])["step"] == 5
    with pytest.raises(Damaged, match=r"train_state\.pt is missing"):
        verify(run.child("checkpoint_000000005"), ["train_state.pt"])


def test_another_format_is_no_damage(run: Folder, tmp_path: Path) -> None:
    put(run, 5, tmp_path)
    meta = Path(run.path) / "checkpoint_000000005" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"format": 9, "raysl": "3.0"}))
    with pytest.raises(ConfigError, match=r"format 9, this raysl reads format 1; open it with raysl 3\.0"):
        newest_whole(run)


def test_old_ones_go_and_newer_ones_that_did_not_verify_stay(run: Folder, tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        put(run, step, tmp_path)
    remove_old(run, checkpoint_name(15), keep=2)
    assert checkpoint_names(run) == [checkpoint_name(step) for step in (10, 15, 20)]


def test_halves_are_swept_up_and_whole_ones_stay(run: Folder, tmp_path: Path) -> None:
    put(run, 5, tmp_path)
    for half in ("checkpoint_000000010", "draft_checkpoint_000000015"):
        (Path(run.path) / half).mkdir()
        (Path(run.path) / half / "train_state.pt").write_bytes(b"half")
    run.write("metrics.jsonl", b"")
    assert sorted(sweep(run)) == ["checkpoint_000000010", "draft_checkpoint_000000015"]
    assert run.names() == ["checkpoint_000000005", "metrics.jsonl"]


@pytest.mark.parametrize("file", ["train_state.pt", "extra/note", "meta.json"])
@pytest.mark.parametrize("kind", ["tear", "lose"])
def test_an_upload_that_breaks_anywhere_leaves_the_one_before(
    tmp_path: Path, faults: Faults, file: str, kind: str
) -> None:
    run = Folder(f"faulty://{tmp_path}/runs/one")
    run.make()
    put(run, 5, tmp_path)
    faults.add("write", rf"checkpoint_000000010/{file}", kind, times=5)
    if kind == "tear":
        with pytest.raises(StorageError, match="after 5 tries"):
            put(run, 10, tmp_path)
    else:
        put(run, 10, tmp_path)
    assert faults.num_left() == (0 if kind == "tear" else 4)
    assert newest_whole(run).step == 5
    faults.clear()
    put(run, 10, tmp_path)
    assert newest_whole(run).step == 10


def test_an_upload_over_a_damaged_one_never_shows_a_mixture(tmp_path: Path, faults: Faults) -> None:
    run = Folder(f"faulty://{tmp_path}/runs/one")
    run.make()
    put(run, 5, tmp_path)
    put(run, 10, tmp_path)
    (Path(run.path) / "checkpoint_000000010" / "train_state.pt").write_bytes(b"damaged")
    faults.add("write", "checkpoint_000000010/train_state.pt", times=5)
    with pytest.raises(StorageError):
        put(run, 10, tmp_path)
    assert not run.exists("checkpoint_000000010/meta.json"), "it would vouch for files that are being replaced"


def test_a_storage_that_does_not_answer_is_not_taken_for_damage(tmp_path: Path, faults: Faults) -> None:
    run = Folder(f"faulty://{tmp_path}/runs/one")
    run.make()
    put(run, 5, tmp_path)
    faults.add("read", "checkpoint_000000005/train_state.pt", times=4)
    assert newest_whole(run).step == 5
    faults.add("read", "checkpoint_000000005/train_state.pt", times=5)
    with pytest.raises(StorageError, match=r"cannot read .*train_state.pt.* after 5 tries"):
        newest_whole(run)
