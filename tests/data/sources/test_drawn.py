from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysl.data.source import Source, make_source
from raysl.data.sources.drawn import Drawn
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.torchvision_dataset import TorchvisionDataset
from raysl.errors import ConfigError
from tests.data.samples import all_rows, png
from tests.data.sources.test_torchvision_dataset import caltech, dtd, put


def drawn(dataset: str, root: Path, **settings: Any) -> Source:
    inner = TorchvisionDataset.Config(dataset=dataset, root=str(root), **settings.pop("inner", {}))
    return make_source(Drawn.Config(sources={"all": inner}, **settings))


def test_so_many_of_each_class_are_for_training_and_all_others_are_held_out(tmp_path: Path) -> None:
    caltech(tmp_path, num=7)
    source = drawn("Caltech101", tmp_path, per_class=4)
    train, test = all_rows(source.required("train")), all_rows(source.required("test"))
    assert np.bincount(train.labels).tolist() == [4, 4]
    assert np.bincount(test.labels).tolist() == [3, 3]
    assert len({*train.names, *test.names}) == 14
    again = drawn("Caltech101", tmp_path, per_class=4)
    assert again.required("train").fingerprint == source.required("train").fingerprint
    other = drawn("Caltech101", tmp_path, per_class=4, draw_seed=1)
    assert other.required("train").fingerprint != source.required("train").fingerprint


def test_unlabelled_images_are_no_class_of_which_images_are_drawn(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "a/3.png", "b/1.png", "b/2.png", "1.png"):
        put(tmp_path / "train" / name, png(0))
    inner = ImageFolder.Config(path=str(tmp_path))
    source = make_source(Drawn.Config(sources={"all": inner}, per_class=2))
    assert all_rows(source.required("train")).labels.tolist() == [0, 0, 1, 1]
    assert sorted(all_rows(source.required("test")).labels.tolist()) == [-1, 0]


def test_a_share_of_all_is_for_training(tmp_path: Path) -> None:
    caltech(tmp_path, num=5)
    source = drawn("Caltech101", tmp_path, share=0.8)
    assert (source.required("train").num_samples, source.required("test").num_samples) == (8, 2)


def test_a_number_is_drawn_beside_the_held_out_images_of_the_source(tmp_path: Path) -> None:
    dtd(tmp_path)
    lines = "".join(f"banded/v{number}.jpg\n" for number in range(6))
    put(tmp_path / "dtd/dtd/labels/val1.txt", lines)
    for number in range(6):
        put(tmp_path / f"dtd/dtd/images/banded/v{number}.jpg", png(20 + number))
    source = drawn("DTD", tmp_path, num=4, num_validation=3, inner={"validation_split": "val"})
    train = source.required("train")
    assert (train.num_samples, train.num_validation) == (4, 3)
    assert [Path(name).stem[0] for name in all_rows(train).names] == ["t", "v", "v", "v"]
    assert source.required("test").num_samples == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "drawn needs one of data.per_class="),
        ({"num": 3, "share": 0.5}, "drawn needs one of"),
        ({"num": 7}, "cannot take 7 of 6 images"),
        ({"num": 6}, "holds none out"),
        ({"per_class": 3}, "holds none out"),
    ],
)
def test_a_draw_that_is_impossible_is_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    caltech(tmp_path)
    source = drawn("Caltech101", tmp_path, **settings)
    with pytest.raises(ConfigError, match=words):
        source.required("test")


def test_one_source_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"drawn needs data\.sources="):
        make_source(Drawn.Config(num=1)).required("train")
