"""The footers and columns of Parquet files: row groups, and columns of images, labels and names."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs
from pyarrow.dataset import get_partition_keys, partitioning

from raysl.data.sources.class_names import LABELS
from raysl.data.sources.listing import composed, join_some
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.storage.reads import in_parallel, read_ranges, retrying, small_reads
from raysl.storage.records import fits

NAME_COLUMNS = ("name", "path")
MOST_SHOWN = 5
CLASSES_KEY = b"raysl.classes"  # JSON list of class names in the metadata of a file's schema

MAGIC = b"PAR1"  # at both ends of a Parquet file
TAIL_BYTES = 1 << 16  # read at the end of a file at once; most footers are smaller

Range = tuple[int, int]
"""Smallest and largest label."""


@dataclass(frozen=True)
class Footers:
    """Facts from the footers of the files of a split.

    Args:
        schemas: distinct schemas, each by the first file that has it.
        label_ranges: bounds of integer labels, by file; None if the statistics are missing.
        label_width: length of labels that are lists, if it is known without reading the labels.
        has_names: whether all labels are known to be names of classes that the schemas store.
        unit_files: int32 [U], number of the file of each row group that has rows.
        unit_groups: int32 [U], number of each such row group in its file.
        unit_sizes: int64 [U], number of rows of each.
        num_bytes: size of all columns before compression.
        fingerprint: changes with the names of the files, their rows and `num_bytes`.
        sizes_digest: changes with the size of any column of any row group; empty if hashes of the files are known.
        labels_digest: changes with any label; empty if the labels have to be read for that.
    """

    schemas: dict[str, pa.Schema]
    label_ranges: dict[str, Range | None]
    unit_files: NDArray[np.int32]
    unit_groups: NDArray[np.int32]
    unit_sizes: Int64s
    num_bytes: int
    fingerprint: str
    sizes_digest: str = ""
    label_width: int | None = None
    has_names: bool = False
    labels_digest: str = ""


def folder_label(path: str, column: str, root: str) -> str | None:
    """Return the label in the name of the nearest folder above a file, such as `label=cat`, empty for Hive's null; None
    without one.

    Args:
        root: path of the dataset; folders above it do not count.

    >>> folder_label("/label=clean/data/label=big%20cat/part-0.parquet", "label", "/label=clean/data")
    'big cat'
    """
    hive = partitioning(pa.schema([(column, pa.string())]), flavor="hive")
    for folder in reversed(path.removeprefix(f"{root}/").split("/")[:-1]):
        keys = get_partition_keys(hive.parse(f"{folder}/"))
        if column in keys:
            return keys[column] or ""
    return None


def is_label_type(kind: pa.DataType) -> bool:
    """Whether a column of this type may hold one label of each row: numbers or texts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def read_footers(
    system: fs.FileSystem,
    files: Sequence[str],
    image_column: str,
    label_column: str | None,
    num_bytes: Mapping[str, int | None],
    root: str,
) -> Footers:
    """Read the footers of files, several at a time, and check their columns.

    Args:
        num_bytes: sizes of files by path, or None; if the size is known, one request reads the end of the file.
        root: path of the folder of the files, see `folder_label`.
    """
    schemas: dict[str, pa.Schema] = {}
    ranges: dict[str, Range | None] = {}
    sizes: list[NDArray[np.int64]] = []
    fingerprint, sizes_digest = hashlib.sha256(), hashlib.sha256()
    total = 0
    footers = in_parallel(lambda path: _read_metadata(system, path, num_bytes.get(path)), files, small_reads(system))
    for path, metadata in zip(files, footers, strict=True):
        schema = _without_other_metadata(metadata.schema.to_arrow_schema(), label_column)
        check_columns(path, schema, image_column, label_column, root)
        if not any(schema.equals(known, check_metadata=True) for known in reversed(schemas.values())):
            schemas[path] = schema
        if label_column is not None and label_kind(schema, label_column) == "integers":
            ranges[path] = _label_range(metadata, label_column)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        shapes = [(group.num_rows, group.total_byte_size) for group in groups]
        sizes.append(np.array([rows for rows, _ in shapes], np.int64))
        total += sum(size for _, size in shapes)
        fingerprint.update(fingerprint_line(path, shapes))
        sizes_digest.update(f"{[_column_sizes(group) for group in groups]}\n".encode())
    units = units_of(sizes)
    return Footers(schemas, ranges, *units, total, fingerprint.hexdigest()[:16], sizes_digest.hexdigest()[:16])


