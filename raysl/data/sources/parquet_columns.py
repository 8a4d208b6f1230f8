"""What the columns of Parquet files hold: images, labels of three kinds, names."""

import json
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from raysl.data.sources.class_names import LABELS, check_numbers
from raysl.errors import ConfigError
from raysl.hashing import Int64s

NAME_COLUMNS = ("name", "path")
SHOWN = 5
CLASSES_KEY = b"raysl.classes"  # JSON list of class names in the metadata of a file's schema


def check_columns(path: str, schema: pa.Schema, image_column: str, label_column: str | None) -> None:
    """Refuse a file without images, without labels that the user named, or with labels of an unknown kind.

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
    """Refuse columns without images, or without labels that the user named.

    Args:
        where: the columns are.
        columns: their names.
        image_column: must be one of them.
        label_column: must be one of them, unless it is that of every source, or None.

    Raises:
        ConfigError: naming the column, and those that there are.
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
        label_column: may be absent in all of them; None: no labels are read.

    Raises:
        ConfigError: naming two files that differ.
    """
    first, schema = next(iter(schemas.items()))
    for path, other in schemas.items():
        if label_kind(other, label_column) != label_kind(schema, label_column):
            own, others = (
                str(s.field(label_column).type) if label_column in s.names else "none" for s in (schema, other)
            )
            raise ConfigError(
                f"column {label_column!r}: {first} has {own}, {path} has {others}; the files of a split must have the "
                "same columns"
            )


def label_kind(schema: pa.Schema, column: str | None) -> str | None:
    """What a column holds: `integers`, `text`, `lists`; None where there is no such column, empty for anything else."""
    if column is None or column not in schema.names:
        return None
    kind = schema.field(column).type
    if pa.types.is_integer(kind):
        return "integers"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return "lists" if pa.types.is_integer(kind.value_type) else ""
    return "text" if _has_text(schema, column) else ""


def name_column(schemas: Iterable[pa.Schema]) -> str | None:
    """The column of texts that names the images, in all files; None where there is none."""
    listed = list(schemas)
    return next((name for name in NAME_COLUMNS if all(_has_text(schema, name) for schema in listed)), None)


def stored_classes(schema: pa.Schema) -> tuple[str, ...]:
    """Class names that the file itself gives; none for files that raysl did not write."""
    stored = (schema.metadata or {}).get(CLASSES_KEY)
    return () if stored is None else tuple(json.loads(stored))


def agreed_classes(schemas: dict[str, pa.Schema], training: tuple[str, ...]) -> tuple[str, ...]:
    """Class names that the files of a split give, which number labels alike in all of them and in training.

    Args:
        schemas: by file.
        training: classes that the training images have; empty for these themselves.

    Raises:
        ConfigError: naming two files, or a file and the training images, whose classes differ.
    """
    named = {path: stored for path, schema in schemas.items() if (stored := stored_classes(schema))}
    if not named:
        return training
    first, classes = next(iter(named.items()))
    way_out = "ingest both alike, or give data.classes= if the numbers mean the same"
    for path, other in named.items():
        if other != classes:
            raise ConfigError(f"{first} has the classes {_shown(classes)}, and {path} {_shown(other)}; {way_out}")
    if training and training[: len(classes)] != classes:
        raise ConfigError(
            f"{first} has the classes {_shown(classes)}, and the training images {_shown(training)}; {way_out}"
        )
    return training or classes


def _shown(classes: tuple[str, ...]) -> str:
    rest = len(classes) - SHOWN
    return ", ".join(repr(name) for name in classes[:SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")


def raw_labels(column: pa.ChunkedArray, path: str) -> np.ndarray:
    """Labels as they are written: int64 [B], text [B], or int64 [B, K]; null is -1 or an empty text.

    Raises:
        ConfigError: if lists differ in length, or hold anything but 1, 0 and -1.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        return integers(column, path)
    rows = column.to_pylist()
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return np.array(["" if row is None else row for row in rows], str)
    lengths = {len(row) for row in rows if row is not None}
    if len(lengths) > 1:
        raise ConfigError(
            f"{path}: lists of {min(lengths)} and of {max(lengths)} labels; give one of each class: 1 present, "
            "0 absent, -1 ignore"
        )
    num = lengths.pop() if lengths else 0
    labels = np.array([[-1] * num if row is None else row for row in rows], np.int64).reshape(len(rows), num)
    check_numbers(labels, path)
    return labels


def integers(column: pa.ChunkedArray, origin: str) -> Int64s:
    """Labels of a column of integers of any width: int64 [B]; null is -1.

    Raises:
        ConfigError: naming `origin`, if one does not fit.
    """
    try:
        numbers: Int64s = column.cast(pa.int64()).fill_null(-1).to_numpy()
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{origin}: {error}; are these ids? set data.label_column= to the classes") from error
    return numbers


def _has_text(schema: pa.Schema, column: str) -> bool:
    if column not in schema.names:
        return False
    kind = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
