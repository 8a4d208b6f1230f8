"""How the labels in Parquet files, or in the names of their folders, become numbers of classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import fs

from raysl.data.sources.class_names import check_range, class_names, number_labels, renumber
from raysl.data.sources.label_column import parse_labels
from raysl.data.sources.parquet_columns import (
    WAY_OUT,
    Footers,
    agreed_classes,
    describe_classes,
    folder_label,
    label_kind,
)
from raysl.data.sources.parquet_labels import (
    REMEDY,
    check_width,
    count_classes,
    count_lists,
    find_classes,
    raw_labels,
)
from raysl.errors import ConfigError
from raysl.hashing import Int64s


@dataclass(frozen=True)
class Labelling:
    """Labels of a split of Parquet files.

    Args:
        column: column of the labels; None without one.
        stored: names of the files' own numbers, where the training images may number these classes in another way.
        is_multilabel: whether the column holds lists.
        has_names: whether labels are names.
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
) -> Labelling:
    """Return the labelling of files, with classes from the settings, the training images, the files, or all labels.

    Args:
        column: column of labels, or the key of folders such as `label=cat`; None: nothing is labelled.
        named: names of the classes in the settings; may be empty.
        training: labelling of the training images; None for these themselves.
    """
    schema = next(iter(footers.schemas.values()))
    kind = label_kind(schema, column)
    known = named or (() if training is None else training.classes)
    if column is None or kind is None:
        by_folder = None if column is None else _label_by_folder(files, column, named, training)
        if by_folder is None and named:
            raise ConfigError(
                f"data.classes= names {len(named):,} classes, and {files[0]} has no column of labels; "
                "set data.label_column="
            )
        return by_folder or Labelling(known or agreed_classes(footers.schemas))
    stored = () if named else agreed_classes(footers.schemas)
    if kind == "lists":
        if stored and known and known[: len(stored)] != stored:
            raise ConfigError(
                f"{files[0]} has the classes {describe_classes(stored)}, and the training images "
                f"{describe_classes(known)}; {WAY_OUT}"
            )
        classes = known or stored
        if classes and footers.label_width is not None:
            check_width(files[0], footers.label_width, classes)
        else:
            classes = count_lists(system, files, column, classes)
        return Labelling(classes, column, is_multilabel=True)
    is_plain = not (named or stored)
    if kind == "integers":
        _check_kind(files[0], training)
        counted = count_classes(system, footers.label_ranges, column, stored or known)
        return Labelling(known or counted, column, stored if known else (), has_plain_numbers=is_plain)
    if footers.has_names and (not known or set(stored) <= set(known)):
        return Labelling(known or stored, column, has_names=True)
    is_text = not pa.types.is_floating(schema.field(column).type)
    as_names = is_text and _are_names(named, training)
    classes, has_names = find_classes(system, files, column, known or stored, as_names)
    if not has_names:
        _check_kind(files[0], training)
    is_plain = is_plain and not has_names
    return Labelling(classes, column, has_names=has_names, has_plain_numbers=is_plain, as_names=as_names)


def _label_by_folder(
    files: Sequence[str], column: str, named: tuple[str, ...], training: Labelling | None
) -> Labelling | None:
    """Return the labelling by the names of folders such as `label=cat` (Hive partitions); None without them."""
    keys = [folder_label(path, column) for path in files]
    without = [path for path, key in zip(files, keys, strict=True) if key is None]
    if len(without) == len(files):
        return None
    if without:
        raise ConfigError(f"{without[0]} is in no folder {column}=..., but other files are; move it, or leave it out")
    as_names = _are_names(named, training)
    labels = parse_labels(keys, f"the folders {column}=... of {files[0]}", as_names=as_names, remedy=REMEDY)
    classes = named or (() if training is None else training.classes) or class_names(labels)
    has_names = labels.dtype.kind == "U"
    if has_names:
        labels = number_labels(labels, classes, f"a folder {column}=...")
    else:
        check_range(int(labels.min()), int(labels.max()), f"a folder {column}=...", len(classes))
        _check_kind(files[0], training)
    is_plain = not named and not has_names
    return Labelling(classes, has_names=has_names, has_plain_numbers=is_plain, as_names=as_names, by_file=labels)


def _are_names(named: tuple[str, ...], training: Labelling | None) -> bool:
    """Whether texts that look like numbers are names, since classes of the settings or the training images are so."""
    return any(name.isdecimal() for name in named) or (training is not None and training.has_names)


def _check_kind(path: str, training: Labelling | None) -> None:
    """Refuse numbers where the training images have names."""
    if training is not None and training.has_names:
        raise ConfigError(f"{path} has numbers as labels, and the training images have names; use one of both")
