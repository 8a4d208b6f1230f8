"""Labels in Parquet files, or in the names of their folders: reading them, and how they become numbers of classes."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from raysl.data.sources.class_names import (
    REMEDY,
    check_numbers,
    check_range,
    class_names,
    filled_lists,
    number_labels,
    parse_and_number,
    parse_labels,
    renumber,
)
from raysl.data.sources.parquet_columns import (
    CLASSES_HINT,
    Footers,
    Range,
    agreed_classes,
    describe_classes,
    folder_label,
    label_kind,
)
from raysl.errors import ConfigError
from raysl.hashing import Int64s, digest_each
from raysl.storage.addresses import storage_errors
from raysl.storage.reads import REMOTE_READS, in_parallel, retrying

READS = 8  # local files at a time


def raw_labels(column: pa.ChunkedArray, path: str, as_names: bool = False) -> np.ndarray:
    """Return labels as they are stored: int64 [B], text [B], or int64 [B, K]; null becomes -1 or an empty text.

    Args:
        column: column of integers, of texts or floats, which `parse_labels` reads, or of lists.

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
    labels = filled_lists(rows, lengths.pop() if lengths else 0)
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
        classes: names of the classes; empty: those of the labels.
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
    """Read all lists of labels, check that they have one label of each class, and return the names of the classes."""

    def read(path: str) -> tuple[str, ...]:
        return class_names(_read_labels(system, path, column))

    for path, names in zip(files, in_parallel(read, files, label_reads(system)), strict=True):
        if names:
            check_width(path, len(names), classes)
            classes = classes or names
    return classes


def check_width(path: str, width: int, classes: tuple[str, ...]) -> None:
    """Refuse lists of labels that are not one for each class."""
    if classes and width != len(classes):
        raise ConfigError(f"{path} has lists of {width} labels for {len(classes)} classes; give one for each class")


