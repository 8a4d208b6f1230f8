"""Labels as datasets write them, integers or names, to the numbers of classes."""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from raysl.errors import ConfigError
from raysl.hashing import Int64s

LABELS = "label"  # the column or field of labels that may be absent; one that the user names may not
LARGEST = 10_000_000  # a number above it is an id
_SHOWN = 5


def parsed(values: Sequence[Any], origin: str) -> np.ndarray:
    """Labels of one class each: int64 [N] where all are whole numbers, else texts [N].

    Args:
        values: integers, also as 1.0, which pandas writes, or texts; None and empty texts are unlabelled: -1, or an
            empty text.
        origin: where they stand, for messages.

    Raises:
        ConfigError: if a value is neither integer nor text, or a number is below -1 or above LARGEST.
    """
    wrong = next((value for value in values if not _is_label(value)), None)
    if wrong is not None:
        raise ConfigError(f"{origin} has the label {wrong!r}; write integers or names")
    try:
        numbers = [-1 if value is None or value == "" else whole(value) for value in values]
    except ValueError:
        return np.array(["" if value is None else str(value) for value in values], str)
    check_range(min(numbers, default=-1), max(numbers, default=-1), origin)
    return np.array(numbers, np.int64)


def whole(value: int | float | str) -> int:
    """An integer, of a number or a text such as `1` or `1.0`.

    Raises:
        ValueError: if it is none.
    """
    try:
        return int(value)
    except ValueError:
        if not isinstance(value, str):
            raise
        return int(re.sub(r"\.0+\s*$", "", value))


def _is_label(value: Any) -> bool:
    return value is None or type(value) in (int, str) or (type(value) is float and value.is_integer())


def check_numbers(labels: np.ndarray, origin: str) -> None:
    """Refuse integers that are no labels.

    Args:
        labels: int [N], or [N, K] of a multi-label dataset.
        origin: where they stand, for messages.

    Raises:
        ConfigError: if a label is below -1 or above LARGEST, or one of several is not -1, 0 or 1.
    """
    if labels.ndim == 1:
        check_range(int(labels.min(initial=-1)), int(labels.max(initial=-1)), origin)
        return
    is_wrong = (labels < -1) | (labels > 1)
    if is_wrong.any():
        rule = "of several labels each is 1 for present, 0 for absent or -1 for ignore"
        raise ConfigError(f"{origin} has the label {labels[is_wrong][0]}; {rule}")


def check_range(least: int, most: int, origin: str, num_classes: int | None = None) -> None:
    """Refuse integers that are no labels, or number no class.

    Args:
        least, most: the smallest and the largest label, of any size.
        origin: where they stand, for messages.
        num_classes: classes that there are; default: the labels say so themselves.

    Raises:
        ConfigError: if a label is below -1 or above LARGEST, or is not below `num_classes`.
    """
    if least < -1:
        raise ConfigError(f"{origin} has the label {least}; labels are 0, 1, ..., and -1 is unlabelled")
    if num_classes is not None and most >= num_classes:
        raise ConfigError(
            f"{origin} has the label {most}, and the training images, or data.classes=, have {num_classes:,} classes; "
            "number and name them alike"
        )
    if most > LARGEST:
        raise ConfigError(
            f"{origin} has the label {most}; the largest is {LARGEST:,}: are these ids? "
            "set data.label_column= (data.label_key= of webdataset) to the classes"
        )


def class_names(labels: np.ndarray) -> tuple[str, ...]:
    """Names of the classes by number: the texts, sorted, or else the numbers up to the largest one."""
    if labels.ndim == 2:
        return tuple(str(number) for number in range(labels.shape[1]))
    if labels.dtype.kind == "U":
        return tuple(name for name in np.unique(labels).tolist() if name)
    return tuple(str(number) for number in range(int(labels.max(initial=-1)) + 1))


def numbered(texts: np.ndarray, classes: tuple[str, ...], origin: str) -> Int64s:
    """Numbers of the classes that texts name, -1 where they are empty.

    Raises:
        ConfigError: if a name is none of the classes.
    """
    found, place = np.unique(texts, return_inverse=True)
    number_of = {"": -1} | {name: number for number, name in enumerate(classes)}
    unknown = [name for name in found.tolist() if name not in number_of]
    if unknown:
        some = ", ".join(repr(name) for name in unknown[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        raise ConfigError(f"{origin} has labels that no training image has: {some}; name classes alike in both")
    return np.array([number_of[name] for name in found.tolist()], np.int64)[place.reshape(-1)]


def label_of(content: bytes, kind: str, label_key: str | None, where: str) -> int | None:
    """A label from a member.

    Args:
        content: an integer in text, or a JSON object.
        kind: `cls` or `json`.
        label_key: the field of the object.
        where: it stands, for messages.

    Returns:
        The label, None where there is no such field.

    Raises:
        ConfigError: if it is no integer, or out of its range.
    """
    label = _integer(content, where) if kind == "cls" else _field(content, label_key, where)
    if label is not None:
        check_range(label, label, where)
    return label


def _integer(content: bytes, where: str) -> int:
    try:
        return whole(content.decode())
    except ValueError as error:
        raise ConfigError(f"{where} holds {content[:40]!r}, not an integer") from error


def _field(content: bytes, label_key: str | None, where: str) -> int | None:
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON: {error}") from error
    label = fields.get(label_key) if isinstance(fields, dict) else None
    if isinstance(label, float) and label.is_integer():  # as pandas writes integers of a column that lacks some
        return int(label)
    if label is not None and (isinstance(label, bool) or not isinstance(label, int)):
        raise ConfigError(f"{where}: {label_key} is {label!r}, not an integer; set data.label_key= to another field")
    return label
