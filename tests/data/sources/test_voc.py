from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from raysl.data.source import Missing
from raysl.data.sources.voc import VOC
from raysl.errors import ConfigError, RunFailed
from tests.data.samples import all_rows, png, sent

IMAGES = {"trainval": ["000005", "000007"], "train": ["000005"], "val": ["000007"], "test": ["000001"]}
LABELS = {
    "dog": {"000005": "-1", "000007": " 1", "000001": " 0"},
    "cat": {"000005": " 0", "000007": "-1", "000001": "-1"},
}


def devkit(root: Path, *sets: str) -> Path:
    """One year in the layout of the development kit, with two of its classes."""
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (root / "JPEGImages").mkdir()
    for chosen in sets:
        (lists / f"{chosen}.txt").write_text("".join(f"{image}\n" for image in IMAGES[chosen]))
        for label, marks in LABELS.items():
            lines = [f"{image} {marks[image]}\n" for image in IMAGES[chosen]]
            (lists / f"{label}_{chosen}.txt").write_text("".join(lines))
        for image in IMAGES[chosen]:
            (root / "JPEGImages" / f"{image}.jpg").write_bytes(png(int(image)))
    return root


def source_of(path: Path, **settings: Any) -> VOC:
    return VOC(VOC.Config(path=str(path), **settings))


def message_of(source: VOC, name: str = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        source.required(name)
    return str(caught.value)


def test_labels_are_present_absent_and_ignored_by_class_in_alphabetical_order(tmp_path: Path) -> None:
    source = source_of(devkit(tmp_path, "train", "val", "trainval", "test"))
    train, test = source.required("train"), source.required("test")
    assert (train.classes, train.is_multilabel, train.is_random_access) == (("cat", "dog"), True, True)
    rows = all_rows(train)
    assert rows.images == [png(5), png(7)]
    assert rows.labels.dtype == np.int64
    assert rows.labels.tolist() == [[-1, 0], [0, 1]]
    assert rows.names[1] == f"{tmp_path}/JPEGImages/000007.jpg"
    assert all_rows(test).labels.tolist() == [[0, -1]]
    assert sent(train).read(np.array([1, 1])).labels.tolist() == [[0, 1], [0, 1]]


def test_without_a_test_list_val_is_held_out_and_does_not_train(tmp_path: Path) -> None:
    source = source_of(devkit(tmp_path, "train", "val", "trainval"))
    assert all_rows(source.required("train")).images == [png(5)]
    assert all_rows(source.required("test")).images == [png(7)]
    assert "1 images of the set 'val' are in 'trainval' too" in message_of(
        source_of(tmp_path, train_set="trainval"), "test"
    )


def test_a_year_with_nothing_held_out_has_no_test_images(tmp_path: Path) -> None:
    assert source_of(devkit(tmp_path, "trainval")).optional("test") is None


def test_other_labels_have_another_fingerprint(tmp_path: Path) -> None:
    path = devkit(tmp_path, "trainval")
    before = source_of(path).required("train").fingerprint
    assert source_of(path).required("train").fingerprint == before
    (path / "ImageSets/Main/dog_trainval.txt").write_text("000005 1\n000007 1\n")
    assert source_of(path).required("train").fingerprint != before


def test_an_image_of_another_size_gives_another_fingerprint(tmp_path: Path) -> None:
    path = devkit(tmp_path, "trainval")
    before = source_of(path).required("train").fingerprint
    (path / "JPEGImages" / "000007.jpg").write_bytes(b"other")
    assert source_of(path).required("train").fingerprint != before


def test_a_uri_may_have_a_query(tmp_path: Path) -> None:
    path = devkit(tmp_path, "trainval")
    split = VOC(VOC.Config(path=f"file://{path}?mode=1")).required("train")
    assert all_rows(split).images == [png(5), png(7)]


def test_an_image_that_vanishes_later_is_missing(tmp_path: Path) -> None:
    train = source_of(devkit(tmp_path, "trainval")).required("train")
    (tmp_path / "JPEGImages" / "000005.jpg").unlink()
    assert all_rows(train).images == [Missing("file not found"), png(7)]


def test_remote_images_are_read_again_where_the_network_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(devkit(tmp_path / "VOC2007", "trainval")), "/voc_remote", recursive=True)
    failures = [ConnectionResetError("reset by peer")]
    whole = memory.cat_file

    def cat_file(path: str) -> bytes:
        if failures:
            raise failures.pop()
        return bytes(whole(path))

    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    try:
        train = VOC(VOC.Config(path="memory://voc_remote")).required("train")
        monkeypatch.setattr(memory, "cat_file", cat_file)
        assert all_rows(train).images == [png(5), png(7)]
        assert not failures
        failures += [ConnectionResetError("reset by peer")] * 10
        with pytest.raises(
            RunFailed, match=r"cannot read '/voc_remote/JPEGImages/00000[57]\.jpg' after 5 tries: reset"
        ):
            train.read(np.array([0, 1]))
        failures[:] = [PermissionError("not yours")] * 2
        with pytest.raises(ConfigError, match=r"cannot read '/voc_remote/.*': not yours; check"):
            train.read(np.array([0, 1]))
    finally:
        memory.rm("/voc_remote", recursive=True)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("000005 1\n000009 1\n", "cat_trainval.txt list different images"),
        ("000005 2\n", "dog_trainval.txt, line 1: '000005 2' is not an image name and -1, 0 or 1"),
        ("000005\n", "line 1: '000005' is not an image name and"),
        ("\n", "dog_trainval.txt lists no images"),
        (
            "000005 -1\n000007 1\n000005 1\n",
            "dog_trainval.txt, line 3: the image '000005' is listed twice; keep one of both lines",
        ),
    ],
)
def test_lists_that_are_none_are_refused(tmp_path: Path, lines: str, message: str) -> None:
    (devkit(tmp_path, "trainval") / "ImageSets/Main/dog_trainval.txt").write_text(lines)
    assert message in message_of(source_of(tmp_path))


