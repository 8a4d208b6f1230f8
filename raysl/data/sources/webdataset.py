"""Tar shards in the WebDataset layout."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pyarrow import fs

from raysl.config.locations import Location
from raysl.config.schema import ConfigError, DataConfig
from raysl.data.cache import RecentlyUsed
from raysl.data.class_names import check_range, class_names
from raysl.data.source import Rows, Source, Split
from raysl.data.sources.shard_index import IMAGES, ShardIndex, index_of, summaries
from raysl.data.sources.shards import HELD_OUT, Shard, by_part, shards
from raysl.data.split import by_unit
from raysl.errors import RunFailed
from raysl.hashing import Int64s
from raysl.storage import absolute, read_ranges, telling


class WebDataset(Source):
    """Tars of images and labels; the shard is the read unit.

    Members whose paths are the same up to the first dot of the base name are one sample: an image (`.jpg`, `.jpeg`,
    `.png`, `.webp`, `.bmp`, `.gif`), and its label from `.cls`, an integer, else from a field of `.json`. Samples
    without an image are left out, those without a label are unlabelled.

    Of the shards in `path`, those whose names, or those of their folders, begin with `train` are the training images,
    and `val` or else `test` the held-out ones; where no name begins with `train`, all but `val` and `test` ones are.

    Where each image lies in a shard is written to `SHARD.index.npz` beside it the first time, and looked up there
    afterwards; from remote shards, images are then read one by one.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Where the shards lie, and where labels stand."""

        name: str = "webdataset"
        path: Location | None = None
        """Folder, tar, or pattern as shard-{000..009}.tar, local or a URI, with train* and val* or test* shards."""
        train: Location | None = None
        """Folder, tar, or pattern of the training images, instead of those in `path`."""
        test: Location | None = None
        """Folder, tar, or pattern of the held-out images, instead of those in `path`."""
        label_key: str = "label"
        """Field of the integer label in the `.json` members of samples without a `.cls`."""
        classes: tuple[str, ...] = ()
        """Names of the classes, by label; default: the numbers."""
        index: Location | None = None
        """Folder or URI for the `.index.npz` files; default: beside the shards."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("path", "train", "test", "index"):  # workers run in other directories
                if getattr(self, name) is not None:
                    object.__setattr__(self, name, absolute(getattr(self, name)))

    def split(self, name: str) -> Split | None:
        """See `Source.split`."""
        given = getattr(self.config, name)
        if given is not None:
            return _ShardsSplit(self.config, given, shards(given, ".tar"), self._classes_for(name))
        if self.config.path is None:
            if name == "train":
                raise ConfigError("webdataset needs data.path= or data.train=, a folder of .tar files or a pattern")
            return None
        parts = by_part(shards(self.config.path, ".tar"))
        if name == "test":
            chosen = next((parts[part] for part in HELD_OUT if parts[part]), [])
        else:
            chosen = parts["train"] or parts["other"]
            if not chosen:
                raise ConfigError(f"{self.config.path!r} holds val and test shards alone; give data.train=")
        return _ShardsSplit(self.config, self.config.path, chosen, self._classes_for(name)) if chosen else None

    def _classes_for(self, name: str) -> tuple[str, ...]:
        """Names of the classes; those of the training images number the held-out ones, unless these are alone."""
        is_alone = self.config.train is None and self.config.path is None
        given: tuple[str, ...] = self.config.classes
        return given if name == "train" or given or is_alone else self._train_classes

    @cached_property
    def _train_classes(self) -> tuple[str, ...]:
        train = self.split("train")
        return () if train is None else train.classes


class _ShardsSplit(Split):
    def __init__(self, config: "WebDataset.Config", uri: str, found: Sequence[Shard], classes: tuple[str, ...]) -> None:
        self.label_key = config.label_key
        self.folder = config.index
        known = summaries(found, self.label_key, self.folder)
        full = [(shard, summary) for shard, summary in zip(found, known, strict=True) if summary.num_images]
        if not full:
            raise ConfigError(f"no images in the {len(found):,} shards of {uri!r}; members end in {', '.join(IMAGES)}")
        self.shards = [shard for shard, _ in full]
        self.digests = [summary.digest for _, summary in full]
        self.unit_sizes = np.array([summary.num_images for _, summary in full], np.int64)
        self.starts = np.cumsum(self.unit_sizes) - self.unit_sizes
        for shard, summary in full:
            origin = f"the shard {shard.place()[1]}"
            check_range(summary.smallest_label, summary.largest_label, origin, len(classes) or None)
        self.classes = classes or class_names(np.array([summary.largest_label for _, summary in full]))
        names = "\n".join(f"{shard.name} {digest}" for shard, digest in zip(self.shards, self.digests, strict=True))
        self.fingerprint = hashlib.sha256(names.encode()).hexdigest()[:16]
        self.is_random_access = all(isinstance(shard.place()[0], fs.LocalFileSystem) for shard in self.shards)

    def read(self, index: Int64s) -> Rows:
        """See `Split.read`."""
        images: list[bytes | np.ndarray | None] = [None] * len(index)
        for unit, places in by_unit(self.starts, index):
            found, inner = self._index(unit), index[places] - self.starts[unit]
            system, path = self.shards[unit].place()
            with telling("read", path):
                parts = read_ranges(system, path, found.offsets[inner].tolist(), found.sizes[inner].tolist())
            for place, image in zip(places.tolist(), parts, strict=True):
                images[place] = image
        return Rows(images, self.labels_of(index), self.names_of(index))

    def labels_of(self, index: Int64s) -> Int64s:
        """See `Split.labels_of`."""
        labels = np.full(len(index), -1, np.int64)
        for unit, places in by_unit(self.starts, index):
            labels[places] = self._index(unit).labels[index[places] - self.starts[unit]]
        return labels

    def names_of(self, index: Int64s) -> list[str]:
        """See `Split.names_of`."""
        names = [""] * len(index)
        for unit, places in by_unit(self.starts, index):
            _, path = self.shards[unit].place()
            keys = self._index(unit).keys[index[places] - self.starts[unit]]
            for place, key in zip(places.tolist(), keys.tolist(), strict=True):
                names[place] = f"{path}: {key.decode(errors='backslashreplace')}"
        return names

    def _index(self, unit: int) -> ShardIndex:
        shard, digest = self.shards[unit], self.digests[unit]

        def make() -> tuple[ShardIndex, int]:
            index = index_of(shard, self.label_key, self.folder)
            if index.digest != digest:
                raise RunFailed(f"the shard {shard.place()[1]} changed while it was in use; start again")
            return index, index.num_bytes

        return _INDICES.get((shard, digest), make)


_INDICES: RecentlyUsed[ShardIndex] = RecentlyUsed(1 << 28)
