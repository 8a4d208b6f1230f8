"""Labels of images: parsing a column of them, checking numbers, and numbering the names of classes."""

import re
from collections.abc import Sequence
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from raysl.data.sources.listing import composed, join_some
from raysl.data.split import Int64s, Split
from raysl.errors import ConfigError

LABELS = "label"
"""Default column or field of labels; it may be missing, one that the user names may not."""
LARGEST = 10_000_000  # larger numbers are ids, not classes


def filled_lists(lists: Sequence[list[int | None] | None], width: int) -> np.ndarray:
    """Return lists of labels as int64 [N, width], with -1 in place of a missing list or label.

    >>> filled_lists([[1, None], None], 2).tolist()
    [[1, -1], [-1, -1]]
    """
    full = [[-1] * width if row is None else [-1 if label is None else label for label in row] for row in lists]
    return np.array(full, np.int64).reshape(len(lists), width)


def check_numbers(labels: np.ndarray, origin: str) -> None:
    """Refuse labels below -1 or above LARGEST, and of several a label that is not -1, 0 or 1.

    Args:
        labels: int [N], or [N, K] of a multi-label dataset.
    """
    if labels.ndim == 1:
        check_range(int(labels.min(initial=-1)), int(labels.max(initial=-1)), origin)
        return
    is_wrong = (labels < -1) | (labels > 1)
    if is_wrong.any():
        rule = "multi-label entries are 1 for present, 0 for absent or -1 for ignore"
        raise ConfigError(f"{origin} has the label {labels[is_wrong][0]}; {rule}")


def check_range(least: int, most: int, origin: str, num_classes: int | None = None) -> None:
    """Refuse labels below -1, above LARGEST, or not below `num_classes`."""
    if least < -1:
        raise ConfigError(f"{origin} has the label {least}; labels are 0, 1, ..., and -1 is unlabelled")
    if num_classes is not None and most >= num_classes:
        raise ConfigError(
            f"{origin} has the label {most}, but the training images, or data.classes=, have {num_classes:,} classes; "
            "number the classes in the same way"
        )
    if most > LARGEST:
        raise ConfigError(
            f"{origin} has the label {most}; the largest is {LARGEST:,}: are these ids? "
            "set data.label_column= (data.label_key= of webdataset) to the classes"
        )


def class_names(labels: np.ndarray) -> tuple[str, ...]:
    """Return the names of the classes: the texts, sorted, or the numbers up to the largest one.

    >>> class_names(np.array(["dog", "cat", ""]))
    ('cat', 'dog')
    """
    if labels.ndim == 2:
        return tuple(str(number) for number in range(labels.shape[1]))
    if labels.dtype.kind == "U":
        return tuple(sorted({composed(name) for name in np.unique(labels).tolist() if name}))
    return tuple(str(number) for number in range(int(labels.max(initial=-1)) + 1))


class Numbered(NamedTuple):
    """Labels as numbers, int64 [N], the names of their classes, and whether labels are names."""

    labels: Int64s
    classes: tuple[str, ...]
    has_names: bool


def parse_and_number(
    values: Sequence[Any],
    origin: str,
    lines: Sequence[int | str] | None,
    named: tuple[str, ...],
    training: tuple[tuple[str, ...], bool] | None,
) -> Numbered:
    """Parse texts of Parquet files or tars as `parse_labels` does, and number their classes.

    Args:
        named: names of the classes in the settings; empty: those of the training images, or of the labels.
        training: classes of the training images, and whether their labels are names; None for these themselves.
    """
    known, are_names = training or ((), False)
    labels = parse_labels(values, origin, lines, are_names or any(name.isdecimal() for name in named), REMEDY)
    classes = named or known or class_names(labels)
    if labels.dtype.kind == "U":
        return Numbered(number_labels(labels, classes, origin), classes, True)
    if len(labels):
        largest = int(labels.argmax())
        where = origin if lines is None else str(lines[largest])
        check_range(int(labels.min()), int(labels[largest]), where, len(classes))
    return Numbered(labels, classes, False)


def number_labels(texts: np.ndarray, classes: tuple[str, ...], origin: str) -> Int64s:
    """Replace the names of classes by their numbers; empty texts become -1."""
    stored, inverse = np.unique(texts, return_inverse=True)
    names = [composed(name) for name in stored.tolist()]
    numbers = {"": -1} | {composed(name): number for number, name in enumerate(classes)}
    _refuse_unseen([repr(name) for name in names if name not in numbers], origin, "use the same names in both")
    return np.array([numbers[name] for name in names], np.int64)[inverse.reshape(-1)]


