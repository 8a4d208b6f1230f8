"""Labels in Parquet files: reading them, and the classes that they name."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from raysl.data.sources.class_names import check_numbers, check_range, class_names, number_labels
from raysl.data.sources.label_column import parse_labels
from raysl.data.sources.parquet_columns import Range
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.storage.addresses import storage_errors
from raysl.storage.reads import REMOTE_READS, in_parallel, retrying

READS = 8  # local files at a time


REMEDY = "give data.classes= the names"
"""What a user does whose labels are names though they look like numbers."""


def raw_labels(column: pa.ChunkedArray, path: str, as_names: bool = False) -> np.ndarray:
    """Return labels as they are stored: int64 [B], text [B], or int64 [B, K]; null becomes -1 or an empty text.

    Args:
        column: column of integers, of texts or floats, which `parse_labels` reads, or of lists.
        as_names: whether texts that look like numbers are names.

    Raises:
        ConfigError: if a text or float is no label, lists differ in length, or hold anything but 1, 0 and -1.
    """
    kind = column.type
    if pa.types.is_integer(kind):
        return integers(column, path)
    rows = column.to_pylist()
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return parse_labels(rows, path, as_names=as_names, remedy=REMEDY)
    lengths = {len(row) for row in rows if row is not None}
    if len(lengths) > 1:
        raise ConfigError(
            f"{path}: lists of {min(lengths)} and of {max(lengths)} labels; give one for each class: 1 present, "
            "0 absent, -1 ignore"
        )
    num = lengths.pop() if lengths else 0
    labels = np.array([[-1] * num if row is None else row for row in rows], np.int64).reshape(len(rows), num)
    check_numbers(labels, path)
    return labels


def integers(column: pa.ChunkedArray, origin: str) -> Int64s:
    """Return the labels in a column of integers of any width: int64 [B]; null becomes -1."""
    try:
        numbers: Int64s = column.cast(pa.int64()).fill_null(-1).to_numpy()
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{origin}: {error}; are these ids? set data.label_column= to the classes") from error
    return numbers


def find_classes(
    system: fs.FileSystem, files: Sequence[str], column: str, classes: tuple[str, ...], as_names: bool
) -> tuple[tuple[str, ...], bool]:
    """Read all texts or floats, check them, and return the names of the classes, and whether labels are names.

    Args:
        column: column of texts or floats.
        classes: names of the classes; empty: those of the labels.
        as_names: whether texts that look like numbers are names.
    """

    def read(path: str) -> np.ndarray:
        labels = np.unique(_read_labels(system, path, column, as_names))
        if classes and labels.dtype.kind == "U":
            number_labels(labels, classes, path)
        elif classes:
            check_range(*find_range(labels), path, len(classes))
        return labels[labels >= 0] if labels.dtype.kind != "U" else labels

    texts: dict[str, np.ndarray] = {}
    numbers: dict[str, np.ndarray] = {}
    for path, labels in zip(files, in_parallel(read, files, label_reads(system)), strict=True):
        if len(labels):
            (texts if labels.dtype.kind == "U" else numbers)[path] = labels
    if texts and numbers:
        raise ConfigError(
            f"{next(iter(texts))} has names in the column {column!r} and {next(iter(numbers))} has numbers; use one of "
            f"both, or {REMEDY} if all labels are names, numbers too"
        )
    labelled = [*(texts or numbers).values()]
    return classes or class_names(np.concatenate(labelled) if labelled else np.empty(0, np.int64)), bool(texts)


def count_lists(system: fs.FileSystem, files: Sequence[str], column: str, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Read all lists of labels, check that they have one label of each class, and return the names of the classes.

    Args:
        system, files, column, classes: arguments of `find_classes`; the column holds lists.
    """

    def read(path: str) -> tuple[str, ...]:
        return class_names(_read_labels(system, path, column))

    for path, names in zip(files, in_parallel(read, files, label_reads(system)), strict=True):
        if names:
            check_width(path, len(names), classes)
            classes = classes or names
    return classes


def check_width(path: str, width: int, classes: tuple[str, ...]) -> None:
    """Refuse lists of labels that are not one for each class.

    Args:
        classes: names of the classes; empty: any.
    """
    if classes and width != len(classes):
        raise ConfigError(f"{path} has lists of {width} labels for {len(classes)} classes; give one for each class")


def count_classes(
    system: fs.FileSystem, ranges: dict[str, Range | None], column: str, classes: tuple[str, ...]
) -> tuple[str, ...]:
    """Check all integer labels, and return the names of the classes, by default the numbers up to the largest label.

    Args:
        ranges: smallest and largest label of each file; None: the column is read.
        column: column of integers.
        classes: names of the classes; empty: the numbers.
    """

    def read(path: str) -> Range:
        return ranges[path] or find_range(_read_labels(system, path, column))

    largest = -1
    threads = 1 if all(ranges.values()) else label_reads(system)
    for path, (least, most) in zip(ranges, in_parallel(read, ranges, threads), strict=True):
        check_range(least, most, path, len(classes) or None)
        largest = max(largest, most)
    return classes or class_names(np.array([largest]))


def labels_digest(system: fs.FileSystem, files: Sequence[str], column: str, as_names: bool = False) -> str:
    """Return 16 hexadecimal digits of all labels as they are stored, in the order of the rows."""

    read = partial(_read_labels, system, column=column, as_names=as_names)
    return join_digests(in_parallel(lambda path: digest_of(read(path)), files, label_reads(system)))


def digest_of(labels: np.ndarray) -> bytes:
    """Return the digest of the labels of one file, as `raw_labels` returns them."""
    content = "\0".join(labels.tolist()).encode() if labels.dtype.kind == "U" else labels.tobytes()
    return hashlib.sha256(f"{labels.shape} ".encode() + content).digest()


def join_digests(digests: Iterable[bytes]) -> str:
    """Return 16 hexadecimal digits of the digests of all files."""
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def label_reads(system: fs.FileSystem) -> int:
    """Return how many files are read at a time for their labels, which fill the memory of all that are read."""
    return READS if isinstance(system, fs.LocalFileSystem) else REMOTE_READS


def find_range(labels: np.ndarray) -> Range:
    """Return the smallest and largest label; at most, or at least, -1."""
    return int(labels.min(initial=-1)), int(labels.max(initial=-1))


def _read_labels(system: fs.FileSystem, path: str, column: str, as_names: bool = False) -> np.ndarray:
    def read() -> pa.ChunkedArray:
        with system.open_input_file(path) as file:
            return pq.ParquetFile(file, pre_buffer=True).read(columns=[column])[column]

    with storage_errors("read", path):
        values = retrying(read, "read", path)
    return raw_labels(values, path, as_names)