def test_lists_that_name_absent_images_are_refused(tmp_path: Path) -> None:
    (devkit(tmp_path, "trainval") / "JPEGImages" / "000007.jpg").unlink()
    assert "1 of the 2 images that the set 'trainval' lists are not in" in message_of(source_of(tmp_path))
    assert "first '000007.jpg'" in message_of(source_of(tmp_path))


def test_folders_that_are_no_year_are_told(tmp_path: Path) -> None:
    assert "no ImageSets/Main in" in message_of(source_of(tmp_path))
    assert "voc needs data.path=" in message_of(VOC(VOC.Config()))
    path = devkit(tmp_path / "VOC2007", "train", "test")
    assert "no {class}_trainval.txt in" in message_of(source_of(path))
    assert "its sets: test, train" in message_of(source_of(path))
    (path / "ImageSets/Main/dog_test.txt").unlink()
    assert "the set 'test' lists other classes than 'train': dog" in message_of(
        source_of(path, train_set="train"), "test"
    )


def test_a_list_that_is_not_utf_8_is_told(tmp_path: Path) -> None:
    path = devkit(tmp_path, "trainval")
    (path / "ImageSets" / "Main" / "dog_trainval.txt").write_bytes(b"caf\xe9 1\n")
    message = message_of(source_of(path))
    assert message.endswith("dog_trainval.txt is not a UTF-8 text: invalid continuation byte at byte 3; fetch it again")


def test_the_validation_set_stands_behind_the_training_set(tmp_path: Path) -> None:
    folder = devkit(tmp_path, "train", "val", "trainval", "test")
    split = source_of(folder, train_set="train", validation_set="val", test_set="test").required("train")
    assert all_rows(split).images == [png(5), png(7)]
    assert split.num_validation == 1
    assert split.fingerprint == source_of(folder).required("train").fingerprint
    both = source_of(folder, train_set="trainval", validation_set="val", test_set="test")
    assert "give data.train_set= and data.validation_set= that share none" in message_of(both)
