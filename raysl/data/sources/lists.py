"""Read lists of images and of labels from files: arrays (.npy), lines (.txt) and tables."""

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np
from pyarrow import fs

from raysl.config.places import IMAGES
from raysl.data.sources.class_names import LABELS, check_numbers, class_names, filled_lists, parse_labels
from raysl.data.sources.listing import composed, is_image_or_array, join_some, parse_frame
from raysl.data.sources.tables import TABLES, Table, read_lines, read_table
from raysl.errors import ConfigError
from raysl.storage.addresses import open_uri
from raysl.storage.whole import plain_name, read_whole

SEPARATOR = "|"
"""Character between the names of several classes of one image."""
PLURAL_COLUMN = f"{LABELS}s"
"""Column of labels that is read if there is none of the default name."""


@dataclass(frozen=True)
class Labels:
    """Labels of a list.

    Args:
        values: int64 [N] of numbers or text [N] of names, or int8 [N, K] of 1 present, 0 absent and -1 ignore.
        classes: names of the K columns, or empty if they have none.
        absent: value for a class without a column, 0 or -1.
        notes: lines for the user on how the labels were read.
    """

    values: np.ndarray
    classes: tuple[str, ...] = ()
    absent: int = -1
    notes: tuple[str, ...] = ()


def read_values(values: Sequence[Any], origin: str, lines: Sequence[int] | None, as_names: bool) -> Labels:
    """Parse a column of labels; texts such as `cat|dog`, and lists, make it multi-label.

    Args:
        values: numbers, texts, lists and None, in the order of the rows.
        lines: line number of each value, for messages; default: rows, counted from 1.
        as_names: whether each text is one name, even if it contains `|` or looks like a number.
    """
    has_lists = any(isinstance(value, list) for value in values)
    items = chain.from_iterable(value for value in values if isinstance(value, list))
    if has_lists and not any(isinstance(item, str) for item in items):
        return Labels(_multilabel_matrix(values, origin))
    if not has_lists and (as_names or not any(isinstance(value, str) and SEPARATOR in value for value in values)):
        return Labels(parse_labels(values, origin, lines, as_names))
    cells = [_split(value, as_names) for value in values]
    rows = np.repeat(np.arange(len(cells)), [len(cell) for cell in cells])
    numbered = np.arange(len(cells)) + 1 if lines is None else np.asarray(lines)
    # all labels are parsed as one column, by the same rules as a column of single labels
    flat = list(chain.from_iterable(cells))
    present = parse_labels(flat, origin, numbered[rows].tolist(), as_names)
    classes = class_names(present)
    columns = present if present.dtype.kind == "i" else np.searchsorted(classes, present)
    is_label = present >= 0 if present.dtype.kind == "i" else present != ""
    matrix = np.zeros((len(cells), len(classes)), np.int8)
    matrix[rows[is_label], columns[is_label]] = 1
    # an empty list means that no class is present; an empty cell means that nothing is known
    is_unlabelled = [not isinstance(value, list) and not matrix[row].any() for row, value in enumerate(values)]
    matrix[is_unlabelled] = -1
    note = f"{origin} has several classes per image: its labels are read as multi-label, of {len(classes):,} classes"
    return Labels(matrix, classes, 0, (note,))


def as_multilabel(labels: Labels) -> Labels:
    """Return labels of one class each as multi-label ones, for use beside another list that is multi-label."""
    values = labels.values
    names = values if values.dtype.kind == "U" else np.where(values < 0, "", values.astype(str))
    classes, columns = np.unique(names, return_inverse=True)
    matrix = np.zeros((len(names), len(classes)), np.int8)
    matrix[np.arange(len(names)), columns] = 1
    matrix[names == ""] = -1
    is_class = classes != ""
    return Labels(matrix[:, is_class], tuple(classes[is_class].tolist()), 0, labels.notes)


def renumbered(labels: Labels, classes: tuple[str, ...], origin: str) -> np.ndarray:
    """Return multi-label labels as [N, K], with a column for each of the training images' classes."""
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


