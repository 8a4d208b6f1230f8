"""Several datasets, one after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from typing_extensions import override

from raysl.config.ranges import Positive
from raysl.data.order import Part
from raysl.data.source import Combined, ConfigError, Int64s, Rows, Split
from raysl.data.sources.listing import composed
from raysl.data.split import Encoded, by_unit, gather
from raysl.hashing import digest


class Concat(Combined):
    """The images of several sources, one source after another.

    Classes of the same name are one class; they are numbered in the order in which the sources name them. In
    multi-label datasets, classes that a sample's source does not have are labelled -1, ignore. Sources without held-out
    images add none.

    With `weights`, each source has that share of the training images of an epoch, which stays as long as without: the
    images of a source come equally often, give or take one, and an epoch goes on where the one before stopped. See
    `raysl.data.order`.

    The settings of the pipeline (image size, normalisation, lanes, window and so on) and `label_type` belong to this
    node and are refused on the inner sources. `limit`, `balanced`, `skip` and `subset` may be set on either.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Combined.Config):
        """The sources."""

        name: str = "concat"
        weights: dict[str, Positive] | None = None
        """Share of each source in the training images, such as {a: 0.7, b: 0.3}, for pre-training; any positive
        numbers, of which only the ratios count. Default: each image comes once an epoch."""

    @override
    def split(self, name: str) -> Split | None:
        if not self._train:
            raise ConfigError("concat needs data.sources=, at least one source: {a: {name: image_folder, path: ...}}")
        classes = _union(self._train)
        if name == "train":
            whole = _ConcatSplit(self._train, classes)
            return whole if self.config.weights is None else _mixed(whole, self._train, self.config.weights)
        parts = {key: split for key, source in self._sources.items() if (split := source.optional(name)) is not None}
        return _ConcatSplit(parts, classes) if parts else None

    @cached_property
    def _train(self) -> dict[str, Split]:
        return {key: source.required("train") for key, source in self._sources.items()}


def _union(parts: dict[str, Split]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(composed(name) for part in parts.values() for name in part.classes))


class _ConcatSplit(Split):
    def __init__(self, parts: dict[str, Split], classes: tuple[str, ...]) -> None:
        splits = list(parts.values())
        _check_alike(parts)
        self.splits = splits
        self.inner = tuple(splits)
        self.starts = np.cumsum([0, *(split.num_samples for split in splits)])
        self.unit_sizes = np.concatenate([split.unit_sizes for split in splits])
        self.classes = classes
        self.is_random_access = all(split.is_random_access for split in splits)
        self.is_multilabel = splits[0].is_multilabel
        self.num_sources = splits[0].num_sources
        self.notes = tuple(note for split in splits for note in split.notes)
        fingerprints = " ".join(split.fingerprint for split in splits)
        self.fingerprint = digest(fingerprints)
        self.numbers = [_numbers(key, split, classes) for key, split in parts.items()]

    def read(self, index: Int64s) -> Rows:
        parts = [(number, positions, self.splits[number].read(rows)) for number, positions, rows in self._parts(index)]
        rows = _arrange([(positions, part) for _, positions, part in parts], len(index))
        rows.labels = self._join_labels([(number, positions, part.labels) for number, positions, part in parts], index)
        return rows

    def labels_of(self, index: Int64s) -> Int64s:
        parts = self._parts(index)
        labels = [(number, positions, self.splits[number].labels_of(rows)) for number, positions, rows in parts]
        return self._join_labels(labels, index)

    def names_of(self, index: Int64s) -> list[str]:
        return gather(self.starts, index, lambda number, rows: self.splits[number].names_of(rows))

    @property
    @override
    def read_units(self) -> Int64s:
        return np.concatenate([split.read_units for split in self.splits])

    def _parts(self, index: Int64s) -> list[tuple[int, Int64s, Int64s]]:
        """Return, for each split that is needed: its number, positions in `index`, and the rows to read from it."""
        units = by_unit(self.starts, index)
        return [(number, positions, index[positions] - self.starts[number]) for number, positions in units]

    def _join_labels(self, parts: list[tuple[int, Int64s, Int64s]], index: Int64s) -> Int64s:
        """Renumber the labels of the splits by all classes and join them."""
        labels = np.full((len(index), len(self.classes)) if self.is_multilabel else len(index), -1)
        for number, positions, split_labels in parts:
            new_numbers = self.numbers[number]
            if self.is_multilabel:
                # classes that this source does not have keep the -1, which means ignore
                labels[positions[:, None], new_numbers] = split_labels
            else:  # -1 indexes the appended -1, and so do labels without a class
                labels[positions] = np.append(new_numbers, -1)[np.minimum(split_labels, len(new_numbers))]
        return labels


def _mixed(split: Split, parts: dict[str, Split], weights: dict[str, float]) -> Split:
    """Return the split with an order that takes each part by its weight."""
    if set(weights) != set(parts):
        raise ConfigError(
            f"data.weights has {', '.join(sorted(weights)) or 'nothing'}, and data.sources has "
            f"{', '.join(sorted(parts))}; give each source a weight"
        )
    # the ends are rounded, not the parts, so that their sum is the number of images
    ends = np.cumsum([weights[key] for key in parts])
    rows = np.diff(np.rint(ends / ends[-1] * split.num_samples).astype(np.int64), prepend=0).tolist()
    for key, num in zip(parts, rows, strict=True):
        if num == 0:
            raise ConfigError(
                f"data.weights.{key}={weights[key]} is less than one of the {split.num_samples:,} images of an epoch; "
                "raise it, or leave out the source"
            )
    split.mix = tuple(
        Part(key, len(part.read_units), num) for (key, part), num in zip(parts.items(), rows, strict=True)
    )
    split.fingerprint = digest(split.fingerprint, *map(str, rows))
    return split


def _check_alike(parts: dict[str, Split]) -> None:
    first_key, first = next(iter(parts.items()))
    for key, split in parts.items():
        if split.is_multilabel != first.is_multilabel:
            single, several = (first_key, key) if split.is_multilabel else (key, first_key)
            raise ConfigError(
                f"data.sources.{several} is multi-label and data.sources.{single} is not; give sources of one kind"
            )
        if split.num_sources != first.num_sources:
            raise ConfigError(
                f"a sample of data.sources.{key} has {split.num_sources} images, one of data.sources.{first_key} has "
                f"{first.num_sources}; give sources with the same number"
            )


def _numbers(key: str, split: Split, classes: tuple[str, ...]) -> Int64s:
    """Return the number of each of a split's classes among all classes."""
    numbers = {name: number for number, name in enumerate(classes)}
    names = [composed(name) for name in split.classes]
    unknown = [name for name in names if name not in numbers]
    if unknown:
        raise ConfigError(f"data.sources.{key} has held-out images of a class without training images: {unknown[0]!r}")
    return np.array([numbers[name] for name in names], np.int64)


def _arrange(parts: Sequence[tuple[Int64s, Rows]], num: int) -> Rows:
    """Arrange the rows of several splits by their positions; labels are left at -1."""
    images: list[Encoded] = [None] * num
    names = [""] * num
    for positions, rows in parts:
        for position, image, name in zip(positions.tolist(), rows.images, rows.names, strict=True):
            images[position], names[position] = image, name
    num_partners = len(parts[0][1].partners) if parts else 0
    partners = tuple(
        _arrange([(positions, rows.partners[number]) for positions, rows in parts], num)
        for number in range(num_partners)
    )
    return Rows(images, np.full(num, -1), names, partners)
