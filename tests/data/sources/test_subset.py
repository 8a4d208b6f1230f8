from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysl.components import ALIASES, resolve
from raysl.config.load import load_config
from raysl.data.source import Rows, Source, Split, runs
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.synthetic import Synthetic
from raysl.data.sources.webdataset import WebDataset
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from tests.data.samples import all_rows, png, sent
from tests.data.sources.test_webdataset import tar_of


class Counted(Split):
    """Images of known labels, which are their own names and are read only when somebody wants pixels."""

    is_random_access = False
    fingerprint = "counted"

    def __init__(self, labels: list[int], classes: int) -> None:
        self.labels = np.array(labels)
        self.unit_sizes = runs(len(labels), 4)
        self.classes = tuple("abcdefgh"[:classes])
        self.num_read = 0

    def read(self, index: Int64s) -> Rows:
        self.num_read += len(index)
        return Rows([None] * len(index), self.labels[index], [str(row) for row in index.tolist()])

    def labels_of(self, index: Int64s) -> Int64s:
        return self.labels[index]


def chosen(split: Split, part: str = "train", **settings: Any) -> Split:
    class Same(Source):
        def split(self, name: str) -> Split:
            return split

    return Same(Synthetic.Config(**settings)).required(part)


def names(split: Split) -> list[int]:
    return [int(name) for name in all_rows(split).names]


def test_a_limit_is_an_even_share_of_both_parts() -> None:
    split = Counted([0] * 10, 1)
    for part in ("train", "test"):
        assert names(chosen(split, part, limit=4)) == [0, 2, 5, 7]
    assert chosen(split, limit=4).num_samples == 4
    assert chosen(split, limit=40).num_samples == 10


def test_a_limit_that_changes_nothing_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    split = Counted([0] * 11, 1)
    for settings in ({"limit": 12}, {"limit": 11}, {"limit": 3}, {}):
        for part in ("train", "test", "train"):
            chosen(split, part, **settings)
    assert caplog.messages == ["data.limit=12 changes nothing: there are 11 training images"]


def test_a_balanced_limit_gives_every_class_as_many_and_the_rest_to_the_first() -> None:
    labels = [0] * 8 + [1] * 4 + [2] * 6 + [-1] * 5
    split = Counted(labels, 3)
    picked = chosen(split, limit=8, balanced=True)
    assert np.bincount(all_rows(picked).labels).tolist() == [3, 3, 2]
    assert names(picked) == sorted(names(picked))
    assert split.num_read == 0, "labels are at hand"
    assert chosen(split, limit=3, balanced=True).num_samples == 3
    assert names(chosen(split, "test", limit=2, balanced=True)) == [0, 11], "held-out images are an even share"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 2, "balanced": True}, r"data.limit=2 with data.balanced is fewer than the 3 classes; raise it"),
        ({"limit": 16, "balanced": True}, r"takes 5 images of each class, and 'b' has 4; lower data.limit$"),
        ({"limit": 6, "skip": 9, "balanced": True}, r"takes 5 images of each class, and 'b' has 4; .* or data.skip"),
        ({"limit": 10, "skip": 10}, r"data.skip=10 and data.limit=10 exceed the 18 images"),
        ({"skip": 18}, r"exceed the 18 images"),
    ],
)
def test_more_than_there_is_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen(Counted([0] * 8 + [1] * 4 + [2] * 6, 3), **settings)


def test_balance_needs_labels() -> None:
    with pytest.raises(ConfigError, match="needs labels, but these images have none"):
        chosen(Counted([-1] * 8, 0), limit=2, balanced=True)


@pytest.mark.parametrize("balanced", [False, True])
def test_windows_of_the_draw_share_no_image_and_use_all(balanced: bool) -> None:
    split = Counted([0] * 10 + [1] * 10, 2)
    windows = [chosen(split, limit=5, skip=skip, balanced=balanced) for skip in (0, 5, 10, 15)]
    assert sorted(name for window in windows for name in names(window)) == list(range(20))
    assert all(names(window) == sorted(names(window)) for window in windows)
    assert names(windows[0]) != [0, 4, 8, 12, 16], "it is a draw"
    assert names(chosen(split, limit=5, skip=0, balanced=balanced)) == names(windows[0])
    if balanced:
        assert [np.bincount(all_rows(window).labels).tolist() for window in windows] == [[3, 2], [2, 3], [3, 2], [2, 3]]


