"""The one rule for a column of labels, of every table: it holds numbers or names, and some cells are unlabelled."""

import re
from collections.abc import Sequence
from types import NoneType
from typing import Any

import numpy as np

from raysl.data.sources.class_names import check_range
from raysl.data.sources.listing import composed
from raysl.errors import ConfigError

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
