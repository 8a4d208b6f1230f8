"""Labels as datasets write them, integers or names, to the numbers of classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from raysl.config.schema import ConfigError
from raysl.hashing import Int64s

_SHOWN = 5


def parsed(values: Sequence[Any], origin: str) -> np.ndarray:
    """Labels of one class each: int64 [N] where all are whole numbers, else texts [N].

    Args:
        values: integers or texts; None and empty texts are unlabelled: -1, or an empty text.
        origin: where they stand, for messages.

    Raises:
        ConfigError: if a value is neither integer nor text, or a number is below -1.
    """
    wrong = next((value for value in values if value is not None and type(value) not in (int, str)), None)
    if wrong is not None:
        raise ConfigError(f"{origin} has the label {wrong!r}; write integers or names")
    try:
        labels = np.array([-1 if value is None or value == "" else int(value) for value in values], np.int64)
    except ValueError:
        return np.array(["" if value is None else str(value) for value in values], str)
    check_numbers(labels, origin)
    return labels


def check_numbers(labels: np.ndarray, origin: str) -> None:
    """Refuse integers that are no labels.

    Args:
        labels: int [N], or [N, K] of a multi-label dataset.
        origin: where they stand, for messages.

    Raises:
        ConfigError: if a label is below -1, or one of several is not -1, 0 or 1.
    """
    is_wrong = labels < -1 if labels.ndim == 1 else (labels < -1) | (labels > 1)
    if is_wrong.any():
        rule = "labels are 0, 1, ..., and -1 is unlabelled"
        if labels.ndim > 1:
            rule = "of several labels each is 1 for present, 0 for absent or -1 for ignore"
        raise ConfigError(f"{origin} has the label {labels[is_wrong][0]}; {rule}")


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
