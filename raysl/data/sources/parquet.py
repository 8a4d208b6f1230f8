"""Parquet files with a column of encoded images."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from raysl.config.schema import ConfigError, DataConfig
from raysl.data.source import Rows, Source, Split
from raysl.hashing import Int64s
from raysl.storage import absolute, info_of, open_uri, telling

RANDOM_ACCESS_BYTES = 1 << 29  # a split up to this size is kept whole by each process that reads it
CACHE_BYTES = 1 << 30
HELD_OUT = ("val", "test")


class Parquet(Source):
    """A Parquet file or a folder of them; the row group is the read unit.

    In a folder, the files whose names, or those of their folders, begin with `train` are the training images, and `val`
    or else `test` the held-out ones; where no name begins with `train`, all files but the `val` and `test` ones are.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Where the files lie, and which columns to read."""

        name: str = "parquet"
        path: str | None = None
        """File, folder or URI with `train*` and `val*` or `test*` Parquet files or folders."""
        train: str | None = None
        """File, folder or URI of the training images, instead of those in `path`."""
        test: str | None = None
        """File, folder or URI of the held-out images, instead of those in `path`."""
        image_column: str = "image"
        """Column of encoded images: binary, or structs with the field `bytes`."""
        label_column: str = "label"
        """Column of integer labels, null where unlabelled; without it nothing is labelled."""
        classes: tuple[str, ...] = ()
        """Names of the classes, by label; default: the numbers."""

        def __post_init__(self) -> None:
            for name in ("path", "train", "test"):  # workers run in other directories
                if getattr(self, name) is not None:
                    object.__setattr__(self, name, absolute(getattr(self, name)))

    def split(self, name: str) -> Split | None:
        """See `Source.split`."""
        given = getattr(self.config, name)
        if given is not None:
            return _ParquetSplit(self.config, given, _files(given).values())
        if self.config.path is None:
            if name == "train":
                raise ConfigError("parquet needs data.path= or data.train=, a Parquet file or a folder of them")
            return None
        parts = _by_part(_files(self.config.path))
        if name == "test":
            chosen = next((parts[part] for part in HELD_OUT if parts[part]), [])
        else:
            chosen = parts["train"] or parts["other"]
            if not chosen:
                raise ConfigError(f"{self.config.path!r} holds val and test files alone; give data.train=")
        return _ParquetSplit(self.config, self.config.path, chosen) if chosen else None


def _by_part(files: dict[str, str]) -> dict[str, list[str]]:
    """Files by what the name of the file, or of the folder it is in, begins with."""
    parts: dict[str, list[str]] = {"train": [], "val": [], "test": [], "other": []}
    for inner, path in files.items():
        names = inner.split("/")[::-1]
        part = next((part for name in names for part in ("train", *HELD_OUT) if name.startswith(part)), "other")
        parts[part].append(path)
    return parts


def _files(uri: str) -> dict[str, str]:
    """Parquet files at a place, by their path below it."""
    system, info = info_of(uri)
    if info.type == fs.FileType.File:
        return {_base(info.path): info.path}
    if info.type != fs.FileType.Directory:
        raise ConfigError(f"no file or folder {uri!r}; give data.path= a Parquet file or a folder of them")
    with telling("read", uri):
        entries = system.get_file_info(fs.FileSelector(info.path, recursive=True))
    parquet = sorted(entry.path for entry in entries if entry.path.endswith(".parquet"))
    if not parquet:
        raise ConfigError(f"no .parquet files in {uri!r}, sub-folders included")
    return {path[len(info.path) :].strip("/"): path for path in parquet}


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


class _ParquetSplit(Split):
    def __init__(self, config: "Parquet.Config", uri: str, files: Iterable[str]) -> None:
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
            schema = metadata.schema.to_arrow_schema()
            _check_columns(path, schema, config)
            has_label = has_label and config.label_column in schema.names
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            units += [(path, number) for number, group in enumerate(groups) if group.num_rows]
            sizes += [group.num_rows for group in groups if group.num_rows]
            num_bytes += sum(group.total_byte_size for group in groups)
            digest.update(f"{_base(path)} {[(g.num_rows, g.total_byte_size) for g in groups]}\n".encode())
        if not units:
            raise ConfigError(f"no rows in the Parquet files of {uri!r}; give data.path= files with images")
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

    def _unit(self, unit: int) -> tuple[pa.Array, Int64s | None]:
        path, group = self.units[unit]
        columns = [self.image_column, *([self.label_column] if self.label_column else [])]
        key = (self.fingerprint, path, group, *columns)
        if key not in _CACHE:
            system, _ = open_uri(self.uri)
            with system.open_input_file(path) as file:
                table = pq.ParquetFile(file).read_row_group(group, columns=columns, use_threads=False)
            images = table[self.image_column].combine_chunks()
            if pa.types.is_struct(images.type):
                images = pc.struct_field(images, "bytes")
            labels = _labels(table[self.label_column]) if self.label_column else None
            _CACHE.put(key, (images, labels), table.nbytes)
        pictures, labels = _CACHE.get(key)
        return pictures, labels

    def _classes(self, system: fs.FileSystem, config: "Parquet.Config") -> tuple[str, ...]:
        """Class names: given, else the numbers up to the largest label."""
        if config.classes or self.label_column is None:
            return config.classes
        most = -1
        for path in dict.fromkeys(path for path, _ in self.units):
            with system.open_input_file(path) as file:
                labels = _labels(pq.ParquetFile(file).read(columns=[self.label_column])[self.label_column])
            most = max(most, int(labels.max(initial=-1)))
        return tuple(str(label) for label in range(most + 1))


def _check_columns(path: str, schema: pa.Schema, config: "Parquet.Config") -> None:
    if config.image_column not in schema.names:
        raise ConfigError(
            f"{path} has no column {config.image_column!r}; its columns: {', '.join(schema.names)}; "
            "set data.image_column="
        )
    kind = schema.field(config.image_column).type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise ConfigError(
            f"{path}: column {config.image_column!r} holds {kind}, not encoded images (binary); set data.image_column="
        )
    if config.label_column in schema.names:
        kind = schema.field(config.label_column).type
        if not pa.types.is_integer(kind):
            raise ConfigError(
                f"{path}: column {config.label_column!r} holds {kind}, not integers; set data.label_column= to another "
                "column, or to a name that is none for unlabelled images"
            )


def _labels(column: pa.ChunkedArray) -> Int64s:
    labels: Int64s = column.cast(pa.int64()).fill_null(-1).to_numpy()
    return labels


def _metadata(system: fs.FileSystem, path: str) -> pq.FileMetaData:
    try:
        with system.open_input_file(path) as file:
            return pq.ParquetFile(file).metadata
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"cannot read {path} as Parquet: {error}") from error


class _UnitCache:
    """Row groups this process read last, up to CACHE_BYTES."""

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self.num_bytes = 0

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self.kept

    def put(self, key: tuple[Any, ...], value: Any, num_bytes: int) -> None:
        self.kept[key] = (value, num_bytes)
        self.num_bytes += num_bytes
        while self.num_bytes > CACHE_BYTES and len(self.kept) > 1:
            _, (_, freed) = self.kept.popitem(last=False)
            self.num_bytes -= freed

    def get(self, key: tuple[Any, ...]) -> Any:
        self.kept.move_to_end(key)
        return self.kept[key][0]


_CACHE = _UnitCache()