def test_skip_alone_leaves_out_the_first_of_the_draw() -> None:
    split = Counted([0] * 20, 1)
    assert set(names(chosen(split, skip=6))) == set(range(20)) - set(names(chosen(split, skip=0, limit=6)))
    assert names(chosen(split, "test", skip=6)) == list(range(20))


def test_every_choice_has_its_own_fingerprint_and_is_sent_whole() -> None:
    split = Counted([0, 1] * 10, 2)
    settings: list[dict[str, Any]] = [
        {}, {"limit": 6}, {"limit": 6, "skip": 0}, {"limit": 6, "skip": 6}, {"limit": 6, "balanced": True}
    ]  # fmt: skip
    assert len({chosen(split, **one).fingerprint for one in settings}) == 5
    copy = sent(chosen(split, limit=6, skip=6))
    assert copy.names_of(np.arange(6)) == all_rows(chosen(split, limit=6, skip=6)).names
    assert (copy.classes, copy.is_random_access, copy.unit_sizes.tolist()) == (("a", "b"), False, [6])


# lists of images


def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(["cat/1.png", "cat/2.v2.png", "dog/1.png", "dog/3.png"]):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(png(number))
    return tmp_path / "images"


def listed(tmp_path: Path, text: str, **settings: Any) -> list[str]:
    root = folder(tmp_path)
    (tmp_path / "list.txt").write_text(text)
    config = ImageFolder.Config(train=str(root), subset=str(tmp_path / "list.txt"), **settings)
    return [Path(name).relative_to(root).as_posix() for name in all_rows(ImageFolder(config).required("train")).names]


@pytest.mark.parametrize(
    "text",
    ["3.png\n2.v2.png\n", "3\n2.v2\n3\n", "dog/3\n./cat/2.v2.png", "images/dog/3.png\nimages/cat/2.v2"],
)
def test_a_list_names_images_in_many_ways_and_their_order_stays(tmp_path: Path, text: str) -> None:
    assert listed(tmp_path, text) == ["cat/2.v2.png", "dog/3.png"]


def test_a_list_may_be_an_array(tmp_path: Path) -> None:
    root = folder(tmp_path)
    for array in (np.array([2, 0]), np.array(["dog/1", "cat/1.png"]), np.array([b"dog/1", b"cat/1.png"])):
        np.save(tmp_path / "list.npy", array)
        config = ImageFolder.Config(train=str(root), subset=str(tmp_path / "list.npy"))
        assert all_rows(ImageFolder(config).required("train")).labels.tolist() == [0, 1]


