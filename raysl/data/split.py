"""One part of a dataset: encoded images that can be read by their indices."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysl.config.background import WHITE, Color
from raysl.hashing import Int64s

LABELS = "labels"
"""What the digest of labels is called in `Split.content`."""
UNIT_ROWS = 256  # rows of a read unit where the storage has none of its own


@dataclass(frozen=True)
class Missing:
    """Stands for an image that is not there; `reason` says why, in words."""

    reason: str


Encoded = bytes | np.ndarray | Missing | None


@dataclass
class Rows:
    """Images as they are stored, and their labels.

    Args:
        images: encoded files (bytes), or pixels: uint8 [H, W], [H, W, 3] or [H, W, 4]; None, or Missing with the
            reason, where an image is not there.
        labels: int64 [B], -1 where unlabelled; of a multi-label split int64 [B, K]: 1 present, 0 absent, -1 ignore.
        names: where each image came from, for messages and to pick images by name.
        partners: the corresponding rows of further sources, where several are paired.
    """

    images: Sequence[Encoded]
    labels: Int64s
    names: list[str]
    partners: tuple["Rows", ...] = ()


class Split(ABC):
    """One part of a dataset. It is sent to the processes that read, so it holds places, not pixels.

    Attributes:
        unit_sizes: rows of each read unit, int64 [U]; samples are numbered through the units.
        fingerprint: names the dataset; the order of its samples is a function of it, so it stays as it is when files
            are copied or touched. Where it does not change with everything that the dataset has, `content` and
            `written` tell the rest.
        classes: names of the classes, by label; empty for an unlabelled dataset.
        is_random_access: whether reading rows in any order costs about as much as reading them in sequence.
        is_multilabel: whether a sample has a label of each class, instead of one class.
        num_sources: images of a sample; above 1 where sources are paired.
        notes: what is odd about the files, a line each, for the user to see before they are used.
        background: what transparent images are blended with when they are decoded; None drops their alpha.
        inner: splits that this one takes its images from.
    """

    unit_sizes: Int64s
    fingerprint: str
    classes: tuple[str, ...]
    is_random_access: bool
    is_multilabel: bool = False
    num_sources: int = 1
    notes: tuple[str, ...] = ()
    background: Color | None = WHITE
    inner: tuple["Split", ...] = ()

    @property
    def num_samples(self) -> int:
        """Images in this split."""
        return int(self.unit_sizes.sum())

    @abstractmethod
    def read(self, index: Int64s) -> Rows:
        """The images with these indices, in this order.

        An image whose own file has gone since is Missing, and is then handled like a corrupt one.

        Raises:
            RunFailed: if a network fails again and again, or a file of many images is gone, damaged or another one.
        """

    def content(self) -> Mapping[str, str]:
        """Digests of what the fingerprint leaves out and a copy of the dataset has as well, by what they are of:
        `labels`, `sizes`, `files`, `pixels`. What is not known without reading all images is not in it."""
        return {
            name if len(self.inner) == 1 else f"{name} of source {number}": digest
            for number, split in enumerate(self.inner, 1)
            for name, digest in split.content().items()
        }

    def written(self, ask: bool = True) -> str:
        """A digest of when the files were written, of modification times or ETags; empty where nothing tells, or where
        `content` has the digest of every byte.

        Args:
            ask: whether the storage may be asked of each file, which takes a second for some 100,000 local ones, where
                no listing has told it.
        """
        return joined_digest([split.written(ask) for split in self.inner])

    def state(self) -> dict[str, Any]:
        """All that tells these images from others, in the types of JSON: what is measured of them is kept with it."""
        parts = {"content": dict(self.content()), "written": self.written()}
        return {"fingerprint": self.fingerprint, **{name: part for name, part in parts.items() if part}}

    def readers(self) -> tuple[type["Split"], ...]:
        """The classes that read these images: its own, and those of `inner`."""
        return (type(self), *(kind for split in self.inner for kind in split.readers()))

    def labels_of(self, index: Int64s) -> Int64s:
        """Labels alone, as in `Rows`. A split that has them at hand overrides this, which reads the images too."""
        parts = [self.read(index[start : start + UNIT_ROWS]).labels for start in range(0, len(index), UNIT_ROWS)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def names_of(self, index: Int64s) -> list[str]:
        """Names alone, as in `Rows`. A split that has them at hand overrides this, which reads the images too."""
        starts = range(0, len(index), UNIT_ROWS)
        return [name for start in starts for name in self.read(index[start : start + UNIT_ROWS]).names]


def joined_digest(parts: Sequence[str]) -> str:
    """16 hexadecimal digits that change with each part; empty where all parts are, and the part where there is one."""
    if len(parts) == 1:
        return parts[0]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if any(parts) else ""


def seen_on(split: Split, background: Color | None) -> Split:
    """The split with another background for its transparent images."""
    if split.background == background:
        return split
    split = copy(split)
    split.background = background
    return split


def with_labels(split: Split, label_type: str) -> Split:
    """The split with its own labels (`standard`), each sample's index (`sample_index`), or 0 for all (`zero`)."""
    return split if label_type == "standard" else _Relabelled(split, label_type == "sample_index")


def by_unit(starts: Int64s, index: Int64s) -> Iterable[tuple[int, Int64s]]:
    """Read units that rows lie in, in ascending order, each with the places in `index` of its rows.

    Args:
        starts: int64 [U], first row of each unit.
        index: int64 [B], rows in any order.
    """
    units = np.searchsorted(starts, index, side="right") - 1
    order = np.argsort(units, kind="stable")
    found, firsts = np.unique(units[order], return_index=True)
    return zip(found.tolist(), np.split(order, firsts[1:]), strict=True) if len(index) else ()


def runs(num_samples: int, size: int = UNIT_ROWS) -> Int64s:
    """Unit sizes of rows without read units of their own: runs of `size` rows, the last one shorter."""
    whole, rest = divmod(num_samples, size)
    return np.array([size] * whole + [rest] * (rest > 0), np.int64)


class _Relabelled(Split):
    """A split whose labels name no classes: the index of each sample, or 0."""

    def __init__(self, split: Split, is_index: bool) -> None:
        self.split = split
        self.is_index = is_index
        self.unit_sizes = split.unit_sizes
        self.fingerprint = split.fingerprint
        self.classes = ()
        self.is_random_access = split.is_random_access
        self.num_sources = split.num_sources
        self.notes = split.notes
        self.inner = (split,)

    def content(self) -> Mapping[str, str]:
        return {name: digest for name, digest in self.split.content().items() if not name.startswith(LABELS)}

    def read(self, index: Int64s) -> Rows:
        rows = self.split.read(index)
        return Rows(rows.images, self.labels_of(index), rows.names, rows.partners)

    def labels_of(self, index: Int64s) -> Int64s:
        return index.astype(np.int64) if self.is_index else np.zeros(len(index), np.int64)

    def names_of(self, index: Int64s) -> list[str]:
        return self.split.names_of(index)
