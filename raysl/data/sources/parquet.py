"""Parquet files with a column of encoded images."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from raysl.config.schema import ConfigError, DataConfig
from raysl.data.source import Rows, Source, Split
from raysl.hashing import Int64s
from raysl.storage import open_uri

RANDOM_ACCESS_BYTES = 1 << 29  # a split up to this size is kept whole by each process that reads it
CACHE_BYTES = 1 << 30
PREFIXES = {"train": ("train",), "test": ("test", "val")}


class Parquet(Source):
    """A Parquet file or a folder of them; the row group is the read unit.

    In a folder, files whose names begin with `train` are the training images and `test` or `val` the held-out ones;
    where no name begins so, all files are training images.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Where the files lie, and which columns to read."""

        name: str = "parquet"
        path: str | None = None
        """File, folder or URI with `train*` and `test*` or `val*` Parquet files."""
        train: str | None = None
        """File, folder or URI of the training images, instead of those in `path`."""
        test: str | None = None
        """File, folder or URI of the held-out images, instead of those in `path`."""
        image_column: str = "image"
        """Column of encoded images (binary)."""
        label_column: str = "label"
        """Column of integer labels; a file without it is unlabelled."""
        classes: tuple[str, ...] = ()
        """Names of the classes, by label; default: the numbers."""

    def split(self, name: str) -> Split | None:
        """See `Source.split`."""
        given = getattr(self.config, name)
        if given is not None:
            return _ParquetSplit(self.config, given, _files(given))
        if self.config.path is None:
            if name == "train":
                raise ConfigError("parquet needs data.path= or data.train=, a Parquet file or a folder of them")
            return None
        files = _files(self.config.path)
        chosen = [f for f in files if _base(f).startswith(PREFIXES[name])]
        if not chosen and name == "train":
            chosen = [f for f in files if not _base(f).startswith(PREFIXES["test"])]
        return _ParquetSplit(self.config, self.config.path, chosen) if chosen else None


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _files(uri: str) -> list[str]:
    system, root = open_uri(uri)
    info = system.get_file_info(root)
    if info.type == fs.FileType.File:
        return [root]
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give data.path= a Parquet file or a folder of them")
    files = [entry.path for entry in system.get_file_info(fs.FileSelector(root, recursive=True))]
    parquet = sorted(path for path in files if path.endswith(".parquet"))
    if not parquet:
        raise ConfigError(f"no .parquet files in {uri!r}")
    return parquet


class _ParquetSplit(Split):
    def __init__(self, config: "Parquet.Config", uri: str, files: list[str]) -> None:
        self.uri = uri
        self.image_column = config.image_column
        system, _ = open_uri(uri)
        units: list[tuple[str, int]] = []
        sizes: list[int] = []
        digest = hashlib.sha256()
        num_bytes = 0
        has_label = True
        for path in files:
            metadata = _metadata(system, path)
            names = metadata.schema.to_arrow_schema().names
            if config.image_column not in names:
                raise ConfigError(
                    f"{path} has no column {config.image_column!r}; its columns: {', '.join(names)}; set data.image_column="
                )
            has_label = has_label and config.label_column in names
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            units += [(path, number) for number, group in enumerate(groups) if group.num_rows]
            sizes += [group.num_rows for group in groups if group.num_rows]
            num_bytes += sum(group.total_byte_size for group in groups)
            digest.update(f"{_base(path)} {[(g.num_rows, g.total_byte_size) for g in groups]}\n".encode())
        self.units = units
        self.unit_sizes = np.array(sizes, np.int64)
        self.label_column = config.label_column if has_label else None
        self.fingerprint = digest.hexdigest()[:16]
        self.is_random_access = num_bytes <= RANDOM_ACCESS_BYTES
        self.classes = self._classes(system, config)

    def read(self, index: Int64s) -> Rows:
        starts = np.cumsum(self.unit_sizes) - self.unit_sizes
        units = np.searchsorted(starts, index, side="right") - 1
        images: list[Any] = [None] * len(index)
        labels = np.full(len(index), -1, np.int64)
        for unit in np.unique(units).tolist():
            pictures, unit_labels = self._unit(unit)
            for place in np.flatnonzero(units == unit).tolist():
                row = int(index[place] - starts[unit])
                images[place] = pictures[row].as_py()
                if unit_labels is not None:
                    labels[place] = unit_labels[row]
        names = [f"{self.units[unit][0]} row {row}" for unit, row in zip(units, index - starts[units], strict=True)]
        return Rows(images, labels, names)

    def _unit(self, unit: int) -> tuple[pa.ChunkedArray, Int64s | None]:
        path, group = self.units[unit]
        key = (self.fingerprint, path, group)
        if key not in _CACHE.kept:
            system, _ = open_uri(self.uri)
            columns = [self.image_column, *([self.label_column] if self.label_column else [])]
            with system.open_input_file(path) as file:
                table = pq.ParquetFile(file).read_row_group(group, columns=columns, use_threads=False)
            labels = table[self.label_column].to_numpy().astype(np.int64) if self.label_column else None
            _CACHE.put(key, (table[self.image_column].combine_chunks(), labels), table.nbytes)
        return _CACHE.get(key)

    def _classes(self, system: fs.FileSystem, config: "Parquet.Config") -> tuple[str, ...]:
        """Class names: given, else the numbers up to the largest label."""
        if config.classes or self.label_column is None:
            return config.classes
        most = -1
        for path in dict.fromkeys(path for path, _ in self.units):
            with system.open_input_file(path) as file:
                labels = pq.ParquetFile(file).read(columns=[self.label_column])[self.label_column].to_numpy()
            if not np.issubdtype(labels.dtype, np.integer):
                raise ConfigError(f"{path}: column {self.label_column!r} holds {labels.dtype}, not integers")
            most = max(most, int(labels.max(initial=-1)))
        return tuple(str(label) for label in range(most + 1))


def _metadata(system: fs.FileSystem, path: str) -> pq.FileMetaData:
    try:
        with system.open_input_file(path) as file:
            return pq.ParquetFile(file).metadata
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"cannot read {path} as Parquet: {error}") from error


class _UnitCache:
    """Row groups this process read last, up to CACHE_BYTES."""

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[str, str, int], tuple[Any, int]] = OrderedDict()
        self.num_bytes = 0

    def put(self, key: tuple[str, str, int], value: Any, num_bytes: int) -> None:
        self.kept[key] = (value, num_bytes)
        self.num_bytes += num_bytes
        while self.num_bytes > CACHE_BYTES and len(self.kept) > 1:
            _, (_, freed) = self.kept.popitem(last=False)
            self.num_bytes -= freed

    def get(self, key: tuple[str, str, int]) -> Any:
        self.kept.move_to_end(key)
        return self.kept[key][0]


_CACHE = _UnitCache()
