"""Rows of Parquet files, read row group by row group."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from raysl.data.source import LABELS, Rows, Split
from raysl.data.sources.class_names import numbered
from raysl.data.sources.parquet_columns import (
    agreed_classes,
    check_alike,
    check_columns,
    label_kind,
    name_column,
    raw_labels,
    stored_classes,
)
from raysl.data.sources.parquet_files import Known
from raysl.data.sources.parquet_labels import Range, counted_classes, found_classes, label_range, labels_digest
from raysl.data.sources.versions import digest_of
from raysl.data.split import Encoded, Missing, by_unit, joined_digest
from raysl.errors import ConfigError, RunFailed
from raysl.hashing import Int64s, hash_text
from raysl.storage.addresses import open_uri
from raysl.storage.cache import RecentlyUsed
from raysl.storage.reads import reason_of, retrying

RANDOM_ACCESS_BYTES = 1 << 29  # a split up to this size is kept whole by each process that reads it
CACHE_BYTES = 1 << 30
MOST_READ = 200_000  # rows of a remote dataset whose labels are read to tell whether they have changed


@dataclass(frozen=True)
class _Unit:
    """Columns of a row group; None where the files have none, or where they were not asked for."""

    images: pa.Array | None
    labels: Int64s | None
    names: pa.Array | None
    paths: pa.Array | None = None
    """What the images say that their files were, where they say so."""

    def image(self, row: int) -> Encoded:
        """The image of a row; a path alone, as `datasets` writes it where files are not embedded, is not followed."""
        assert self.images is not None
        found: bytes | None = self.images[row].as_py()
        path = None if found is not None or self.paths is None else self.paths[row].as_py()
        if path is None:
            return found
        return Missing(f"no bytes, the path {path!r} alone; store the images themselves, or list paths (file_list)")


class ParquetSplit(Split):
    """The rows of some files; the row group is the read unit.

    Args:
        uri: where the files lie, for the file system.
        files: paths there.
        image_column: encoded images.
        label_column: integers, names, or lists of 1 present, 0 absent and -1 ignore; None: nothing is labelled.
        classes: names of the classes, whatever the files say; empty: as these say.
        training: classes that the training images have; empty for these themselves.
        known: what is known of the files before they are opened, by their paths.

    Raises:
        ConfigError: if a file cannot be read, lacks images, or has labels of another kind than the first one or of no
            known class.
    """

    def __init__(
        self,
        uri: str,
        files: Iterable[str],
        image_column: str,
        label_column: str | None,
        classes: tuple[str, ...],
        training: tuple[str, ...] = (),
        known: Mapping[str, Known] | None = None,
    ) -> None:
        files, facts = list(files), known or {}
        self.uri = uri
        self.files = files
        self.known = [facts.get(path, Known()) for path in files]
        self.image_column = image_column
        system, _ = open_uri(uri)
        units: list[tuple[str, int]] = []
        sizes: list[int] = []
        schemas: dict[str, pa.Schema] = {}
        ranges: dict[str, Range | None] = {}
        digest, stored = hashlib.sha256(), hashlib.sha256()
        num_bytes = 0
        for path in files:
            metadata = _metadata(system, path)
            schemas[path] = metadata.schema.to_arrow_schema()
            check_columns(path, schemas[path], image_column, label_column)
            if label_column is not None and label_kind(schemas[path], label_column) == "integers":
                ranges[path] = label_range(metadata, label_column)
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            units += [(path, number) for number, group in enumerate(groups) if group.num_rows]
            sizes += [group.num_rows for group in groups if group.num_rows]
            num_bytes += sum(group.total_byte_size for group in groups)
            digest.update(f"{path.rpartition('/')[2]} {[(g.num_rows, g.total_byte_size) for g in groups]}\n".encode())
            stored.update(f"{[_stored_sizes(group) for group in groups]}\n".encode())
        if not units:
            raise ConfigError(f"no rows in the Parquet files of {uri!r}; give data.path= files with images")
        check_alike(schemas, label_column)
        first = next(iter(schemas.values()))
        self.units = units
        self.unit_sizes = np.array(sizes, np.int64)
        self.starts = np.cumsum(self.unit_sizes) - self.unit_sizes
        self.fingerprint = digest.hexdigest()[:16]
        self._sizes = stored.hexdigest()[:16]
        self._version = joined_digest([self._sizes, *(f"{known.sha256} {known.written}" for known in self.known)])
        self.is_random_access = num_bytes <= RANDOM_ACCESS_BYTES
        self.label_column = label_column if label_column in first.names else None
        self.name_column = name_column(schemas.values())
        kind = label_kind(first, label_column)
        self.is_multilabel = kind == "lists"
        named = classes or (training or stored_classes(first) if kind == "text" else agreed_classes(schemas, training))
        if kind is None and classes:
            raise ConfigError(
                f"data.classes= names {len(classes):,} classes, and {uri!r} has no column of labels; "
                "set data.label_column="
            )
        if label_column is None or kind is None:
            self.classes = named or ()
        elif kind == "integers":
            self.classes = counted_classes(system, ranges, label_column, named)
        else:
            self.classes = found_classes(system, schemas, label_column, named, self.is_multilabel)
        self.classes_key = hash_text("\n".join(self.classes))  # other classes number the same names otherwise

    def content(self) -> Mapping[str, str]:
        """See `Split.content`: what the files say of their sizes, all labels, and the hashes that an ingest noted.

        Labels of more than 200,000 remote rows are not read for it, their files' versions stand for them.
        """
        content = {"sizes": self._sizes}
        if all(known.sha256 for known in self.known):
            content["files"] = joined_digest([known.sha256 for known in self.known])
        if self._labels_digest:
            content[LABELS] = self._labels_digest
        return content

    @cached_property
    def _labels_digest(self) -> str:
        """Of all labels as they are written; empty where there are none, or where reading them would take long."""
        system, _ = open_uri(self.uri)
        is_quick = isinstance(system, fs.LocalFileSystem) or self.num_samples <= MOST_READ
        return labels_digest(system, self.files, self.label_column) if self.label_column and is_quick else ""

    def written(self, ask: bool = True) -> str:
        """See `Split.written`."""
        return digest_of(known.written for known in self.known)

    def read(self, index: Int64s) -> Rows:
        """See `Split.read`."""
        images: list[Encoded] = [None] * len(index)
        labels, names = self._no_labels(len(index)), [""] * len(index)
        for number, places in self._by_unit(index):
            unit, rows = self._unit(number, with_images=True), index[places] - self.starts[number]
            if unit.labels is not None:
                labels[places] = unit.labels[rows]
            for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                images[place] = unit.image(row)
                names[place] = self._name(number, unit, row)
        return Rows(images, labels, names)

    def labels_of(self, index: Int64s) -> Int64s:
        """See `Split.labels_of`."""
        labels = self._no_labels(len(index))
        for number, places in self._by_unit(index) if self.label_column is not None else ():
            found = self._unit(number, with_images=False).labels
            assert found is not None
            labels[places] = found[index[places] - self.starts[number]]
        return labels

    def names_of(self, index: Int64s) -> list[str]:
        """See `Split.names_of`."""
        names = [""] * len(index)
        for number, places in self._by_unit(index):
            unit, rows = self._unit(number, with_images=False), index[places] - self.starts[number]
            for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                names[place] = self._name(number, unit, row)
        return names

    def _no_labels(self, num: int) -> Int64s:
        return np.full((num, len(self.classes)) if self.is_multilabel else num, -1, np.int64)

    def _name(self, number: int, unit: _Unit, row: int) -> str:
        own = None if unit.names is None else unit.names[row].as_py()
        return own or f"{self.units[number][0]} row {row}"

    def _by_unit(self, index: Int64s) -> Iterable[tuple[int, Int64s]]:
        """Units that are read from, and the places in `index` of their rows."""
        return by_unit(self.starts, index)

    def _unit(self, number: int, with_images: bool) -> _Unit:
        path, group = self.units[number]
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
            numbers = None if labels is None else self._numbers(labels, path)
            return _Unit(images, numbers, names, paths), table.nbytes

        return _CACHE.get((self.fingerprint, self._version, self.classes_key, path, group, *wanted), make)

    def _table(self, number: int, columns: Sequence[str]) -> pa.Table:
        path, group = self.units[number]
        place = f"row group {group} of {path}"
        try:
            table = retrying(lambda: self._row_group(path, group, columns), "read", place)
        except (OSError, pa.ArrowException) as error:
            raise RunFailed(
                f"cannot read {place}: {reason_of(error)}; put the file back whole and start again"
            ) from error
        if table.num_rows != self.unit_sizes[number] or table.column_names != list(columns):
            raise RunFailed(f"{place} changed while it was in use; start again")
        return table

    def _row_group(self, path: str, group: int, columns: Sequence[str]) -> pa.Table:
        system, _ = open_uri(self.uri)
        with system.open_input_file(path) as file:
            return pq.ParquetFile(file).read_row_group(group, columns=columns, use_threads=False)

    def _numbers(self, column: pa.ChunkedArray, path: str) -> Int64s:
        """Labels by the numbers of the classes: int64 [B], or [B, K]."""
        labels = raw_labels(column, path)
        if labels.ndim == 2 and labels.shape[1] == 0:  # a row group of nulls
            return self._no_labels(len(labels))
        return numbered(labels, self.classes, path) if labels.dtype.kind == "U" else labels


def _stored_sizes(group: pq.RowGroupMetaData) -> list[tuple[int, int]]:
    """Bytes of each column of a row group, before and after compression."""
    columns = [group.column(number) for number in range(group.num_columns)]
    return [(column.total_uncompressed_size, column.total_compressed_size) for column in columns]


def _metadata(system: fs.FileSystem, path: str) -> pq.FileMetaData:
    def read() -> pq.FileMetaData:
        with system.open_input_file(path) as file:
            return pq.ParquetFile(file).metadata

    try:
        return retrying(read, "read", path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"cannot read {path} as Parquet: {error}") from error


_CACHE: RecentlyUsed[_Unit] = RecentlyUsed(CACHE_BYTES)