def table_labels(
    table: Table, path_column: str, label_column: str | None, as_names: bool, is_multilabel: bool
) -> Labels | None:
    """Return the labels of a table, from its column of labels or from a column of 0 and 1 for each class.

    Args:
        label_column: column of the labels, which must exist unless it has the default name; None to read no labels.
        is_multilabel: whether columns of 0 and 1 stay multi-label if each row has one 1, as the training images are.
    """
    if label_column is None or not table.names:
        return None
    setting = "data.label_column= (null: unlabelled)"
    if label_column != LABELS or LABELS in table.columns:
        return read_values(table.column(label_column, setting), table.uri, table.lines, as_names)
    if PLURAL_COLUMN in table.columns:
        labels = read_values(table.column(PLURAL_COLUMN, setting), table.uri, table.lines, as_names)
        note = f"the labels of {table.uri} are read from its column {PLURAL_COLUMN!r}"
        return Labels(labels.values, labels.classes, labels.absent, (note, *labels.notes))
    others = [name for name in table.names if name != path_column]
    if not others:
        return None
    listed = join_some(others, 5)
    matrix = _one_hot(table, others)
    if matrix is None:
        note = f"{table.uri} has no column {LABELS!r}, and nothing is labelled; its columns {listed}: set {setting}"
        return Labels(np.full(len(table.columns[path_column]), -1), notes=(note,))
    if not is_multilabel and ((matrix == 1).sum(1) == 1).all() and (matrix >= 0).all():
        note = f"the labels of {table.uri} are read from its columns of 0 and 1, one 1 a row: {listed}"
        return Labels(np.array(others, str)[matrix.argmax(1)], notes=(note,))
    note = f"the labels of {table.uri} are read as multi-label, from its columns of 1, 0 and -1: {listed}"
    return Labels(matrix, tuple(others), -1, (note,))


def label_columns(names: Sequence[str], path_column: str, label_column: str | None) -> Sequence[str]:
    """Return the columns of a table that are read for paths and labels."""
    if label_column is None:
        return [path_column]
    if label_column == LABELS and LABELS not in names and PLURAL_COLUMN not in names:
        return list(dict.fromkeys((path_column, LABELS, PLURAL_COLUMN, *names)))
    return list(dict.fromkeys((path_column, label_column, PLURAL_COLUMN)))


def _split(value: Any, as_names: bool) -> list[Any]:
    if isinstance(value, list):
        return value
    return value.split(SEPARATOR) if isinstance(value, str) and not as_names else [value]


def _multilabel_matrix(values: Sequence[Any], origin: str) -> np.ndarray:
    """Return lists of 1, 0 and -1, one for each class, as int8 [N, K]; None, also in a list, becomes -1."""
    lengths = {len(value) for value in values if value is not None} if all(map(_is_label_list, values)) else set()
    if len(lengths) != 1:
        rule = "a list for each image, with 1 present, 0 absent or -1 ignore for each class"
        raise ConfigError(
            f"{origin} mixes lists of numbers with other labels, or lists of different lengths; give {rule}"
        )
    matrix = filled_lists(values, lengths.pop())
    check_numbers(matrix, origin)
    return matrix.astype(np.int8)


def _is_label_list(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(type(item) in (int, NoneType) for item in value))


def _one_hot(table: Table, names: Sequence[str]) -> np.ndarray | None:
    """Return the columns as int8 [N, K] if there are several and all hold only 1, 0 and -1; else None."""
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


FORMATS = (".npy", ".txt", *TABLES)
_CHUNK = 1 << 16


def read_list(uri: str) -> list[int] | list[str]:
    """Read a list of integers or texts: one per non-blank line, or a one-dimensional array."""
    if list_format(uri) == ".npy":
        array = read_array(uri)
        if array.ndim != 1:
            raise ConfigError(f"{uri} holds an array of shape {list(array.shape)}; save one of one dimension")
        return [value for part in array_chunks(array) for value in part]
    return [line.strip() for _, line in read_lines(uri)]


def read_array(uri: str) -> np.ndarray:
    """Open an array of integers or texts; a local one is mapped from disk."""
    system, path = open_uri(uri)
    is_mapped = isinstance(system, fs.LocalFileSystem) and path.lower().endswith(".npy") and os.path.isfile(path)
    source = path if is_mapped else io.BytesIO(read_whole(uri))
    try:
        array: np.ndarray = np.load(source, mmap_mode="r" if is_mapped else None, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it holds several arrays")
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"cannot read {uri} as an array: {str(error).splitlines()[0]}; save integers, or texts of fixed width, "
            "with np.save(file, np.array(texts, dtype=str))"
        ) from error
    if array.dtype.kind not in "iuUS":
        raise ConfigError(f"{uri} holds {array.dtype}, not integers or texts")
    return array


def array_chunks(array: np.ndarray, errors: str = "backslashreplace") -> Iterator[list[Any]]:
    """Yield the values of an array in chunks; bytes are decoded to texts, with `errors` as in `bytes.decode`."""
    for start in range(0, len(array), _CHUNK):
        part = np.asarray(array[start : start + _CHUNK])
        yield (np.char.decode(part, "utf-8", errors) if part.dtype.kind == "S" else part).tolist()


