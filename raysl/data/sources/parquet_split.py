"""The rows of Parquet files, read one row group at a time."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from typing_extensions import override

from raysl.data.source import LABELS, Rows, Split
from raysl.data.sources.class_names import LABELS as DEFAULT_COLUMN
from raysl.data.sources.image_files import Paths
from raysl.data.sources.parquet_columns import Footers, check_label_kinds, name_column, read_footers, unread_columns
from raysl.data.sources.parquet_labels import Labelling, digest_of, find_labelling, labels_digest
from raysl.data.sources.versions import versions_digest
from raysl.data.split import MOST_LABELS, Encoded, Missing, by_unit, gather, joined_digest
from raysl.errors import ConfigError, DamagedData
from raysl.hashing import Int64s, hash_text
from raysl.storage.addresses import open_uri
from raysl.storage.cache import RecentlyUsed
from raysl.storage.reads import retrying, short_reason

RANDOM_ACCESS_BYTES = 1 << 29  # a split up to this size stays in the memory of each process that reads it
CACHE_BYTES = 1 << 30  # of such splits
PART_BYTES = 1 << 28  # of row groups of which only some rows were read: the others may be needed soon
FOOTER_BYTES = 1 << 24


@dataclass(frozen=True)
class FileVersion:
    """What identifies the content of a Parquet file before it is opened, and its size.

    Args:
        sha256: digest of its bytes, from the manifest of an ingest; empty for other files.
        written: modification time or ETag; empty if the storage has neither, or if the file is as old as the manifest
            that has its `sha256`.
    """

    sha256: str = ""
    written: str = ""
    num_bytes: int | None = None
    """Size of the file; None if the listing does not have it."""


@dataclass(frozen=True)
class _Unit:
    """Columns of a row group; None for those that are missing or were not requested."""

    images: pa.Array | None
    labels: Int64s | None
    names: pa.Array | None
    paths: pa.Array | None = None
    """Paths that are stored beside the images."""

    def image(self, row: int) -> Encoded:
        """Return the image of a row; a path without bytes, which `datasets` may write, is not followed."""
        assert self.images is not None
        image: bytes | None = self.images[row].as_py()
        path = None if image is not None or self.paths is None else self.paths[row].as_py()
        if path is None:
            return image
        return Missing(f"only the path {path!r}, no bytes; store the images themselves, or list paths (file_list)")


class ParquetSplit(Split):
    """The rows of some files; the row group is the read unit.

    Args:
        uri: a path or URI in the file system of the files.
        label_column: numbers, names, or lists of 1 present, 0 absent and -1 ignore; None: nothing is labelled.
        classes: names of the classes; empty: those that the files store.
        training: the training images, whose classes number held-out labels; None for these themselves.
        manifest: facts of an ingest's manifest on exactly these files; default: their footers are read.
    """

    def __init__(
        self,
        uri: str,
        files: Iterable[str],
        image_column: str,
        label_column: str | None,
        classes: tuple[str, ...],
        training: "ParquetSplit | None" = None,
        versions: Mapping[str, FileVersion] | None = None,
        manifest: Footers | None = None,
    ) -> None:
        self.uri = uri
        self.files = Paths(files)
        known = [(versions or {}).get(path, FileVersion()) for path in self.files]
        self.image_column = image_column
        system, root = open_uri(uri)
        if root in self.files:
            root = root.rpartition("/")[0]
        if manifest is not None:
            footers = manifest
        else:
            num_bytes = {path: version.num_bytes for path, version in zip(self.files, known, strict=True)}
            footers = read_footers(system, list(self.files), image_column, label_column, num_bytes, root)
        if not len(footers.unit_sizes):
            raise ConfigError(f"no rows in the Parquet files of {uri!r}; give data.path= files with images")
        check_label_kinds(footers.schemas, label_column)
        self.unit_files, self.unit_groups = footers.unit_files, footers.unit_groups
        self.unit_sizes = footers.unit_sizes
        self.fingerprint = footers.fingerprint
        self._content = {"sizes": footers.sizes_digest} if footers.sizes_digest else {}
        if all(version.sha256 for version in known):
            self._content["files"] = joined_digest([version.sha256 for version in known])
        self._written = versions_digest(version.written for version in known)
        version_texts = [f"{version.sha256} {version.written}" for version in known]
        self._version = joined_digest([footers.sizes_digest, *version_texts])
        self.is_random_access = footers.num_bytes <= RANDOM_ACCESS_BYTES
        self.name_column = name_column(footers.schemas.values())
        known_labels = None if training is None else training.labelling
        self.labelling: Labelling = find_labelling(
            system, list(self.files), footers, label_column, classes, known_labels, root
        )
        self.label_column = self.labelling.column
        self.is_multilabel = self.labelling.is_multilabel
        self.classes = self.labelling.classes
        if manifest is not None and self.label_column is not None:
            self._labels_digest = manifest.labels_digest
        # part of the cache's key: it holds labels by number
        self.classes_key = hash_text("\n".join([*self.classes, "", *self.labelling.stored]))
        if label_column == DEFAULT_COLUMN and self.labelling.column is None and self.labelling.by_file is None:
            self.notes = unread_columns(next(iter(footers.schemas.values())), uri, image_column)
        if not set(self.labelling.stored) <= set(self.classes):
            self.labels_of(np.arange(self.num_samples))  # refuses images of a class without training images

    @override
    def content(self) -> Mapping[str, str]:
        return self._content | ({LABELS: self._labels_digest} if self._labels_digest else {})

    @cached_property
    def _labels_digest(self) -> str:
        """Digest of all labels; empty without labels, or if reading them from a remote storage would take long."""
        if self.labelling.by_file is not None:
            return digest_of(self.labelling.by_file).hex()[:16]
        system, _ = open_uri(self.uri)
        if not self.label_column or not (isinstance(system, fs.LocalFileSystem) or self.num_samples <= MOST_LABELS):
            return ""
        return labels_digest(system, list(self.files), self.label_column, self.labelling.as_names)

    @override
    def written(self, ask: bool = True) -> str:
        return self._written

    @cached_property
    def starts(self) -> Int64s:
        """First row of each unit, int64 [U]."""
        starts: Int64s = np.cumsum(self.unit_sizes)
        starts -= self.unit_sizes
        return starts

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "starts"}

    @override
    def read(self, index: Int64s) -> Rows:
        images: list[Encoded] = [None] * len(index)
        labels, names = self._no_labels(len(index)), [""] * len(index)
        for number, positions in by_unit(self.starts, index):
            rows = index[positions] - self.starts[number]
            unit = self._unit(number, with_images=True, is_whole=len(rows) == self.unit_sizes[number])
            if unit.labels is not None:
                labels[positions] = unit.labels[rows]
            elif self.labelling.by_file is not None:
                labels[positions] = self.labelling.by_file[self.unit_files[number]]
            for position, row in zip(positions.tolist(), rows.tolist(), strict=True):
                images[position] = unit.image(row)
                names[position] = self._name(number, unit, row)
        return Rows(images, labels, names)

    @override
    def labels_of(self, index: Int64s) -> Int64s:
        labels = self._no_labels(len(index))
        if self.labelling.by_file is not None:
            return self.labelling.by_file[self.unit_files[np.searchsorted(self.starts, index, side="right") - 1]]
        for number, positions in by_unit(self.starts, index) if self.label_column is not None else ():
            unit_labels = self._unit(number, with_images=False).labels
            assert unit_labels is not None
            labels[positions] = unit_labels[index[positions] - self.starts[number]]
        return labels

    @override
    def names_of(self, index: Int64s) -> list[str]:
        def names(number: int, rows: Int64s) -> list[str]:
            unit = self._unit(number, with_images=False)
            return [self._name(number, unit, row) for row in rows.tolist()]

        return gather(self.starts, index, names)

    def _no_labels(self, num: int) -> Int64s:
        return np.full((num, len(self.classes)) if self.is_multilabel else num, -1, np.int64)

    def _name(self, number: int, unit: _Unit, row: int) -> str:
        stored = None if unit.names is None else unit.names[row].as_py()
        return stored or f"{self.files[int(self.unit_files[number])]} row {row}"

    def _locate(self, number: int) -> tuple[str, int]:
        """Return the file of a unit, and the number of its row group."""
        return self.files[int(self.unit_files[number])], int(self.unit_groups[number])

    def _unit(self, number: int, with_images: bool, is_whole: bool = False) -> _Unit:
        """Return columns of a unit, which is kept in memory unless all of its rows are needed now."""
        path, group = self._locate(number)
        wanted = (self.image_column if with_images else None, self.label_column, self.name_column)
        columns = [column for column in wanted if column is not None]

        def make() -> tuple[_Unit, int]:
            table = self._table(number, columns) if columns else pa.table({})
            images, labels, names = (None if column is None else table[column] for column in wanted)
            paths = None
            if images is not None:
                images = images.combine_chunks()
                if pa.types.is_struct(images.type):
                    has_paths = images.type.get_field_index("path") >= 0
                    paths = pc.struct_field(images, "path") if has_paths else None
                    images = pc.struct_field(images, "bytes")
                images = images.dictionary_decode() if pa.types.is_dictionary(images.type) else images
            names = None if names is None else names.combine_chunks()
            numbers = None if labels is None else self.labelling.numbers(labels, path)
            return _Unit(images, numbers, names, paths), table.nbytes

        key = self.fingerprint, self._version, self.classes_key, path, group, *wanted
        if self.is_random_access:
            return _RANDOM_ACCESS.get(key, make)
        return _PARTS.get(key, make, is_kept=not is_whole)

    def _table(self, number: int, columns: Sequence[str]) -> pa.Table:
        path, group = self._locate(number)
        group_name = f"row group {group} of {path}"
        try:
            table = retrying(lambda: self._row_group(path, group, columns), "read", group_name)
        except (OSError, pa.ArrowException) as error:
            raise DamagedData(
                f"cannot read {group_name}: {short_reason(error)}; restore the file and start again"
            ) from error
        if table.num_rows != self.unit_sizes[number] or table.column_names != list(columns):
            raise DamagedData(f"{group_name} changed while it was in use; start again")
        return table

    def _row_group(self, path: str, group: int, columns: Sequence[str]) -> pa.Table:
        system, _ = open_uri(self.uri)
        try:
            with system.open_input_file(path) as file:

                def read_footer() -> tuple[pq.FileMetaData, int]:
                    metadata = pq.ParquetFile(file).metadata
                    return metadata, metadata.serialized_size

                footer = _FOOTERS.get((self.fingerprint, self._version, path, file.size()), read_footer)
                parquet = pq.ParquetFile(file, metadata=footer)
                return parquet.read_row_group(group, columns=columns, use_threads=False)
        except OSError as error:
            if _DAMAGE.search(str(error)):
                raise pa.ArrowInvalid(short_reason(error)) from error  # another try would read the same
            raise


_DAMAGE = re.compile("thrift|decompress|corrupt|end of stream|page", re.IGNORECASE)
"""In what Arrow says about bytes that are not Parquet, which has the class of an error of the storage."""
_RANDOM_ACCESS: RecentlyUsed[_Unit] = RecentlyUsed(CACHE_BYTES)
_PARTS: RecentlyUsed[_Unit] = RecentlyUsed(PART_BYTES)
_FOOTERS: RecentlyUsed[pq.FileMetaData] = RecentlyUsed(FOOTER_BYTES)