def count_classes(
    system: fs.FileSystem, ranges: dict[str, Range | None], column: str, classes: tuple[str, ...]
) -> tuple[str, ...]:
    """Check all integer labels, and return the names of the classes, by default the numbers up to the largest label.

    Args:
        ranges: smallest and largest label of each file; None: the column is read.
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
    return digest_each(digests)


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


@dataclass(frozen=True)
class Labelling:
    """Labels of a split of Parquet files.

    Args:
        column: column of the labels; None without one.
        stored: names of the files' own numbers, where the training images may number these classes in another way.
        has_plain_numbers: whether labels are numbers that neither the settings nor the files name.
        as_names: whether texts that look like numbers are names.
        by_file: int64 [F], label of the rows of each file, where its folder has it.
    """

    classes: tuple[str, ...]
    column: str | None = None
    stored: tuple[str, ...] = ()
    is_multilabel: bool = False
    has_names: bool = False
    has_plain_numbers: bool = False
    as_names: bool = False
    by_file: Int64s | None = None

    @property
    def is_labelled(self) -> bool:
        """Whether a column or folders have the labels."""
        return self.column is not None or self.by_file is not None

    def numbers(self, column: pa.ChunkedArray, path: str) -> Int64s:
        """Return the labels in a column as numbers of the classes: int64 [B], or [B, K]."""
        labels = raw_labels(column, path, self.as_names)
        if labels.ndim == 2:
            # a row group of nulls has lists of no length
            return labels if labels.shape[1] else np.full((len(labels), len(self.classes)), -1, np.int64)
        if labels.dtype.kind == "U":
            return number_labels(labels, self.classes, path)
        return renumber(labels, self.stored, self.classes, path)


def find_labelling(
    system: fs.FileSystem,
    files: Sequence[str],
    footers: Footers,
    column: str | None,
    named: tuple[str, ...],
    training: Labelling | None,
    root: str,
) -> Labelling:
    """Return the labelling of files, with classes from the settings, the training images, the files, or all labels.

    Args:
        column: column of labels, or the key of folders such as `label=cat`; None: nothing is labelled.
        named: names of the classes in the settings; may be empty.
        training: labelling of the training images; None for these themselves.
        root: path of the folder of the files, see `folder_label`.
    """
    schema = next(iter(footers.schemas.values()))
    kind = label_kind(schema, column)
    known = named or (() if training is None else training.classes)
    if column is None or kind is None:
        by_folder = None if column is None else _label_by_folder(files, column, named, training, root)
        if by_folder is None and named:
            raise ConfigError(
                f"data.classes= names {len(named):,} classes, and {files[0]} has no column of labels; "
                "set data.label_column="
            )
        return by_folder or Labelling(known or agreed_classes(footers.schemas))
    _check_lists(files[0], kind == "lists", training)
    stored = () if named else agreed_classes(footers.schemas)
    if kind == "lists":
        if stored and known and known[: len(stored)] != stored:
            raise ConfigError(
                f"{files[0]} has the classes {describe_classes(stored)}, and the training images "
                f"{describe_classes(known)}; {CLASSES_HINT}"
            )
        classes = known or stored
        if classes and footers.label_width is not None:
            check_width(files[0], footers.label_width, classes)
        else:
            classes = count_lists(system, files, column, classes)
        return Labelling(classes, column, is_multilabel=True)
    is_plain = not (named or stored)
    if kind == "integers":
        _check_kind(files[0], training, stored)
        counted = count_classes(system, footers.label_ranges, column, stored or known)
        return Labelling(known or counted, column, stored if known else (), has_plain_numbers=is_plain)
    if footers.has_names and (not known or set(stored) <= set(known)):
        return Labelling(known or stored, column, has_names=True)
    is_text = not pa.types.is_floating(schema.field(column).type)
    as_names = is_text and _are_names(named, training)
    # numbers are those of the classes that the files store; texts are names of the classes that are known
    expected = known or stored if is_text else stored or known
    classes, has_names = find_classes(system, files, column, expected, as_names)
    of_numbers = () if is_text or not known else stored
    if not has_names:
        _check_kind(files[0], training, of_numbers)
    is_plain = is_plain and not has_names
    return Labelling(
        known or classes, column, of_numbers, has_names=has_names, has_plain_numbers=is_plain, as_names=as_names
    )


def _label_by_folder(
    files: Sequence[str], column: str, named: tuple[str, ...], training: Labelling | None, root: str
) -> Labelling | None:
    """Return the labelling by the names of folders such as `label=cat` (Hive partitions); None without them."""
    keys = [folder_label(path, column, root) for path in files]
    without = [path for path, key in zip(files, keys, strict=True) if key is None]
    if len(without) == len(files):
        return None
    if without:
        raise ConfigError(f"{without[0]} is in no folder {column}=..., but other files are; move it, or leave it out")
    _check_lists(files[0], False, training)
    known = None if training is None else (training.classes, training.has_names)
    labels, classes, has_names = parse_and_number(keys, f"the folders {column}=... of {files[0]}", None, named, known)
    return Labelling(classes, has_names=has_names, has_plain_numbers=not (named or has_names), by_file=labels)


def _are_names(named: tuple[str, ...], training: Labelling | None) -> bool:
    """Whether texts that look like numbers are names, since classes of the settings or the training images are so."""
    return any(name.isdecimal() for name in named) or (training is not None and training.has_names)


def _check_lists(path: str, is_multilabel: bool, training: Labelling | None) -> None:
    """Refuse lists of labels where the training images have one label each, and the reverse."""
    if training is None or not training.is_labelled or training.is_multilabel == is_multilabel:
        return
    lists, single = "lists of labels", "one label for each image"
    kind, expected = (lists, single) if is_multilabel else (single, lists)
    raise ConfigError(f"{path} has {kind}, and the training images have {expected}; use one of both")


def _check_kind(path: str, training: Labelling | None, stored: tuple[str, ...]) -> None:
    """Refuse numbers where the training images have names, unless the files store the names of their numbers."""
    if training is not None and training.has_names and not stored:
        raise ConfigError(f"{path} has numbers as labels, and the training images have names; use one of both")
