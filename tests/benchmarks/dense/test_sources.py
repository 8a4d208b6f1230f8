"""Sources of images with targets, as a run reads them."""

import pickle
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch

from raysl.benchmarks.dense.boxes import BoxImages, voc_boxes
from raysl.benchmarks.dense.masks import MaskImages, mask_split
from raysl.data.decode.decode import decode
from raysl.errors import ConfigError
from raysl.storage.folder import Folder
from tests.benchmarks.dense import test_boxes, test_masks


def test_a_limit_takes_an_even_share_of_both_splits(tmp_path: Path) -> None:
    source = MaskImages(MaskImages.Config(path=test_masks.voc(tmp_path).uri, limit=2))
    train, test = source.required("train"), source.required("test")
    assert (train.num_samples, test.num_samples) == (2, 2)
    assert train.names_of(np.array([1, 0])) == ["2007_000002.jpg", "2007_000000.jpg"]
    assert train.labels_of(np.array([0])).tolist() == [-1]
    assert train.fingerprint != test.fingerprint


def test_images_are_read_by_their_numbers_over_all_folders(tmp_path: Path) -> None:
    first, more = test_boxes.voc(tmp_path / "a", num=2), test_boxes.voc(tmp_path / "b", num=3)
    train = BoxImages(BoxImages.Config(path=first.uri, more=more.uri)).split("train")
    assert train.num_samples == 5
    rows = train.read(np.array([3, 0]))
    assert rows.names == ["000001.jpg", "000000.jpg"]
    assert torch.equal(decode(rows.images[0]), train.image(3))
    with pytest.raises(IndexError):
        train.image(5)


def test_a_split_with_boxes_travels_as_its_settings_and_is_read_again(tmp_path: Path) -> None:
    config = BoxImages.Config(path=test_boxes.coco(tmp_path, num=40).uri, layout="coco", masks=True)
    train = BoxImages(config).split("train")
    packed = pickle.dumps(train)
    assert len(packed) < 2000 < len(pickle.dumps(train.objects))
    again = pickle.loads(packed)
    assert again.fingerprint == train.fingerprint
    assert [one.segments for one in again.objects] == [one.segments for one in train.objects]


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    train = MaskImages(MaskImages.Config(path=test_masks.voc(tmp_path).uri)).split("train")
    (tmp_path / "JPEGImages/2007_000001.jpg").unlink()
    with pytest.raises(ConfigError, match=r"2007_000001.jpg: .*fetch the dataset anew"):
        train.sample(1)


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
