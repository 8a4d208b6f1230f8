"""The footers and columns of Parquet files: row groups, and columns of images, labels and names."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from raysl.data.sources.class_names import LABELS
from raysl.errors import ConfigError
from raysl.storage.reads import retrying

NAME_COLUMNS = ("name", "path")
SHOWN = 5
CLASSES_KEY = b"raysl.classes"  # JSON list of class names in the metadata of a file's schema

Range = tuple[int, int]
"""Smallest and largest label."""


@dataclass(frozen=True)
class Footers:
    """What the footers of the files of a split say.

    Args:
        schemas: by file.
        label_ranges: of integer labels, by file; None where the statistics are missing.
        units: file and number of each row group that has rows.
        unit_sizes: rows of each of these.
        num_bytes: of all columns before compression.
        fingerprint: changes with the names of the files, their rows and `num_bytes`.
        sizes_digest: changes with the size of any column of any row group.
    """

    schemas: dict[str, pa.Schema]
    label_ranges: dict[str, Range | None]
    units: list[tuple[str, int]]
    unit_sizes: list[int]
    num_bytes: int
    fingerprint: str
    sizes_digest: str


def read_footers(system: fs.FileSystem, files: Iterable[str], image_column: str, label_column: str | None) -> Footers:
    """Read the footers of files and check their columns.

    Raises:
        ConfigError: if a file cannot be read, lacks a column or has one of an unknown kind.
    """
    units: list[tuple[str, int]] = []
    unit_sizes: list[int] = []
    schemas: dict[str, pa.Schema] = {}
    ranges: dict[str, Range | None] = {}
    fingerprint, sizes_digest = hashlib.sha256(), hashlib.sha256()
    num_bytes = 0
    for path in files:
        metadata = _read_metadata(system, path)
        schemas[path] = metadata.schema.to_arrow_schema()
        check_columns(path, schemas[path], image_column, label_column)
        if label_column is not None and label_kind(schemas[path], label_column) == "integers":
            ranges[path] = _label_range(metadata, label_column)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        units += [(path, number) for number, group in enumerate(groups) if group.num_rows]
        unit_sizes += [group.num_rows for group in groups if group.num_rows]
        num_bytes += sum(group.total_byte_size for group in groups)
        shapes = [(group.num_rows, group.total_byte_size) for group in groups]
        fingerprint.update(f"{path.rpartition('/')[2]} {shapes}\n".encode())
        sizes_digest.update(f"{[_column_sizes(group) for group in groups]}\n".encode())
    return Footers(
        schemas, ranges, units, unit_sizes, num_bytes, fingerprint.hexdigest()[:16], sizes_digest.hexdigest()[:16]
    )


def check_columns(path: str, schema: pa.Schema, image_column: str, label_column: str | None) -> None:
    """Refuse a file without images, without the label column that the user named, or with labels of an unknown kind.

    Raises:
        ConfigError: naming the file and the column.
    """
    for column in (image_column, label_column, *NAME_COLUMNS):
        if schema.names.count(column) > 1:
            raise ConfigError(f"{path} has {schema.names.count(column)} columns {column!r}; give each its own name")
    check_there(path, schema.names, image_column, label_column)
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
            f"{path}: column {label_column!r} holds {schema.field(label_column).type}, not integers, names or lists of "
            "integers; set data.label_column= to another column, or to null for unlabelled images"
        )


def check_there(where: str, columns: Sequence[str], image_column: str, label_column: str | None) -> None:
    """Refuse columns without images, or without the label column that the user named.

    Args:
        where: file or dataset of the columns, for the message.
        columns: their names.
        image_column: must be one of them.
        label_column: must be one of them, unless it is None or the default name.

    Raises:
        ConfigError: naming the missing column and the existing ones.
    """
    for column, setting in ((image_column, "image_column="), (label_column, "label_column=")):
        if column not in (*columns, *(() if column == image_column else (None, LABELS))):
            hint = " (null: unlabelled)" if setting == "label_column=" else ""
            raise ConfigError(
                f"{where} has no column {column!r}; its columns: {', '.join(columns)}; set data.{setting}{hint}"
            )


def check_alike(schemas: dict[str, pa.Schema], label_column: str | None) -> None:
    """Refuse files with labels of different kinds.

    Args:
        schemas: by file.
        label_column: may be missing in all of them; None: no labels are read.

    Raises:
        ConfigError: naming two files that differ.
    """
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
    """Return `integers`, `text` or `lists`, the kind of a column; None if it is missing, empty for other kinds."""
    if column is None or column not in schema.names:
        return None
    kind = schema.field(column).type
    if pa.types.is_integer(kind):
        return "integers"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return "lists" if pa.types.is_integer(kind.value_type) else ""
    return "text" if _has_text(schema, column) else ""


def name_column(schemas: Iterable[pa.Schema]) -> str | None:
    """Return the column of texts that names the images in all files; None without one."""
    listed = list(schemas)
    return next((name for name in NAME_COLUMNS if all(_has_text(schema, name) for schema in listed)), None)


def stored_classes(schema: pa.Schema) -> tuple[str, ...]:
    """Return the class names that a file stores; empty for files that raysl did not write."""
    stored = (schema.metadata or {}).get(CLASSES_KEY)
    return () if stored is None else tuple(json.loads(stored))


def agreed_classes(schemas: dict[str, pa.Schema], training: tuple[str, ...]) -> tuple[str, ...]:
    """Return the class names that the files of a split store, after checking that they agree.

    Args:
        schemas: by file.
        training: classes of the training images, which must begin with them; empty for the training images themselves.

    Raises:
        ConfigError: naming two files, or a file and the training images, whose classes differ.
    """
    stored = {path: names for path, schema in schemas.items() if (names := stored_classes(schema))}
    if not stored:
        return training
    first, classes = next(iter(stored.items()))
    way_out = "ingest both alike, or give data.classes= if the numbers mean the same"
    for path, other in stored.items():
        if other != classes:
            raise ConfigError(f"{first} has the classes {_describe(classes)}, and {path} {_describe(other)}; {way_out}")
    if training and training[: len(classes)] != classes:
        raise ConfigError(
            f"{first} has the classes {_describe(classes)}, and the training images {_describe(training)}; {way_out}"
        )
    return training or classes


def _describe(classes: tuple[str, ...]) -> str:
    rest = len(classes) - SHOWN
    return ", ".join(repr(name) for name in classes[:SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")


def _read_metadata(system: fs.FileSystem, path: str) -> pq.FileMetaData:
    def read() -> pq.FileMetaData:
        with system.open_input_file(path) as file:
            return pq.ParquetFile(file).metadata

    try:
        return retrying(read, "read", path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"cannot read {path} as Parquet: {error}") from error


def _column_sizes(group: pq.RowGroupMetaData) -> list[tuple[int, int]]:
    """Return the bytes of each column of a row group, before and after compression."""
    columns = [group.column(number) for number in range(group.num_columns)]
    return [(column.total_uncompressed_size, column.total_compressed_size) for column in columns]


def _label_range(metadata: pq.FileMetaData, column: str) -> Range | None:
    """Return the range of integer labels from a file's statistics; -1 without labels, None without statistics."""
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


def _has_text(schema: pa.Schema, column: str) -> bool:
    if column not in schema.names:
        return False
    kind = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
