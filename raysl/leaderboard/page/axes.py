"""The settings that vary in a sweep, and the scales on which they are drawn and learned from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.flat import shown, varied

LOG_FROM = 100.0
"""Positive values whose largest is so many times the smallest have a logarithmic axis."""
UNSET = "unset"


@dataclass(frozen=True)
class Axis:
    """One setting.

    Args:
        key: dotted; `config` is the configuration.
        kind: of its scale.
        names: of a category the values as text, in the order in which they are first met among the sorted.
    """

    key: str
    kind: Literal["linear", "log", "category"]
    names: tuple[str, ...] = ()

    def place(self, row: Choice) -> float | None:
        """Where a row is: the number, of a category its place from 0; None where it has none."""
        value = value_of(row, self.key)
        if value is None:
            return None
        return float(self.names.index(spelled(value))) if self.kind == "category" else float(value)


def value_of(row: Choice, key: str) -> Any:
    """A setting of a row; None where it has it not."""
    return row.config if key == "config" and key not in row.settings else row.settings.get(key)


def spelled(value: Any) -> str:
    """A value of a setting as text."""
    return shown(value) or UNSET


def axes(rows: Sequence[Choice], space: str = "") -> list[Axis]:
    """The settings of which rows have different values, the configuration first.

    Args:
        rows: of the leaderboard.
        space: what varies, as YAML: what is drawn log-uniformly has a logarithmic axis.
    """
    logarithmic = _drawn_by_logarithm(space)
    found = []
    for key in ("config", *varied(rows)):
        values = [value for row in rows if (value := value_of(row, key)) is not None]
        if len({spelled(value) for value in values}) + (len(values) < len(rows)) < 2 or not values:
            continue
        if not all(_is_number(value) for value in values):
            found.append(Axis(key, "category", tuple(sorted({spelled(value) for value in values}))))
        elif min(values) > 0 and (key in logarithmic or max(values) / min(values) >= LOG_FROM):
            found.append(Axis(key, "log"))
        else:
            found.append(Axis(key, "linear"))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _drawn_by_logarithm(space: str) -> set[str]:
    """Settings that a space draws by a distribution whose name has log in it."""
    try:
        tree = yaml.safe_load(space)
    except yaml.YAMLError:  # a space is shown as its sweep writes it, which need not be plain YAML
        return set()
    found, left = set(), [tree]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left += node
        elif isinstance(node, dict):
            left += node.values()
            found |= {
                str(key)
                for key, told in node.items()
                if isinstance(told, dict) and any("log" in str(name) for name in told)
            }
    return found