def test_a_limit_chooses_among_the_listed(tmp_path: Path) -> None:
    assert listed(tmp_path, "dog/1\ndog/3\ncat/1", limit=1) == ["cat/1.png"]
    assert listed(tmp_path, "dog/1\ndog/3\ncat/1", limit=2, balanced=True) == ["cat/1.png", "dog/1.png"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x1\nx2\nx3\nx4\nx5\nx6\ndog/3", r"list.txt lists 6 images that are not in the dataset: x1, .*, x5, \.\.\."),
        ("og/3.png", r"lists 1 images that are not in the dataset: og/3.png"),
        ("1.png", r"'1.png' names .*cat/1.png and .*dog/1.png; give more of the path"),
        ("0\n4\n", r"lists 1 indices that are not in \[0, 3\], first 4"),
        ("\n \n", r"list.txt lists no images"),
    ],
)
def test_lists_that_do_not_fit_are_told_once(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        listed(tmp_path, text)


def test_a_list_that_is_absent_or_of_another_kind_is_named(tmp_path: Path) -> None:
    root = str(folder(tmp_path))
    with pytest.raises(ConfigError, match=r"no file '.*/gone.txt'; give the address of a file"):
        ImageFolder(ImageFolder.Config(train=root, subset=str(tmp_path / "gone.txt"))).required("train")
    np.save(tmp_path / "square.npy", np.zeros((2, 2), int))
    with pytest.raises(ConfigError, match=r"square.npy holds an array of shape \[2, 2\]"):
        ImageFolder(ImageFolder.Config(train=root, subset=str(tmp_path / "square.npy"))).required("train")


@pytest.mark.parametrize("name", sorted(ALIASES["source"]))
def test_a_list_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("source", name).Config(subset="list.txt").subset == str(tmp_path / "list.txt")


# labels


def test_labels_can_be_the_index_or_nothing() -> None:
    split = Counted([2, 1, 0, 1, 2, 0], 3)
    index = chosen(split, limit=3, label_type="sample_index")
    assert (names(index), all_rows(index).labels.tolist()) == ([0, 2, 4], [0, 1, 2])
    zero = chosen(split, label_type="zero")
    assert all_rows(zero).labels.tolist() == [0] * 6
    assert index.classes == zero.classes == (), "nothing that a benchmark could measure"
    assert chosen(split, limit=3, balanced=True, label_type="zero").num_samples == 3, "balance goes by the true labels"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.skip=-1", "data.skip: -1 is out of range"),
        ("data.balanced=true", "data.balanced: it divides data.limit images among the classes"),
    ],
)
def test_the_choice_of_images_is_checked_before_any_is_read(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", [override])
    assert [line.split(";")[0] for line in str(caught.value).splitlines()] == [message]


def test_a_number_that_is_too_large_for_an_index_is_told(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("1\n99999999999999999999\n")
    for settings, message in (
        ({}, r"list.txt lists 1 images that are not in the dataset: 99999999999999999999"),
        ({"subset_by": "index"}, r"lists 1 indices that are not in \[0, 3\], first 99999999999999999999; if these"),
    ):
        with pytest.raises(ConfigError, match=message):
            chosen(Counted([0] * 4, 1), subset=str(tmp_path / "list.txt"), **settings)


def test_numbers_that_are_names_too_are_read_as_the_setting_says(tmp_path: Path) -> None:
    root = tmp_path / "numbered"
    root.mkdir()
    for shade, name in enumerate(["5", "0", "1"]):  # sorted: 0 (shade 1), 1 (shade 2), 5 (shade 0)
        (root / f"{name}.png").write_bytes(png(shade))
    (tmp_path / "list.txt").write_text("0\n1\n")
    (tmp_path / "far.txt").write_text("5\n")

    def images(file: str = "list.txt", **settings: Any) -> list[object]:
        config = ImageFolder.Config(train=str(root), subset=str(tmp_path / file), **settings)
        return list(all_rows(ImageFolder(config).required("train")).images)

    with pytest.raises(ConfigError, match=r"list.txt lists 2 numbers .* 2 of them are also names .*subset_by=name or"):
        images()
    (root / "0.png").rename(root / "x0.png")  # sorted: 1, 5, x0
    with pytest.raises(ConfigError, match=r"2 numbers that are indices of images, but 1 of them are also names"):
        images()
    assert images(subset_by="index") == [png(2), png(0)]
    with pytest.raises(ConfigError, match=r"lists 1 images that are not in the dataset: 0"):
        images(subset_by="name")
    assert images("far.txt") == [png(0)], "there is no such index"
    np.save(tmp_path / "list.npy", np.array([0, 1]))
    assert images("list.npy") == [png(2), png(0)], "integers of an array are no names"
    (tmp_path / "words.txt").write_text("a.png\n")
    with pytest.raises(ConfigError, match=r"words.txt lists a value that is not an index: .*'a.png'; set data"):
        images("words.txt", subset_by="index")


def test_samples_of_a_tar_are_named_by_their_keys(tmp_path: Path) -> None:
    keys = ["9", "8", "x/7", "6"]
    (tmp_path / "a.tar").write_bytes(tar_of({f"{key}.png": png(shade) for shade, key in enumerate(keys)}))

    def images(text: str, **settings: Any) -> list[object]:
        (tmp_path / "list.txt").write_text(text)
        config = WebDataset.Config(train=str(tmp_path / "a.tar"), subset=str(tmp_path / "list.txt"), **settings)
        return list(all_rows(WebDataset(config).required("train")).images)

    assert images("9\n7\n") == images("9.png\nx/7.png\n") == images("x/7\n9") == [png(0), png(2)]
    assert images("9\n7\n", subset_by="name") == [png(0), png(2)]
    with pytest.raises(ConfigError, match=r"lists 1 images that are not in the dataset: y/7"):
        images("y/7")
    (tmp_path / "a.tar").write_bytes(tar_of({f"{key}.png": png(key) for key in range(4, 0, -1)}))
    with pytest.raises(ConfigError, match=r"lists 2 numbers that are indices of images, but 2 of them are also names"):
        images("1\n2")
    assert images("1\n2", subset_by="index") == [png(3), png(2)]
    assert images("1\n2", subset_by="name") == [png(2), png(1)]


def test_how_a_list_is_read_needs_a_list() -> None:
    with pytest.raises(ConfigError, match=r"^data.subset_by: it explains .* lists; give data.subset= too$"):
        load_config("quickstart", ["data.subset_by=index"])
