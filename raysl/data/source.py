"""What a dataset is to raysl: splits of encoded images that can be read by their indices."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from raysl.config.schema import ConfigError, DataConfig
from raysl.hashing import Int64s

SPLITS = ("train", "test")
UNIT_ROWS = 256  # rows of a read unit where the storage has none of its own


@dataclass
class Rows:
    """Images as they are stored, and their labels.

    Args:
        images: encoded files (bytes), or pixels: uint8 [H, W] or [H, W, 3].
        labels: int64 [B], -1 where unlabelled.
        names: where each image came from, for messages.
    """

    images: list[bytes | np.ndarray]
    labels: Int64s
    names: list[str]


class Split(ABC):
    """One part of a dataset. It is sent to the processes that read, so it holds places, not pixels.

    Attributes:
        unit_sizes: rows of each read unit, int64 [U]; samples are numbered through the units.
        fingerprint: changes when the dataset does.
        classes: names of the classes, by label; empty for an unlabelled dataset.
        is_random_access: whether reading rows in any order costs about as much as reading them in sequence.
    """

    unit_sizes: Int64s
    fingerprint: str
    classes: tuple[str, ...]
    is_random_access: bool

    @property
    def num_samples(self) -> int:
        """Images in this split."""
        return int(self.unit_sizes.sum())

    @abstractmethod
    def read(self, index: Int64s) -> Rows:
        """The images with these indices, in this order."""


class Source(ABC):
    """A dataset: its splits. A subclass nests a frozen `Config` and takes it as its only argument."""

    Config: ClassVar[type[DataConfig]]

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def split(self, name: str) -> Split | None:
        """The split `train` or `test`; None where the dataset has no such part.

        Raises:
            ConfigError: if the images cannot be found or read.
        """

    def optional(self, name: str) -> Split | None:
        """The split `name`, limited as the settings say, or None where the dataset has no such part."""
        split = self.split(name)
        return split if split is None or self.config.limit is None else Limited(split, self.config.limit)

    def required(self, name: str) -> Split:
        """The split `name`, limited as the settings say.

        Raises:
            ConfigError: if the dataset has no such part.
        """
        split = self.optional(name)
        if split is None:
            raise ConfigError(f"the dataset {self.config.name!r} has no {name} images; give data.{name}=")
        return split


class Limited(Split):
    """An evenly spaced subset of a split, numbered anew."""

    def __init__(self, split: Split, limit: int) -> None:
        num_samples = min(limit, split.num_samples)
        self.split = split
        self.index = np.arange(num_samples) * split.num_samples // num_samples
        self.unit_sizes = runs(num_samples)
        self.fingerprint = f"{split.fingerprint}:{num_samples}"
        self.classes = split.classes
        self.is_random_access = split.is_random_access

    def read(self, index: Int64s) -> Rows:
        """See `Split.read`."""
        return self.split.read(self.index[index])


def runs(num_samples: int, size: int = UNIT_ROWS) -> Int64s:
    """Unit sizes of rows without read units of their own: runs of `size` rows, the last one shorter."""
    whole, rest = divmod(num_samples, size)
    return np.array([size] * whole + [rest] * (rest > 0), np.int64)
