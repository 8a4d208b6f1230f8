"""Crops of the two photographs in scikit-learn: real colour images without a download."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from typing_extensions import override

from raysl.config.ranges import Images, Within
from raysl.data.source import DataConfig, Rows, Source, Split, runs
from raysl.hashing import Int64s, hash_rows, hash_words

WIDTH, HEIGHT = 640, 427
TEST_LEFT = 448  # the first column of held-out crops
MAX_SIZE = (WIDTH - TEST_LEFT) // 2


class Photos(Source):
    """Square crops of a temple (`china`) and of a dahlia (`flower`), the photographs of `load_sample_images`.

    The label is the photograph. Crops are 1, 1.5 and 2 times `size` wide, at positions from a hash of their number;
    held-out and training crops share no pixels.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Size and number of the crops."""

        name: str = "photos"
        num_train: Images = 1024
        """Training crops."""
        num_test: Images = 256
        """Held-out crops."""
        size: Annotated[int, Within(8, MAX_SIZE)] = 64
        """Side of the smallest crops in pixels."""

    @override
    def split(self, name: str) -> Split | None:
        num_crops = self.config.num_train if name == "train" else self.config.num_test
        return _PhotosSplit(name, num_crops, self.config.size)


class _PhotosSplit(Split):
    classes = ("china", "flower")
    is_random_access = True

    def __init__(self, name: str, num_crops: int, size: int) -> None:
        self.name = name
        self.size = size
        self.left, self.right = (0, TEST_LEFT) if name == "train" else (TEST_LEFT, WIDTH)
        self.unit_sizes = runs(num_crops)
        self.fingerprint = f"photos:{name}:{num_crops}:{size}"

    @override
    def read(self, index: Int64s) -> Rows:
        labels = self.labels_of(index)
        # the label changes with each crop and the size with every second, so both classes have all sizes
        sides = np.array([self.size, self.size * 3 // 2, self.size * 2])[index // 2 % 3]
        tops = self._positions(0, index, HEIGHT - sides)
        lefts = self.left + self._positions(1, index, self.right - self.left - sides)
        images: list[bytes | np.ndarray | None] = []
        names = []
        for label, side, y, x in zip(labels, sides, tops, lefts, strict=True):
            images.append(_photographs()[label, y : y + side, x : x + side].copy())
            names.append(f"{self.classes[label]} {side} px at row {y}, column {x}")
        return Rows(images, labels, names)

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        return index % 2

    def _positions(self, axis: int, index: Int64s, most: Int64s) -> Int64s:
        """Return a position in [0, most] for each crop."""
        hashes = hash_rows(hash_words(axis, self.left), index)
        return (hashes % (most + 1).astype(np.uint64)).astype(np.int64)


@lru_cache(maxsize=1)
def _photographs() -> np.ndarray:
    """Load both photographs, uint8 [2, 427, 640, 3]."""
    from sklearn.datasets import load_sample_images

    return np.stack(load_sample_images().images)
