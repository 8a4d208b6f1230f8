"""Training images drawn from another dataset, for few of them or for parts that it does not have."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from typing_extensions import override

from raysl.config.ranges import Count, Place, Seed, Within
from raysl.data.source import Combined, ConfigError, Source, Split
from raysl.data.sources.subset import Subset
from raysl.hashing import Int64s, hash_rows, hash_words

_DRAW = 1101  # part of random keys


class Drawn(Combined):
    """Training images drawn from those of another source. Held out are that source's own held-out images, or all images
    that were not drawn where it has none.

    The draw is fixed by `draw_seed`, the number and the labels of the images, whatever a run's seed: every checkpoint
    is measured on the same ones.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Combined.Config):
        """The images, and how many to draw."""

        name: str = "drawn"
        per_class: Count | None = None
        """Training images of each class, as Caltech-101 has 30; unlabelled images are not drawn."""
        share: Annotated[float, Within(0, 1, above=True)] | None = None
        """Share of all images that are for training."""
        num: Count | None = None
        """Number of training images, such as VTAB's 1,000."""
        num_validation: Place | None = None
        """How many of `num` are from the published validation images, if the source has some."""
        draw_seed: Seed = 0
        """Another one draws other images."""

    @override
    def split(self, name: str) -> Split | None:
        if name == "train":
            return Subset(self._whole, np.flatnonzero(self._is_training))
        held_out = self._source.optional("test")
        if held_out is None and self._is_training.all():
            raise ConfigError(
                f"drawn takes all {self._whole.num_samples:,} images for training and holds none out; take fewer"
            )
        return held_out or Subset(self._whole, np.flatnonzero(~self._is_training))

    @cached_property
    def _source(self) -> Source:
        if len(self.config.sources) != 1:
            raise ConfigError("drawn needs data.sources=, one source: {all: {name: image_folder, path: ...}}")
        return next(iter(self._sources.values()))

    @cached_property
    def _whole(self) -> Split:
        return self._source.required("train")

    @cached_property
    def _is_training(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """bool [N], whether each image is for training."""
        config, whole = self.config, self._whole
        if [config.per_class, config.share, config.num].count(None) != 2:
            raise ConfigError("drawn needs one of data.per_class=, images of each class, data.share= and data.num=")
        rows = np.arange(whole.num_samples)
        keys = hash_rows(hash_words(_DRAW, config.draw_seed), rows)
        if config.per_class is not None:
            if not whole.classes or whole.is_multilabel:
                raise ConfigError("data.per_class= of drawn needs images of one class each; give data.share=")
            labels = whole.labels_of(rows)
            return _first(keys, labels, config.per_class) & (labels >= 0)
        num = round(config.share * len(rows)) if config.num is None else config.num
        if not 0 < num <= len(rows):
            raise ConfigError(f"drawn cannot take {num:,} of {len(rows):,} images; change data.num= or data.share=")
        if config.num_validation is None or not whole.num_validation:
            return _first(keys, np.zeros_like(rows), num)
        is_validation = rows >= len(rows) - whole.num_validation
        most = np.where(is_validation, config.num_validation, num - config.num_validation)
        sizes = len(rows) - whole.num_validation, whole.num_validation
        if not 0 <= num - config.num_validation <= sizes[0] or config.num_validation > sizes[1]:
            raise ConfigError(
                f"drawn cannot take {num - config.num_validation:,} of {sizes[0]:,} training and "
                f"{config.num_validation:,} of {sizes[1]:,} validation images; change data.num_validation="
            )
        return _first(keys, is_validation.astype(np.int64), most)


def _first(keys: np.ndarray[Any, Any], groups: Int64s, num: int | Int64s) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether a row is one of the first `num` of its group by keys, bool [N]."""
    order = np.lexsort((keys, groups))
    _, counts = np.unique(groups, return_counts=True)
    # the rank of a row in its group: its place in the sorted order less the start of its group
    ranks = np.empty(len(keys), np.int64)
    ranks[order] = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen: np.ndarray[Any, np.dtype[np.bool_]] = ranks < num
    return chosen
