"""One part of a dataset: encoded images that can be read by their indices."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from typing_extensions import override

from raysl.config.background import WHITE, Color
from raysl.data.decode.bands import Bands
from raysl.data.limits import Limits
from raysl.data.order import Part
from raysl.hashing import Int64s as Int64s
from raysl.hashing import digest

T = TypeVar("T")

LABELS = "labels"
"""Key of the labels' digest in `Split.content`."""
MOST_LABELS = 200_000
"""Labels that a start reads where the dataset cannot be read in any order, as on a remote storage."""
UNIT_ROWS = 256  # rows of a read unit where the storage does not define units


@dataclass(frozen=True)
class Missing:
    """Takes the place of an image that is missing; `reason` says why, in words."""

    reason: str


Encoded = bytes | np.ndarray | Missing | None


@dataclass
class Rows:
    """Images as they are stored, and their labels.

    Args:
        images: encoded files (bytes), or pixels: uint8 [H, W], [H, W, 3] or [H, W, 4]; None, or Missing with the
            reason, for a missing image.
        labels: int64 [B], -1 where unlabelled; of a multi-label split int64 [B, K]: 1 present, 0 absent, -1 ignore.
        names: the origin of each image, for messages and to pick images by name.
        partners: the corresponding rows of the other sources, if several are paired.
    """

    images: Sequence[Encoded]
    labels: Int64s
    names: list[str]
    partners: tuple["Rows", ...] = ()


