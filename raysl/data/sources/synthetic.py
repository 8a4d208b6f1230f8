"""Images that are generated from their index, in any size and number, for tests and speed measurements."""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from typing_extensions import override

from raysl.config.ranges import Count, Images, Side, Within
from raysl.data.source import OF_THE_IMAGES, DataConfig, Rows, Source, Split, runs
from raysl.hashing import Int64s, hash_rows, hash_words


class Synthetic(Source):
    """Smooth coloured noise; the label shifts the colour, so that it can be learned."""

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Size and number of the images."""

        name: str = "synthetic"
        image_size: Side = field(default=32, metadata=OF_THE_IMAGES)
        num_train: Images = 1024
        """Training images."""
        num_test: Images = 256
        """Held-out images."""
        num_classes: Annotated[int, Within(1, 100_000)] = 10
        """Classes."""
        unit_rows: Count = 256
        """Rows of a read unit."""
        is_random_access: bool = True
        """Whether the order of an epoch may be an exact permutation; false streams unit by unit."""

    @override
    def split(self, name: str) -> Split | None:
        return _SyntheticSplit(self.config, name)


class _SyntheticSplit(Split):
    def __init__(self, config: "Synthetic.Config", name: str) -> None:
        self.size = config.image_size
        self.salt = hash_words(0 if name == "train" else 1)
        self.unit_sizes = runs(config.num_train if name == "train" else config.num_test, config.unit_rows)
        self.classes = tuple(f"class {number}" for number in range(config.num_classes))
        self.is_random_access = config.is_random_access
        self.fingerprint = f"synthetic:{name}:{self.size}:{self.num_samples}:{config.unit_rows}:{len(self.classes)}"

    def read(self, index: Int64s) -> Rows:
        labels = self.labels_of(index)
        images: list[bytes | np.ndarray | None] = [
            self._image(int(row), label) for row, label in zip(index, labels, strict=True)
        ]
        return Rows(images, labels, [f"synthetic {row}" for row in index.tolist()])

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        labels: Int64s = (hash_rows(self.salt, index) % np.uint64(len(self.classes))).astype(np.int64)
        return labels

    def _image(self, row: int, label: int) -> np.ndarray:
        # 64 numbers belong to each image, more than it uses, so that no two images share one
        cells = np.arange(4 * 4 * 3) + row * 64
        coarse = (hash_rows(self.salt, cells) % np.uint64(128)).astype(np.float64).reshape(4, 4, 3)
        hue = 2 * np.pi * label / len(self.classes) + np.array([0, 2.1, 4.2])
        grown = np.arange(self.size) * 4 // self.size
        pixels: np.ndarray = (coarse[grown][:, grown] + 63 * (1 + np.cos(hue))).astype(np.uint8)
        return pixels