def fingerprint_line(path: str, shapes: Sequence[tuple[int, int]]) -> bytes:
    """Return the part of a dataset's fingerprint that one file adds.

    Args:
        shapes: rows of each row group, and bytes of its columns before compression.
    """
    return f"{path.rpartition('/')[2]} {shapes}\n".encode()


def units_of(sizes: Sequence[Int64s]) -> tuple[NDArray[np.int32], NDArray[np.int32], Int64s]:
    """Return the file, the number and the rows of each row group that has rows.

    >>> [column.tolist() for column in units_of([np.array([4, 0, 2]), np.array([3])])]
    [[0, 0, 1], [0, 2, 0], [4, 2, 3]]
    """
    empty = np.empty(0, np.int64)
    files = np.repeat(np.arange(len(sizes), dtype=np.int32), [len(groups) for groups in sizes])
    numbers = np.concatenate([empty, *(np.arange(len(groups)) for groups in sizes)]).astype(np.int32)
    rows = np.concatenate([empty, *sizes])
    has_rows = rows > 0
    return files[has_rows], numbers[has_rows], rows[has_rows]


def check_columns(path: str, schema: pa.Schema, image_column: str, label_column: str | None, root: str) -> None:
    """Refuse a file without a column of images, without the named label column, or with labels of other types."""
    for column in (image_column, label_column, *NAME_COLUMNS):
        if schema.names.count(column) > 1:
            raise ConfigError(f"{path} has {schema.names.count(column)} columns {column!r}; give each its own name")
    folders = [column for column in (label_column,) if column and folder_label(path, column, root) is not None]
    check_columns_exist(path, [*schema.names, *folders], image_column, label_column)
    kind = schema.field(image_column).type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise ConfigError(
            f"{path}: column {image_column!r} holds {kind}, not encoded images (binary); set data.image_column="
        )
    if label_kind(schema, label_column) == "":
        raise ConfigError(
            f"{path}: column {label_column!r} holds {schema.field(label_column).type}, not numbers, names or lists of "
            "integers; set data.label_column= to another column, or to null for unlabelled images"
        )


def check_columns_exist(where: str, columns: Sequence[str], image_column: str, label_column: str | None) -> None:
    """Refuse columns that lack the image column, or a label column that the user named.

    Args:
        label_column: name of the label column; None and the default name may be missing.
    """
    for column, setting in ((image_column, "image_column="), (label_column, "label_column=")):
        if column not in (*columns, *(() if column == image_column else (None, LABELS))):
            hint = " (null: unlabelled)" if setting == "label_column=" else ""
            raise ConfigError(
                f"{where} has no column {column!r}; its columns: {', '.join(columns)}; set data.{setting}{hint}"
            )


def check_label_kinds(schemas: dict[str, pa.Schema], label_column: str | None) -> None:
    """Refuse files with labels of different kinds."""
    first, schema = next(iter(schemas.items()))
    for path, other in schemas.items():
        if label_kind(other, label_column) != label_kind(schema, label_column):
            kind, other_kind = (
                str(s.field(label_column).type) if label_column in s.names else "none" for s in (schema, other)
            )
            raise ConfigError(
                f"column {label_column!r}: {first} has {kind}, {path} has {other_kind}; the files of a split must have "
                "the same columns"
            )


def label_kind(schema: pa.Schema, column: str | None) -> str | None:
    """Return the kind of a label column: `integers`, `values` (texts or floats), `lists`, or empty for other types.
    A missing column gives None."""
    if column is None or column not in schema.names:
        return None
    kind = schema.field(column).type
    if pa.types.is_integer(kind):
        return "integers"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return "lists" if pa.types.is_integer(kind.value_type) else ""
    return "values" if is_label_type(kind) else ""


def unread_columns(schema: pa.Schema, uri: str, image_column: str) -> tuple[str, ...]:
    """Return a note on the columns that may hold labels, for images without a label column; empty if there are none."""
    others = [
        field.name
        for field in schema
        if field.name not in (image_column, "index", *NAME_COLUMNS)
        and (is_label_type(field.type) or pa.types.is_boolean(field.type) or label_kind(schema, field.name) == "lists")
    ]
    if not others:
        return ()
    return (
        f"the images in {uri!r} have no labels, as there is no column {LABELS!r}; the columns {join_some(others, 5)} "
        "are not read: set data.label_column= to the column of labels, or store several labels of an image as a list "
        "of 1 and 0",
    )


