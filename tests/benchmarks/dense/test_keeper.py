"""Checkpoints of a benchmark's training, in a local folder and on a storage; datasets there."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from raysl.benchmarks.dense.boxes import voc_boxes
from raysl.benchmarks.dense.keeper import Keeper
from raysl.benchmarks.dense.masks import mask_split
from raysl.storage.folder import Folder
from tests.benchmarks.dense import test_boxes, test_masks
from tests.train.problem import differing, problem, tensors_of


@pytest.fixture(params=["local", "memory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder of either kind."""
    if request.param == "local":
        yield str(tmp_path / "kept")
        return
    yield "memory://raysl_keeper"
    fsspec.filesystem("memory").rm("/raysl_keeper", recursive=True)


def test_the_newest_checkpoint_alone_is_kept_and_comes_back(uri: str) -> None:
    folder = Folder(uri)
    assert Keeper(folder).restore() is None
    state, _ = problem()
    keeper = Keeper(folder)
    for step in (3, 5):
        state.step = step
        next(state.method.parameters()).data.add_(1)
        keeper.report({"step": step}, lambda place: state.save(place, {}))
    keeper.report({"step": 6}, None)
    assert folder.names() == ["checkpoint_000000005"]
    other, _ = problem()
    assert differing(tensors_of(other), tensors_of(state))
    again = Keeper(folder)
    restored = again.restore()
    assert restored is not None
    other.load(restored)
    assert other.step == 5
    assert not differing(tensors_of(other), tensors_of(state))


def test_half_a_checkpoint_is_passed_over_and_swept_up(uri: str) -> None:
    folder = Folder(uri)
    state, _ = problem()
    state.step = 2
    Keeper(folder).report({"step": 2}, lambda place: state.save(place, {}))
    folder.child("checkpoint_000000009").make()
    folder.child("checkpoint_000000009").write("train_state.pt", b"half")
    keeper = Keeper(folder)
    restored = keeper.restore()
    assert restored is not None
    other, _ = problem()
    other.load(restored)
    assert other.step == 2
    assert folder.names() == ["checkpoint_000000002"]


def test_datasets_may_lie_on_a_storage(tmp_path: Path) -> None:
    test_masks.voc(tmp_path / "masks")
    test_boxes.voc(tmp_path / "boxes")
    system = fsspec.filesystem("memory")
    system.put(str(tmp_path), "/raysl_dense", recursive=True)
    try:
        local, remote = (
            mask_split("voc", Folder(f"{root}/masks"), is_train=True) for root in (tmp_path, "memory://raysl_dense")
        )
        assert local.fingerprint == remote.fingerprint
        assert all((a == b).all() for a, b in zip(local.sample(1), remote.sample(1), strict=True))
        here, there = (voc_boxes(Folder(f"{root}/boxes"), "test") for root in (tmp_path, "memory://raysl_dense"))
        assert here.fingerprint == there.fingerprint
        assert (here.image(2) == there.image(2)).all()
    finally:
        system.rm("/raysl_dense", recursive=True)
