"""Reading samples: what is broken is replaced, the same on every read."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from raysl.data.decode.corrupt import CorruptLog, Replaced
from raysl.data.decode.images import NoValidImage, Pictures, Read, cut_images, read_images
from raysl.data.source import Rows, Split, runs
from raysl.errors import ConfigError
from raysl.hashing import Int64s


class Shades(Split):
    """Images of one shade each, the index; those in `broken` are not decodable."""

    classes: tuple[str, ...] = ()

    def __init__(self, num: int, unit: int, broken: set[int]) -> None:
        self.unit_sizes = runs(num, unit)
        self.broken = broken
        self.seen: list[int] = []

    def read(self, index: Int64s) -> Rows:
        self.seen += index.tolist()
        images = [b"broken" if row in self.broken else np.full((2, 2), row, np.uint8) for row in index.tolist()]
        return Rows(images, index * 10, [f"image {row}" for row in index.tolist()])


def shades(read: Read, source: int = 0) -> list[int]:
    return [int(image[0, 0, 0]) for image in read.pictures[source].images]


def test_a_corrupt_image_is_replaced_by_the_next_valid_one_of_its_unit_with_its_label() -> None:
    split = Shades(10, unit=4, broken={1, 2, 7})
    read = read_images(split, np.array([1, 0, 2, 7, 3]))
    assert shades(read) == [3, 0, 3, 4, 3], "2 is corrupt as well; the unit of 7 starts again at 4"
    assert read.labels.tolist() == [30, 0, 30, 40, 30]
    assert [text.partition(":")[0] for text in read.corrupt] == ["image 1", "image 2", "image 7"]
    assert shades(read_images(split, np.array([7]))) == [4]


def test_a_unit_without_a_valid_image_takes_the_next_units(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shades(read_images(Shades(10, unit=4, broken={4, 5, 6, 7}), np.array([0, 6]))) == [0, 8]
    assert shades(read_images(Shades(9, unit=4, broken={8}), np.array([8]))) == [0], "the last row is a unit of its own"
    monkeypatch.setattr("raysl.data.decode.images.MOST_TRIED", 3)
    with pytest.raises(NoValidImage, match=r"no valid image among the 3 after row 6; the first problem: image 6"):
        read_images(Shades(20, unit=4, broken=set(range(4, 12))), np.array([0, 6]))


class Pairs(Shades):
    """Each sample has a partner that is 100 brighter; `dim` ones are broken."""

    num_sources = 2

    def __init__(self, num: int, unit: int, broken: set[int], dim: set[int]) -> None:
        super().__init__(num, unit, broken)
        self.dim = dim

    def read(self, index: Int64s) -> Rows:
        first = super().read(index)
        images = [None if row in self.dim else np.full((2, 2), row + 100, np.uint8) for row in index.tolist()]
        return Rows(first.images, first.labels, first.names, (Rows(images, first.labels, ["partner"] * len(index)),))


def test_a_pair_with_one_broken_image_is_replaced_as_a_pair() -> None:
    read = read_images(Pairs(8, unit=4, broken={1}, dim={2, 4}), np.arange(5))
    assert shades(read) == [0, 3, 3, 3, 5]
    assert shades(read, source=1) == [100, 103, 103, 103, 105]
    assert len(read.corrupt) == 3


class Returning(Shades):
    """Reads what a test asks for."""

    classes = ("a", "b")

    def __init__(self, change: Callable[[Rows], Any]) -> None:
        super().__init__(4, unit=4, broken=set())
        self.change = change

    def read(self, index: Int64s) -> Rows:
        rows: Rows = self.change(super().read(index))
        return rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: (rows.images, rows.labels), "Returning.read returned tuple; return Rows"),
        (lambda rows: replace(rows, images=rows.images[1:]), "returned 2 images, 3 labels, 3 names for 3 indices"),
        (lambda rows: replace(rows, labels=[0, 1, 0]), r"returned labels \[0, 1, 0\]; return an array int64"),
        (lambda rows: replace(rows, labels=np.array([0.0, 1.0, 0.0])), r"returned labels array\(\[0., 1., 0.\]\)"),
        (lambda rows: replace(rows, labels=np.array([1, 2, 0])), "image 2 has the label 2, and classes .* 0 to 1"),
    ],
)
def test_rows_that_a_split_may_not_read_are_refused(change: Callable[[Rows], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_images(Returning(change), np.array([0, 2, 1]))
    rows = read_images(Returning(lambda rows: replace(rows, labels=np.array([1, -1, 0]))), np.array([0, 2, 1]))
    assert rows.labels.tolist() == [1, -1, 0]


def test_no_rows_are_no_images_of_each_source() -> None:
    read = read_images(Pairs(8, unit=4, broken=set(), dim=set()), np.empty(0, np.int64))
    assert [pictures.images for pictures in read.pictures] == [[], []]


def shade_cut(sources: tuple[Pictures, ...], index: Int64s) -> dict[str, torch.Tensor]:
    """The shades of each source beside the index, as crops."""
    shades = [[int(image[0, 0, 0]) for image in pictures.images] for pictures in sources]
    return {"shades": torch.tensor([*shades, index.tolist()]).T}


def test_a_known_corrupt_image_is_replaced_by_the_same_one_and_is_not_read() -> None:
    split, index = Pairs(12, unit=4, broken={1, 2, 7}, dim={9}), np.array([9, 1, 0, 2, 7, 1])
    first = cut_images(split, index, shade_cut)
    log = CorruptLog()
    assert log.add(first.corrupt) == list(dict.fromkeys(first.corrupt))
    assert {row: image.other for row, image in log.known.items()} == {9: 10, 1: 3, 2: 3, 7: 4}
    split.seen.clear()
    again = cut_images(split, index, shade_cut, known=log.known)
    assert torch.equal(again.views["shades"], first.views["shades"])
    assert np.array_equal(again.labels, first.labels)
    assert again.corrupt == first.corrupt
    assert not log.add(again.corrupt), "each counts once"
    assert set(split.seen) == {0, 3, 4, 10}, "one read of each row that is used"


def test_what_replaces_a_known_one_is_sought_again_if_it_breaks_too() -> None:
    known = {1: Replaced("image 1: broken", 1, 2)}
    read = cut_images(Shades(8, unit=4, broken={1, 2}), np.array([0, 1]), shade_cut, known=known)
    assert read.views["shades"].tolist() == [[0, 0], [3, 1]]


def test_a_replaced_image_keeps_its_rows_on_the_way_between_processes() -> None:
    (image,) = pickle.loads(pickle.dumps((Replaced("a.jpg: broken", 4, 5),)))
    assert (image, image.row, image.other) == ("a.jpg: broken", 4, 5)
    log = CorruptLog()
    log.learn([image, "b.jpg: broken"])
    assert list(log.known) == [4]
    assert not log.unreported, "others have reported it"