def renumber(labels: Int64s, names: tuple[str, ...], classes: tuple[str, ...], origin: str) -> Int64s:
    """Replace numbers of classes in one numbering by those of the same names in another.

    Args:
        labels: int64 [N], -1 where unlabelled.
        names: names of the classes, by `labels`; empty: the numbers stay.
        classes: names of the same classes, by the numbers to return.

    >>> renumber(np.array([0, 1, -1]), ("dog", "cat"), ("cat", "dog"), "val.parquet")
    array([ 1,  0, -1])
    """
    if not names or names == classes[: len(names)]:
        return labels
    used = np.unique(labels[labels >= 0])
    numbers = np.full(len(names) + 1, -1, np.int64)  # -1 indexes the last
    numbers[used] = number_labels(np.array([names[number] for number in used], str), classes, origin)
    renumbered: Int64s = numbers[labels]
    return renumbered


def check_seen(held_out: Split, train: Split, origin: str) -> None:
    """Refuse held-out numbers that no training image has, as names are refused: one of both may begin at 1.

    Args:
        held_out, train: images with one label each; where reading all labels would take long, nothing is checked.
    """
    if train.is_multilabel or not (held_out.has_quick_labels and train.has_quick_labels):
        return
    known, labels = (np.unique(split.labels_of(np.arange(split.num_samples))) for split in (train, held_out))
    if (known >= 0).any():
        unseen = np.setdiff1d(labels[labels >= 0], known)
        _refuse_unseen(
            list(map(str, unseen.tolist())), origin, "number the classes alike in both, or write their names"
        )


def _refuse_unseen(labels: Sequence[str], origin: str, remedy: str) -> None:
    if labels:
        raise ConfigError(f"{origin} has labels that no training image has: {join_some(labels, 5)}; {remedy}")


REMEDY = "give data.classes= the names"
"""What a user of Parquet files or tars does whose labels are names though they look like numbers."""
UNLABELLED = frozenset({"", "nan", "null", "-1"})
"""Texts, in lower case, of cells without a label."""
_WHOLE = re.compile(r"([+-]?\d{1,30})(?:\.0*)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def parse_labels(
    values: Sequence[Any],
    origin: str,
    lines: Sequence[int | str] | None = None,
    as_names: bool = False,
    remedy: str = "set data.label_names=true",
) -> np.ndarray:
    """Parse a column of labels of one class each: int64 [N] of a column of numbers, else texts [N].

    None, NaN and the texts `nan`, `null` and `-1`, in any case, and empty texts are unlabelled: -1 beside numbers, an
    empty text beside names. `1`, `1.0` and the text of either are the same number.

    Args:
        values: integers, whole floats, texts and None, in the order of the rows.
        lines: line of each value, or a text with its position, for messages. Default: rows, counted from 1.
        as_names: whether numbers are names too.
        remedy: action of the user that sets `as_names`, for messages.

    Raises:
        ConfigError: if a value is of another type, a text stands beside numbers, a number is no whole one, or is below
            -1 or above LARGEST.

    >>> parse_labels(["3", "1.0", None, "nan"], "labels.csv")
    array([ 3,  1, -1, -1])
    >>> parse_labels(["3", "b", ""], "labels.csv", as_names=True).tolist()
    ['3', 'b', '']
    """

    def where(row: int) -> str:
        line = f"row {row + 1}" if lines is None else lines[row]
        return line if isinstance(line, str) else f"line {line}"

    wrong = next((row for row, value in enumerate(values) if type(value) not in (NoneType, int, float, str)), None)
    if wrong is not None:
        raise ConfigError(f"{origin}, {where(wrong)}: the label {values[wrong]!r}; write whole numbers or names")
    parsed = {value: _parse(value, as_names) for value in dict.fromkeys(values)}
    first = next((row for row, value in enumerate(values) if isinstance(parsed[value], int)), None)
    if not as_names:
        wrong = next((row for row, value in enumerate(values) if _is_wrong(parsed[value], first is not None)), None)
    if wrong is not None:
        others = "" if first is None else f", but {where(first)} has the number {values[first]!r}"
        raise ConfigError(
            f"{origin}, {where(wrong)}: the label {values[wrong]!r} is no whole number{others}; leave the labels of "
            f"unlabelled images empty, or {remedy} if all labels are names, numbers too"
        )
    labels = [parsed[value] for value in values]
    if any(isinstance(label, str) for label in parsed.values()):
        return np.array(["" if label is None else label for label in labels], str)
    numbers: list[Any] = [-1 if label is None else label for label in labels]
    check_range(min(numbers, default=-1), max(numbers, default=-1), origin)
    return np.array(numbers, np.int64)


def _parse(value: float | str | None, as_names: bool) -> int | str | None:
    """Return a number, a name, or None of an unlabelled cell."""
    whole = isinstance(value, float) and value.is_integer()
    text = "" if value is None else str(int(value) if whole else value).strip()
    number = _WHOLE.fullmatch(text)
    if text.lower() in UNLABELLED or (number is not None and int(number[1]) == -1):
        return None
    return composed(text) if as_names or number is None else int(number[1])


def _is_wrong(label: int | str | None, beside_numbers: bool) -> bool:
    return isinstance(label, str) and (beside_numbers or _DECIMAL.fullmatch(label) is not None)
