"""Labels as a list has them: numbers, names, or one of each class for each image (multi-label)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from raysl.data.sources.class_names import LABELS, check_numbers, class_names
from raysl.data.sources.label_column import parse_labels
from raysl.data.sources.listing import composed, join_some
from raysl.data.sources.tables import Table
from raysl.errors import ConfigError

SEPARATOR = "|"
"""Character between the names of the classes of one image."""
SEVERAL = f"{LABELS}s"
"""Column that is read where there is none of the default name."""


@dataclass(frozen=True)
class Labels:
    """Labels of a list.

    Args:
        values: int64 [N] of numbers or text [N] of names, or int8 [N, K] of 1 present, 0 absent and -1 ignore.
        classes: names of the K columns; empty of columns without names.
        absent: entry of a class that has no column, 0 or -1.
        notes: descriptions for the user of labels that were found or not read, a line each.
    """

    values: np.ndarray
    classes: tuple[str, ...] = ()
    absent: int = -1
    notes: tuple[str, ...] = ()


def read_values(values: Sequence[Any], origin: str, lines: Sequence[int] | None, as_names: bool) -> Labels:
    """Parse a column of labels; texts such as `cat|dog`, and lists, make it multi-label.

    Args:
        values: numbers, texts, lists and None, in the order of the rows.
        lines: line of each value, for messages. Default: rows, counted from 1.
        as_names: whether each text is one name, also with `|` in it or if it looks like a number.
    """
    has_lists = any(isinstance(value, list) for value in values)
    items = chain.from_iterable(value for value in values if isinstance(value, list))
    if has_lists and not any(isinstance(item, str) for item in items):
        return Labels(_entries(values, origin))
    if not has_lists and (as_names or not any(isinstance(value, str) and SEPARATOR in value for value in values)):
        return Labels(parse_labels(values, origin, lines, as_names))
    cells = [_split(value, as_names) for value in values]
    rows = np.repeat(np.arange(len(cells)), [len(cell) for cell in cells])
    numbered = np.arange(len(cells)) + 1 if lines is None else np.asarray(lines)
    # all labels in one column, so that the rule for a column of single labels also holds here
    flat = list(chain.from_iterable(cells))
    present = parse_labels(flat, origin, numbered[rows].tolist(), as_names)
    classes = class_names(present)
    columns = present if present.dtype.kind == "i" else np.searchsorted(classes, present)
    is_label = present >= 0 if present.dtype.kind == "i" else present != ""
    matrix = np.zeros((len(cells), len(classes)), np.int8)
    matrix[rows[is_label], columns[is_label]] = 1
    # an empty list says that no class is present; an empty cell says nothing
    is_unlabelled = [not isinstance(value, list) and not matrix[row].any() for row, value in enumerate(values)]
    matrix[is_unlabelled] = -1
    note = f"{origin} names several classes an image: its labels are read as multi-label, of {len(classes):,} classes"
    return Labels(matrix, classes, 0, (note,))


def several(labels: Labels) -> Labels:
    """Return labels of one class each as multi-label ones, for a list beside one that is multi-label."""
    values = labels.values
    names = values if values.dtype.kind == "U" else np.where(values < 0, "", values.astype(str))
    classes, columns = np.unique(names, return_inverse=True)
    matrix = np.zeros((len(names), len(classes)), np.int8)
    matrix[np.arange(len(names)), columns] = 1
    matrix[names == ""] = -1
    is_class = classes != ""
    return Labels(matrix[:, is_class], tuple(classes[is_class].tolist()), 0, labels.notes)


def renumbered(labels: Labels, classes: tuple[str, ...], origin: str) -> np.ndarray:
    """Return multi-label labels [N, K] in the order of the training images' classes."""
    column = {composed(name): number for number, name in enumerate(classes)}
    names = [composed(name) for name in labels.classes]
    if unknown := [name for name in names if name not in column]:
        raise ConfigError(
            f"{origin} has classes that no training image has: {', '.join(map(repr, unknown[:5]))}; use the same names "
            "in both"
        )
    matrix = np.full((len(labels.values), len(classes)), labels.absent, np.int8)
    matrix[(labels.values == -1).all(1)] = -1
    matrix[:, [column[name] for name in names]] = labels.values
    return matrix