class Split(ABC):
    """One part of a dataset. It is sent to the processes that read, so it holds paths and offsets, not pixels.

    Attributes:
        unit_sizes: rows of each read unit, int64 [U]; samples are numbered through the units.
        fingerprint: identifies the dataset. The order of samples is a function of it, so copying or touching files must
            not change it; `content` and `written` describe what it leaves out.
        classes: names of the classes, by label; empty for an unlabelled dataset.
        is_random_access: whether reading rows in any order costs about as much as reading them in sequence.
        is_multilabel: whether a sample has a label for each class, instead of one class.
        num_sources: images of a sample; above 1 if sources are paired.
        num_validation: rows at the end that are the dataset's published validation images, on which benchmarks choose
            their settings; 0 without any.
        notes: problems of the files, a line each, shown to the user before they are used.
        background: the colour behind transparent images; None ignores transparency.
        bands: how channels are read that are taken as they are stored; None: images are read as RGB.
        inner: splits that this one takes its images from.
        limits: on what one image may cost.
        mix: rows that each epoch of a run takes from each of several sources; empty: every image comes once an epoch.
    """

    unit_sizes: Int64s
    fingerprint: str
    classes: tuple[str, ...]
    is_random_access: bool
    is_multilabel: bool = False
    num_sources: int = 1
    num_validation: int = 0
    notes: tuple[str, ...] = ()
    background: Color | None = WHITE
    bands: Bands | None = None
    inner: tuple["Split", ...] = ()
    limits: Limits = Limits()
    mix: tuple[Part, ...] = ()

    @property
    def num_samples(self) -> int:
        """Images in this split."""
        return int(self.unit_sizes.sum())

    @property
    def read_units(self) -> Int64s:
        """Rows of the smallest parts that are worth a read each, int64 [R]; a unit is cut into one or more of them."""
        return self.unit_sizes

    @property
    def has_quick_labels(self) -> bool:
        """Whether all labels are read in moments, so that a start can look at them."""
        return self.is_random_access or self.num_samples <= MOST_LABELS

    @abstractmethod
    def read(self, index: Int64s) -> Rows:
        """Read the images with these indices, in this order.

        An image whose file has been deleted becomes Missing, and is handled like a corrupt one.

        Raises:
            RunFailed: if a network keeps failing, or a file of many images is missing, damaged or changed.
        """

    def content(self) -> Mapping[str, str]:
        """Return digests of what a copy of the dataset shares and the fingerprint leaves out.

        Keys are `labels`, `sizes`, `files` and `pixels`; those that need all images to be read are left out.
        """
        return {
            name if len(self.inner) == 1 else f"{name} of source {number}": digest
            for number, split in enumerate(self.inner, 1)
            for name, digest in split.content().items()
        }

    def written(self, ask: bool = True) -> str:
        """Return a digest of the files' modification times or ETags.

        It is empty if the storage has neither, or if `content` already has a digest of every byte.

        Args:
            ask: whether the storage may be asked for each file that a listing has not covered; a second for some
                100,000 local ones.
        """
        return joined_digest([split.written(ask) for split in self.inner])

    def state(self) -> dict[str, Any]:
        """Return all that identifies these images, in the types of JSON; stored with what is measured on them."""
        parts = {"content": dict(self.content()), "written": self.written()}
        return {"fingerprint": self.fingerprint, **{name: part for name, part in parts.items() if part}}

    def readers(self) -> tuple[type["Split"], ...]:
        """Return the classes that read these images: that of this split and those of `inner`."""
        return (type(self), *(kind for split in self.inner for kind in split.readers()))

    def labels_of(self, index: Int64s) -> Int64s:
        """Return only the labels, as in `Rows`. Override it where that does not need the images to be read."""
        parts = [self.read(index[start : start + UNIT_ROWS]).labels for start in range(0, len(index), UNIT_ROWS)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def names_of(self, index: Int64s) -> list[str]:
        """Return only the names, as in `Rows`. Override it where that does not need the images to be read."""
        starts = range(0, len(index), UNIT_ROWS)
        return [name for start in starts for name in self.read(index[start : start + UNIT_ROWS]).names]


class LabelledSplit(Split):
    """A split whose labels are all in memory and whose rows can be read in any order; a subclass reads the images.

    Attributes:
        labels: int [N], or [N, K] of a multi-label split.
    """

    is_random_access = True
    labels: np.ndarray

    @abstractmethod
    def images_of(self, index: Int64s) -> Sequence[Encoded]:
        """Read the images with these indices, as in `Rows`."""

    @abstractmethod
    def name_of(self, row: int) -> str:
        """Return the name of an image, as in `Rows`."""

    @override
    def read(self, index: Int64s) -> Rows:
        return Rows(self.images_of(index), self.labels_of(index), self.names_of(index))

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        return self.labels[index].astype(np.int64)

    @override
    def names_of(self, index: Int64s) -> list[str]:
        return [self.name_of(row) for row in index.tolist()]


def joined_digest(parts: Sequence[str]) -> str:
    """Return 16 hexadecimal digits that change with each part; a single part as it is, empty if all parts are empty."""
    if len(parts) == 1:
        return parts[0]
    return digest("\n".join(parts)) if any(parts) else ""


def with_facts(split: Split, **facts: Any) -> Split:
    """Return the split with other `background`, `bands` or `limits`."""
    if all(getattr(split, name) == value for name, value in facts.items()):
        return split
    split = copy(split)
    vars(split).update(facts)
    return split


def with_labels(split: Split, label_type: str) -> Split:
    """Return the split with its labels (`standard`), each sample's index (`sample_index`), or 0 for all (`zero`)."""
    return split if label_type == "standard" else _Relabelled(split, label_type == "sample_index")


def by_unit(starts: Int64s, index: Int64s) -> Iterable[tuple[int, Int64s]]:
    """Return the read units that contain the rows, in ascending order, each with the positions of its rows in `index`.

    Args:
        starts: int64 [U], first row of each unit.
        index: int64 [B], rows in any order.
    """
    units = np.searchsorted(starts, index, side="right") - 1
    order = np.argsort(units, kind="stable")
    used_units, firsts = np.unique(units[order], return_index=True)
    return zip(used_units.tolist(), np.split(order, firsts[1:]), strict=True) if len(index) else ()


def gather(starts: Int64s, index: Int64s, read: Callable[[int, Int64s], Iterable[T]]) -> list[T]:
    """Return a value for each row of `index`; `read` returns those of some rows of a read unit, numbered inside it."""
    values: list[Any] = [None] * len(index)
    for unit, positions in by_unit(starts, index):
        for position, value in zip(positions.tolist(), read(unit, index[positions] - starts[unit]), strict=True):
            values[position] = value
    return values


def runs(num_samples: int, size: int = UNIT_ROWS) -> Int64s:
    """Return unit sizes for storage without read units: runs of `size` rows, the last one shorter.

    >>> runs(600).tolist()
    [256, 256, 88]
    """
    whole, rest = divmod(num_samples, size)
    return np.array([size] * whole + [rest] * (rest > 0), np.int64)


class Over(Split):
    """A split whose images are some or all of those of another one; by default all, in the same order."""

    split: Split

    def take_over(self, split: Split) -> None:
        """Take everything but the fingerprint from the other split."""
        self.split = split
        self.inner = (split,)
        self.unit_sizes = split.unit_sizes
        for name in ("classes", "is_random_access", "is_multilabel", "num_sources", "num_validation", "notes"):
            setattr(self, name, getattr(split, name))
        self.background, self.bands, self.limits = split.background, split.bands, split.limits

    @property
    @override
    def read_units(self) -> Int64s:
        return self.split.read_units

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        return self.split.labels_of(index)

    @override
    def names_of(self, index: Int64s) -> list[str]:
        return self.split.names_of(index)


class _Relabelled(Over):
    """A split whose labels are not classes: the index of each sample, or 0."""

    def __init__(self, split: Split, is_index: bool) -> None:
        self.take_over(split)
        self.mix = split.mix
        self.is_index = is_index
        self.fingerprint = split.fingerprint
        self.classes = ()
        self.is_multilabel = False

    def content(self) -> Mapping[str, str]:
        return {name: digest for name, digest in self.split.content().items() if not name.startswith(LABELS)}

    def read(self, index: Int64s) -> Rows:
        rows = self.split.read(index)
        return Rows(rows.images, self.labels_of(index), rows.names, rows.partners)

    def labels_of(self, index: Int64s) -> Int64s:
        return index.astype(np.int64) if self.is_index else np.zeros(len(index), np.int64)
