"""Tar shards in the WebDataset layout."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from pyarrow import fs
from typing_extensions import override

from raysl.config.component import ASKS_TRUST
from raysl.config.places import IMAGES
from raysl.config.ranges import Location
from raysl.data.source import DataConfig, Rows, Source, Split
from raysl.data.sources.class_names import LABELS, check_seen, parse_and_number
from raysl.data.sources.part_names import choose_part
from raysl.data.sources.shard_index import ShardIndex, Summary, read_index, summarize_shards
from raysl.data.sources.shards import Shard, find_shards
from raysl.data.sources.versions import read_versions, versions_digest
from raysl.data.split import by_unit, gather
from raysl.errors import ConfigError, DamagedData
from raysl.hashing import Int64s, digest, hash_text
from raysl.process.screen import counted
from raysl.storage.addresses import storage_errors
from raysl.storage.cache import RecentlyUsed
from raysl.storage.reads import read_together


class WebDataset(Source):
    """Tars of images and labels; a run of members is the read unit.

    Members whose paths are the same up to the first dot of the base name are one sample: an image (`.jpg`, `.png` or
    another ending of images), and its label from `.cls`, a number or a name, else from a field of `.json`. Samples
    without an image are left out, those without a label are unlabelled. Of several images of a sample, a photo (`.jpg`,
    `.webp`, `.jp2`) is read before others, such as a mask in `.png`, else the first in the tar; a note says so.

    A shard in `path` is of the part with which its name, or that of a folder above it, begins or ends: `train`, `val`
    or `test` (`training`, `valid`, `validation` and `testing` mean the same). Training takes the shards of `train`, or
    those of no part if there are none; `val` is held out, or `test` if there is no `val`.

    The first start writes the position of each image to `SHARD.index.npz` beside its shard; with it, images of remote
    shards that lie side by side are read by one request.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Where the shards and the labels are."""

        name: str = "webdataset"
        path: Location | None = None
        """Folder, tar, or pattern like shard-{000..009}.tar, local or a URI, with train* and val* or test* shards."""
        train: Location | None = None
        """Folder, tar, or pattern of the training images, instead of those in `path`."""
        test: Location | None = None
        """Folder, tar, or pattern of the held-out images, instead of those in `path`."""
        label_key: str | None = LABELS
        """Field of the label in the `.json` members of samples without a `.cls`. The default may be missing, any other
        must be in some sample; null: only `.cls`."""
        image_key: str | None = None
        """Ending of the images, such as png or seg.png, where samples have several. Default: any ending of images, that
        of a photo first."""
        classes: tuple[str, ...] = ()
        """Names of the classes, by label; default: the names in the labels, sorted, or the numbers."""
        index: Location | None = field(default=None, metadata=ASKS_TRUST)
        """Folder or URI for the `.index.npz` files; default: beside the shards."""

    @override
    def split(self, name: str) -> Split | None:
        kind = "a folder of .tar files or a pattern"
        chosen = choose_part(self.config, name, kind, lambda uri: [(shard.name, shard) for shard in self._find(uri)])
        return None if chosen is None else self._make_split(name, *chosen)

    def _make_split(self, name: str, uri: str, shards: Sequence[Shard], notes: Sequence[str]) -> "_ShardsSplit":
        """Return a split; the training images number held-out labels, where there are any."""
        has_training = name == "test" and (self.config.train is not None or self.config.path is not None)
        train = self._train if has_training and not self.config.classes else None
        split = _ShardsSplit(self.config, uri, shards, train, notes)
        if train is not None and not (split.has_names or train.has_names):
            check_seen(split, train, uri)
        return split

    def _find(self, uri: str) -> list[Shard]:
        has_arrays = isinstance(self.config.channels, int)
        image_key = self.config.image_key and self.config.image_key.lower().removeprefix(".")
        return [replace(shard, has_arrays=has_arrays, image_key=image_key) for shard in find_shards(uri, ".tar")]

    @cached_property
    def _train(self) -> "_ShardsSplit":
        train = self.split("train")
        assert isinstance(train, _ShardsSplit)
        return train


class _ShardsSplit(Split):
    def __init__(
        self,
        config: "WebDataset.Config",
        uri: str,
        shards: Sequence[Shard],
        train: "_ShardsSplit | None",
        notes: Sequence[str],
    ) -> None:
        self.label_key = config.label_key
        self.folder = config.index
        summaries = summarize_shards(shards, self.label_key, self.folder)
        full = [(shard, summary) for shard, summary in zip(shards, summaries, strict=True) if summary.num_images]
        left_out = _describe_left_out(uri, summaries)
        if not full:
            endings = (config.image_key,) if config.image_key else IMAGES
            rule = left_out[0] if left_out else f"members end in {', '.join(endings)}"
            raise ConfigError(f"no images in the {len(shards):,} shards of {uri!r}; {rule}")
        self.numbers, self.classes, self.has_names = _number(full, config.classes, train, uri)
        _check_labelled(config, uri, any(number >= 0 for number in self.numbers.values()))
        self.notes = (*notes, *left_out)
        self.shards = [shard for shard, _ in full]
        self.digests = [summary.digest for _, summary in full]
        self.unit_sizes = np.array([summary.num_images for _, summary in full], np.int64)
        self.starts = np.cumsum(self.unit_sizes) - self.unit_sizes
        self._read_units = np.concatenate([summary.read_units for _, summary in full])
        self.numbers_key = hash_text(json.dumps(self.numbers))  # part of the cache's key: it holds labels by number
        names = "\n".join(f"{shard.name} {digest}" for shard, digest in zip(self.shards, self.digests, strict=True))
        self.fingerprint = digest(names)
        self.is_random_access = all(isinstance(shard.locate()[0], fs.LocalFileSystem) for shard in self.shards)
        self._written = versions_digest(shard.mtime_ns for shard in self.shards)

    @property
    @override
    def read_units(self) -> Int64s:
        return self._read_units

    @override
    def written(self, ask: bool = True) -> str:
        return self._written or versions_digest(read_versions([shard.locate() for shard in self.shards]) if ask else ())

    @override
    def read(self, index: Int64s) -> Rows:
        def images(unit: int, rows: Int64s) -> list[bytes]:
            shard_index = self._index(unit)
            system, path = self.shards[unit].locate()
            with storage_errors("read", path):
                return read_together(system, path, shard_index.offsets[rows], shard_index.sizes[rows])

        return Rows(gather(self.starts, index, images), self.labels_of(index), self.names_of(index))

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        labels = np.full(len(index), -1, np.int64)
        for unit, positions in by_unit(self.starts, index):
            labels[positions] = self._index(unit).labels[index[positions] - self.starts[unit]]
        return labels

    @override
    def names_of(self, index: Int64s) -> list[str]:
        def names(unit: int, rows: Int64s) -> list[str]:
            _, path = self.shards[unit].locate()
            return [f"{path}: {key.decode(errors='backslashreplace')}" for key in self._index(unit).keys[rows].tolist()]

        return gather(self.starts, index, names)

    def _index(self, unit: int) -> ShardIndex:
        shard, digest = self.shards[unit], self.digests[unit]

        def make() -> tuple[ShardIndex, int]:
            index = read_index(shard, self.label_key, self.folder, digest)
            if index.summary.digest != digest:
                raise DamagedData(f"the shard {shard.locate()[1]} changed while it was in use; start again")
            numbers = np.array([*(self.numbers[value] for value in index.summary.values), -1], np.int64)
            return replace(index, labels=numbers[index.labels]), index.num_bytes  # -1 indexes the last

        return _INDICES.get((shard, digest, self.numbers_key), make)


def _number(
    known: Sequence[tuple[Shard, Summary]], named: tuple[str, ...], train: _ShardsSplit | None, uri: str
) -> tuple[dict[str, int], tuple[str, ...], bool]:
    """Return the number of each label as it is written, the names of the classes, and whether labels are names."""
    # reversed, so that a label is reported with the first shard that has it
    shards = {value: f"the shard {shard.locate()[1]}" for shard, summary in reversed(known) for value in summary.values}
    values = sorted(shards)
    training = None if train is None else (train.classes, train.has_names)
    numbered = parse_and_number(values, uri, [shards[value] for value in values], named, training)
    return dict(zip(values, numbered.labels.tolist(), strict=True)), numbered.classes, numbered.has_names


def _check_labelled(config: "WebDataset.Config", uri: str, has_labels: bool) -> None:
    """Refuse shards without any label if the settings name a field of labels, or classes."""
    if has_labels:
        return
    if config.label_key not in (None, LABELS):
        raise ConfigError(f"no sample of {uri!r} has the field {config.label_key!r} in its .json; set data.label_key=")
    if config.classes:
        raise ConfigError(
            f"data.classes= names {len(config.classes):,} classes, but no sample of {uri!r} has a label; "
            "set data.label_key= to the field of labels"
        )


def _describe_left_out(uri: str, known: Sequence[Summary]) -> tuple[str, ...]:
    """Return notes on images that dots in their names leave out, and on those beside a better one of their sample."""
    notes = []
    if num := sum(summary.num_left_out for summary in known):
        first = next(summary.left_out for summary in known if summary.num_left_out)
        notes.append(
            f"{num:,} images in {uri!r} are left out, such as {first!r}: the key of a sample ends at the first dot of "
            "the name, and the rest must be an image's ending; name members without further dots, or give "
            "data.image_key= all behind the first dot"
        )
    if num := sum(summary.num_unread for summary in known):
        first = next(summary.unread for summary in known if summary.num_unread)
        notes.append(
            f"of samples with several images in {uri!r}, {counted(num, 'image')} will not be read, such as {first}: a "
            "photo (.jpg, .webp) comes before others; data.image_key= chooses another ending"
        )
    return tuple(notes)


_INDICES: RecentlyUsed[ShardIndex] = RecentlyUsed(1 << 28)
