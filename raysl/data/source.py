"""The base class of datasets: settings, and the splits that they describe; with the names that a source needs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from raysl.components import resolve
from raysl.config.background import parse_color
from raysl.config.ranges import check_ranges
from raysl.config.schema import DataConfig as DataConfig
from raysl.data.decode.bands import WrongBands, bands_of
from raysl.data.decode.decode import CorruptImage, decode
from raysl.data.limits import Limits, limiting
from raysl.data.sources.subset import with_subset
from raysl.data.split import LABELS as LABELS
from raysl.data.split import UNIT_ROWS as UNIT_ROWS
from raysl.data.split import Missing as Missing
from raysl.data.split import Rows as Rows
from raysl.data.split import Split as Split
from raysl.data.split import runs as runs
from raysl.data.split import with_facts, with_labels
from raysl.errors import ConfigError as ConfigError
from raysl.hashing import Int64s as Int64s
from raysl.redact import redact

SPLITS = ("train", "test")


class Source(ABC):
    """A dataset. A subclass nests a frozen `Config` and takes one as its only argument."""

    Config: ClassVar[type[DataConfig]]

    def __init__(self, config: Any) -> None:
        check_ranges(config)
        self.config = config

    @abstractmethod
    def split(self, name: str) -> Split | None:
        """Return the whole split `train` or `test`; None if the dataset has none.

        Raises:
            ConfigError: if the images cannot be found or read.
        """

    def optional(self, name: str) -> Split | None:
        """Return the images and labels of a split that the settings choose; None if the dataset has no such split.

        Raises:
            ConfigError: if the images cannot be found or read, or the choice does not fit them.
        """
        split = self.split(name)
        if split is None:
            return None
        chosen = with_labels(with_subset(split, self.config, name), self.config.label_type)
        limits = Limits(self.config.max_pixels, self.config.max_file_bytes)
        background, bands = parse_color(self.config.background), bands_of(self.config)
        ready = with_facts(chosen, background=background, bands=bands, limits=limits)
        if not ready.mix and any(inner.mix for inner in _inner(ready)):
            raise ConfigError(
                "data.weights counts for the outermost source, with all of its images: set limit, skip and subset on "
                "the inner sources, and weights on no source inside another"
            )
        if ready.bands is not None:
            check_bands(ready)
        return ready

    def required(self, name: str) -> Split:
        """Return the images and labels of a split that the settings choose.

        Raises:
            ConfigError: as `optional`, and if the dataset has no such split.
        """
        split = self.optional(name)
        if split is None:
            raise ConfigError(f"the dataset {self.config.name!r} has no {name} images; give data.{name}=")
        return split


def _inner(split: Split) -> Iterator[Split]:
    for inner in split.inner:
        yield inner
        yield from _inner(inner)


def check_bands(split: Split) -> None:
    """Refuse images whose channels are not those of the settings, by the first, the middle and the last of a split.

    Raises:
        ConfigError: naming the image; one that is damaged passes, and is replaced when it is read.
    """
    rows = np.unique(np.array([0, split.num_samples // 2, max(split.num_samples - 1, 0)])[: split.num_samples])
    with limiting(split.limits):
        read = split.read(rows)
        for source in (read, *read.partners):
            for image, name in zip(source.images, source.names, strict=True):
                try:
                    decode(image, bands=split.bands)
                except WrongBands as error:
                    raise ConfigError(f"{redact(name)}: {error}") from error
                except CorruptImage:
                    continue


OF_THE_IMAGES: dict[str, bool] = {"of_the_images": True}
"""Metadata of a common setting that a source declares anew because it decides which images it has."""

_OF_THE_IMAGES = {"name", "limit", "balanced", "skip", "subset", "subset_by"}


def check_inner(config: DataConfig, where: str) -> None:
    """Refuse settings of the pipeline on a source inside another: only those of the outer source count.

    An inner source has the settings that decide which images it has: those that it declares, those that choose among
    its images, and common ones that it marks with OF_THE_IMAGES, such as `image_size` where images are drawn.
    """
    declared = {field.name: field for field in fields(type(config))}
    for common in fields(DataConfig):
        setting = declared[common.name]
        default = setting.default_factory() if setting.default_factory is not MISSING else setting.default
        is_of_the_images = setting.name in _OF_THE_IMAGES or setting.metadata.get("of_the_images", False)
        if not is_of_the_images and getattr(config, setting.name) != default:
            raise ConfigError(f"{where}: {setting.name} has no effect there; set data.{setting.name} instead")


def make_source(config: DataConfig) -> Source:
    """Return the source that these settings describe."""
    source = resolve("source", config.name)(config)
    assert isinstance(source, Source)
    return source


class Combined(Source):
    """Base of sources that take their images from other sources."""

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """The sources."""

        sources: dict[str, DataConfig] = field(default_factory=dict)
        """Settings of each source, by a name of your choice: {a: {name: image_folder, path: ...}, b: ...}. For `drawn`
        it is one source."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name, config in self.sources.items():
                check_inner(config, f"sources.{name}")

    @cached_property
    def _sources(self) -> dict[str, Source]:
        return {key: make_source(config) for key, config in self.config.sources.items()}