def name_column(schemas: Iterable[pa.Schema]) -> str | None:
    """Return the first of NAME_COLUMNS that all files have as texts; None if there is none."""
    listed = list(schemas)
    return next(
        (
            name
            for name in NAME_COLUMNS
            if all(name in schema.names and _is_text(schema.field(name).type) for schema in listed)
        ),
        None,
    )


def stored_classes(schema: pa.Schema) -> tuple[str, ...]:
    """Return the class names that raysl or the package `datasets` stored in a file; empty for other files."""
    stored = (schema.metadata or {}).get(CLASSES_KEY)
    if stored is None:
        return ()
    try:
        classes = json.loads(stored)
    except (ValueError, RecursionError):
        classes = None
    if not fits(classes, list[str]):
        raise ConfigError("a Parquet file is damaged: its class names are not a list of texts; make it again")
    return tuple(map(composed, classes))


CLASSES_HINT = "make both alike, or give data.classes= if the numbers mean the same"


def agreed_classes(schemas: dict[str, pa.Schema]) -> tuple[str, ...]:
    """Return the class names that the files of a split store; refuse files whose names differ."""
    stored = {path: names for path, schema in schemas.items() if (names := stored_classes(schema))}
    first, classes = next(iter(stored.items()), ("", ()))
    for path, other in stored.items():
        if other != classes:
            raise ConfigError(
                f"{first} has the classes {describe_classes(classes)}, and {path} "
                f"{describe_classes(other)}; {CLASSES_HINT}"
            )
    return classes


def describe_classes(classes: tuple[str, ...]) -> str:
    """Return the first few names of classes, for messages."""
    rest = len(classes) - MOST_SHOWN
    return ", ".join(repr(name) for name in classes[:MOST_SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")


def _read_metadata(system: fs.FileSystem, path: str, num_bytes: int | None) -> pq.FileMetaData:
    def read() -> pq.FileMetaData:
        with system.open_input_file(path) as file:
            return pq.ParquetFile(file).metadata

    try:
        footer = None if num_bytes is None else _read_footer(system, path, num_bytes)
        return retrying(read, "read", path) if footer is None else pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"cannot read {path} as Parquet: {error}") from error


def _read_footer(system: fs.FileSystem, path: str, num_bytes: int) -> bytes | None:
    """Return the content of an empty Parquet file with the footer of this one; None if no footer is at its end."""
    size = min(num_bytes, TAIL_BYTES)
    (tail,) = read_ranges(system, path, [num_bytes - size], [size])
    # a Parquet file ends with its footer, the footer's size in four bytes, and PAR1
    footer = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] != MAGIC or footer + len(MAGIC) > num_bytes:
        return None
    if footer > size:
        (rest,) = read_ranges(system, path, [num_bytes - footer], [footer - size])
        tail = rest + tail
    return MAGIC + tail[-footer:]


def _without_other_metadata(schema: pa.Schema, label_column: str | None) -> pa.Schema:
    """Return a schema whose metadata has only the class names: all else may differ between files."""
    metadata = schema.metadata or {}
    stored = metadata.get(CLASSES_KEY) or _names_of_datasets(metadata.get(b"huggingface"), label_column)
    return schema.with_metadata(None if stored is None else {CLASSES_KEY: stored})


def _names_of_datasets(content: bytes | None, label_column: str | None) -> bytes | None:
    """Return, as a JSON list, the class names that the package `datasets` stored for a column of labels."""
    try:
        tree = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return None
    for key in ("info", "features", label_column):
        tree = tree.get(key) if isinstance(tree, dict) else None
    is_named = isinstance(tree, dict) and tree.get("_type") == "ClassLabel" and fits(tree.get("names"), list[str])
    return json.dumps(tree["names"]).encode() if is_named else None


def _column_sizes(group: pq.RowGroupMetaData) -> list[tuple[int, int]]:
    """Return the bytes of each column of a row group, before and after compression."""
    columns = [group.column(number) for number in range(group.num_columns)]
    return [(column.total_uncompressed_size, column.total_compressed_size) for column in columns]


def _label_range(metadata: pq.FileMetaData, column: str) -> Range | None:
    """Return the range of integer labels from a file's statistics, at least (-1, -1); None without statistics."""
    number = next((n for n in range(metadata.num_columns) if metadata.schema.column(n).path == column), None)
    if number is None:
        return None
    least, most = -1, -1
    for group in range(metadata.num_row_groups):
        values = metadata.row_group(group).column(number).statistics
        if values is None or not values.has_min_max:
            return None
        least, most = min(least, values.min), max(most, values.max)
    return least, most