def list_format(uri: str) -> str:
    """Return the ending of a list's name, one of FORMATS."""
    name = plain_name(uri)
    ending = next((ending for ending in FORMATS if name.endswith(ending)), None)
    if ending is None:
        raise ConfigError(
            f"{uri} is not a list; the name of a list ends in {', '.join(FORMATS)}, optionally followed by .gz, .bz2 "
            "or .zst"
        )
    return ending


_ENDING = rf"\.(?:{'|'.join(IMAGES)})"
_LABEL_WITH_BLANKS = re.compile(rf"\S.*{_ENDING}(?:#\d+)?\s+(?!.*{_ENDING}$)[^/]*$", re.IGNORECASE)


def read_image_list(
    uri: str, path_column: str, label_column: str | None, as_names: bool = False, is_multilabel: bool = False
) -> tuple[Iterable[str], Labels | None]:
    """Read the paths of a list of images, and their labels, or None if it has no labels.

    Args:
        uri: address of an array of texts (.npy), of lines with a path and maybe a label (.txt), or of a table.
        label_column: column of labels in a table; None to read no labels.
        is_multilabel: see `table_labels`.

    Raises:
        ConfigError: if the file is no such list, lacks a column that the user named, or has labels for some images
            only.
    """
    kind = list_format(uri)
    if kind == ".npy":
        array = read_array(uri)
        if array.ndim != 1 or array.dtype.kind not in "US":
            raise ConfigError(f"{uri} holds {array.dtype} of shape {list(array.shape)}, not a list of paths")
        return chain.from_iterable(array_chunks(array, "surrogateescape")), None
    if kind == ".txt":
        return _read_image_lines(uri, as_names)
    table = read_table(uri, path_column, lambda names: label_columns(names, path_column, label_column))
    paths = table.column(path_column, "data.path_column=")
    for row, path in enumerate(paths):
        if not isinstance(path, str) or not path:
            raise ConfigError(f"{table.where(row)}: no text {path_column!r}; set data.path_column=")
    return paths, table_labels(table, path_column, label_column, as_names, is_multilabel)


def _read_image_lines(uri: str, as_names: bool) -> tuple[list[str], Labels | None]:
    rows = [(number, *_path_and_label(line)) for number, line in read_lines(uri)]
    paths = [path for _, path, _ in rows]
    blanks = next((number for number, path, _ in rows if _LABEL_WITH_BLANKS.match(path)), None)
    if blanks is not None:
        raise ConfigError(f"{uri}, line {blanks}: a label that contains blanks must follow a tab")
    is_labelled = [label is not None for _, _, label in rows]
    if not any(is_labelled):
        return paths, None
    if not all(is_labelled):
        line = rows[is_labelled.index(False)][0]
        raise ConfigError(f"{uri}, line {line}: no label, but other lines have one; write -1 for unlabelled")
    return paths, read_values([label for _, _, label in rows], uri, [number for number, _, _ in rows], as_names)


def read_labels(uri: str, label_column: str, as_names: bool = False) -> Labels:
    """Read a list of labels.

    Args:
        uri: address of an array (.npy) [N], or [N, K] if multi-label, of lines with a label each (.txt), or a table.
        label_column: column of labels in a table, which must exist.
    """
    kind = list_format(uri)
    if kind == ".txt":
        rows = list(read_lines(uri))
        return read_values([label for _, label in rows], uri, [number for number, _ in rows], as_names)
    if kind != ".npy":
        table = read_table(uri, label_column, lambda _: [label_column])
        return read_values(table.column(label_column, "data.label_column="), uri, table.lines, as_names)
    array = read_array(uri)
    if array.ndim == 1:
        return read_values(list(chain.from_iterable(array_chunks(array))), uri, None, as_names)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ConfigError(f"{uri} holds {array.dtype} of shape {list(array.shape)}, not labels [N] or [N, classes]")
    labels = np.asarray(array).astype(np.int64)
    check_numbers(labels, uri)
    return Labels(labels)


def _path_and_label(line: str) -> tuple[str, str | None]:
    path, tab, label = line.rpartition("\t")
    if tab:
        return path.strip(), label.strip()
    # paths may contain blanks, so the last word is a label only if an image's ending comes before it
    ends = line.strip().rsplit(maxsplit=1)
    names = [parse_frame(end)[0] for end in ends]
    if len(ends) == 2 and is_image_or_array(names[0]) and not is_image_or_array(names[1]):
        return ends[0], ends[1]
    return line.strip(), None