def table_labels(table: Table, path_column: str, label_column: str | None, as_names: bool) -> Labels | None:
    """Return the labels in a table: its column of labels, or a column of 0 and 1 for each class.

    Args:
        table: table with the columns of `label_columns`.
        label_column: column of the labels, which must exist unless it is the default; None: no labels are read.
        as_names: whether labels that look like numbers are names.
    """
    if label_column is None or not table.names:
        return None
    setting = "data.label_column= (null: unlabelled)"
    if label_column != LABELS or LABELS in table.columns:
        return read_values(table.column(label_column, setting), table.uri, table.lines, as_names)
    if SEVERAL in table.columns:
        labels = read_values(table.column(SEVERAL, setting), table.uri, table.lines, as_names)
        note = f"the labels of {table.uri} are read from its column {SEVERAL!r}"
        return Labels(labels.values, labels.classes, labels.absent, (note, *labels.notes))
    others = [name for name in table.names if name != path_column]
    if not others:
        return None
    listed = join_some(others, 5)
    matrix = _one_hot(table, others)
    if matrix is None:
        note = f"{table.uri} has no column {LABELS!r}, and nothing is labelled; its columns {listed}: set {setting}"
        return Labels(np.full(len(table.columns[path_column]), -1), notes=(note,))
    if ((matrix == 1).sum(1) == 1).all() and (matrix >= 0).all():
        note = f"the labels of {table.uri} are read from its columns of 0 and 1, one 1 a row: {listed}"
        return Labels(np.array(others, str)[matrix.argmax(1)], notes=(note,))
    note = f"the labels of {table.uri} are read as multi-label, from its columns of 1, 0 and -1: {listed}"
    return Labels(matrix, tuple(others), -1, (note,))


def label_columns(names: Sequence[str], path_column: str, label_column: str | None) -> Sequence[str]:
    """Return those of a table's columns that are read for paths and labels."""
    if label_column is None:
        return [path_column]
    if label_column == LABELS and LABELS not in names and SEVERAL not in names:
        return list(dict.fromkeys((path_column, LABELS, SEVERAL, *names)))
    return list(dict.fromkeys((path_column, label_column, SEVERAL)))


def _split(value: Any, as_names: bool) -> list[Any]:
    if isinstance(value, list):
        return value
    return value.split(SEPARATOR) if isinstance(value, str) and not as_names else [value]


def _entries(values: Sequence[Any], origin: str) -> np.ndarray:
    """Return lists of 1, 0 and -1, one for each class, as int8 [N, K]; None becomes -1."""
    lengths = {len(value) for value in values if value is not None} if all(map(_is_entry, values)) else set()
    if len(lengths) != 1:
        rule = "a list for each image, with 1 present, 0 absent or -1 ignore for each class"
        raise ConfigError(
            f"{origin} has other labels beside lists of numbers, or lists of several lengths; give {rule}"
        )
    width = lengths.pop()
    matrix = np.array([[-1] * width if value is None else value for value in values], np.int64)
    check_numbers(matrix, origin)
    return matrix.astype(np.int8)


def _is_entry(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(type(item) is int for item in value))


def _one_hot(table: Table, names: Sequence[str]) -> np.ndarray | None:
    """Return the columns as int8 [N, K]; None unless they are two or more of 1, 0 and -1 alone."""
    columns = []
    for name in names:
        try:
            column = parse_labels(table.columns.get(name, []), table.uri)
        except ConfigError:
            return None
        if column.dtype.kind == "U" or not len(column) or column.max() > 1:
            return None
        columns.append(column)
    return np.stack(columns, 1).astype(np.int8) if len(columns) > 1 else None
