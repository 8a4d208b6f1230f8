"""Several datasets, one after the other."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from typing_extensions import override

from raysl.config.schema import DataConfig
from raysl.data.source import Rows, Source, Split, check_inner, source_of
from raysl.data.split import Encoded
from raysl.errors import ConfigError
from raysl.hashing import Int64s


class Concat(Source):
    """The images of several sources, one source after the other.

    Classes of the same name are one class; they are numbered in the order in which the sources name them. Of
    multi-label sources each sample's labels of the classes that its own source has not are -1, to be ignored. The
    held-out images are those of the sources that have some.

    The settings of the pipeline (image size, normalisation, lanes, window and so on) and `label_type` are those of this
    node; on the sources inside it they are refused. `limit`, `balanced`, `skip` and `subset` work in both places.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """The sources."""

        name: str = "concat"
        sources: dict[str, DataConfig] = field(default_factory=dict)
        """Settings of each source, by a name of your choice: {a: {name: image_folder, path: ...}, b: ...}."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name, config in self.sources.items():
                check_inner(config, f"sources.{name}")

    @override
    def split(self, name: str) -> Split | None:
        if not self._train:
            raise ConfigError("concat needs data.sources=, at least one source: {a: {name: image_folder, path: ...}}")
        classes = _union(self._train)
        if name == "train":
            return _ConcatSplit(self._train, classes)
        found = [source.optional(name) for source in self._sources]
        parts = {key: part for key, part in zip(self.config.sources, found, strict=True) if part is not None}
        return _ConcatSplit(parts, classes) if parts else None

    @cached_property
    def _sources(self) -> list[Source]:
        return [source_of(config) for config in self.config.sources.values()]

    @cached_property
    def _train(self) -> dict[str, Split]:
        keys = self.config.sources
        return {key: source.required("train") for key, source in zip(keys, self._sources, strict=True)}


def _union(parts: dict[str, Split]) -> tuple[str, ...]:
    """Names of all classes, each once."""
    return tuple(dict.fromkeys(name for part in parts.values() for name in part.classes))


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
        self.fingerprint = hashlib.sha256(fingerprints.encode()).hexdigest()[:16]
        self.numbers = [_numbers(key, split, classes) for key, split in parts.items()]

    def read(self, index: Int64s) -> Rows:
        parts = [(places, self.splits[number].read(rows)) for number, places, rows in self._by_split(index)]
        rows = _laid_out(parts, len(index))
        rows.labels = self._joined([(places, part.labels) for places, part in parts], index)
        return rows

    def labels_of(self, index: Int64s) -> Int64s:
        found = [(places, self.splits[number].labels_of(rows)) for number, places, rows in self._by_split(index)]
        return self._joined(found, index)

    def names_of(self, index: Int64s) -> list[str]:
        names = [""] * len(index)
        for number, places, rows in self._by_split(index):
            for place, name in zip(places.tolist(), self.splits[number].names_of(rows), strict=True):
                names[place] = name
        return names

    def _by_split(self, index: Int64s) -> list[tuple[int, Int64s, Int64s]]:
        """For each split that is read from: its number, places in `index`, and rows there."""
        number = np.searchsorted(self.starts, index, side="right") - 1
        return [
            (part, np.flatnonzero(number == part), index[number == part] - self.starts[part])
            for part in np.unique(number).tolist()
        ]

    def _joined(self, parts: list[tuple[Int64s, Int64s]], index: Int64s) -> Int64s:
        """Labels of the splits in the numbers of all classes."""
        numbers = np.searchsorted(self.starts, index, side="right") - 1
        labels = np.full((len(index), len(self.classes)) if self.is_multilabel else len(index), -1)
        for places, own in parts:
            of_part = self.numbers[int(numbers[places[0]])]
            if self.is_multilabel:
                labels[places[:, None], of_part] = own
            else:
                labels[places] = np.append(of_part, -1)[np.minimum(own, len(of_part))]  # -1 stays, nameless become -1
        return labels


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
                f"{first.num_sources}; give sources of as many"
            )


def _numbers(key: str, split: Split, classes: tuple[str, ...]) -> Int64s:
    """The number of each of a split's classes among all."""
    number_of = {name: number for number, name in enumerate(classes)}
    unknown = [name for name in split.classes if name not in number_of]
    if unknown:
        raise ConfigError(f"data.sources.{key} has held-out images of a class no training image is of: {unknown[0]!r}")
    return np.array([number_of[name] for name in split.classes], np.int64)


def _laid_out(parts: Sequence[tuple[Int64s, Rows]], num: int) -> Rows:
    """Rows of several splits in their places; labels are left to be filled in."""
    images: list[Encoded] = [None] * num
    names = [""] * num
    for places, rows in parts:
        for place, image, name in zip(places.tolist(), rows.images, rows.names, strict=True):
            images[place], names[place] = image, name
    num_partners = len(parts[0][1].partners) if parts else 0
    partners = tuple(
        _laid_out([(places, rows.partners[number]) for places, rows in parts], num) for number in range(num_partners)
    )
    return Rows(images, np.full(num, -1), names, partners)
