"""The settings that vary in a sweep, and their scales in drawings and in the forest of importance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.flat import shown, varied

LOG_FROM = 100.0
"""Ratio of the largest to the smallest positive value from which an axis is logarithmic."""
UNSET = "unset"


@dataclass(frozen=True)
class Axis:
    """One setting that varies.

    Args:
        key: dotted; `config` is the configuration.
        names: sorted values of a category, as text.
    """

    key: str
    kind: Literal["linear", "log", "category"]
    names: tuple[str, ...] = ()

    def position(self, row: Choice) -> float | None:
        """Return the number of a row, or the index of its category; None where it lacks the setting."""
        value = value_of(row, self.key)
        if value is None:
            return None
        return float(self.names.index(spelled(value))) if self.kind == "category" else float(value)


def value_of(row: Choice, key: str) -> Any:
    """Return a setting of a row; None where the row lacks it."""
    return row.config if key == "config" and key not in row.settings else row.settings.get(key)


def spelled(value: Any) -> str:
    """Return a value of a setting as text."""
    return shown(value) or UNSET


def axes(rows: Sequence[Choice], space: str = "", with_config: bool = True) -> list[Axis]:
    """Return the settings in which rows differ, the configuration first if it counts as one.

    What a space, as YAML, draws log-uniformly has a logarithmic axis.
    """
    logarithmic = _drawn_by_logarithm(space)
    settings = []
    for key in (*["config"] * with_config, *varied(rows)):
        values = [value for row in rows if (value := value_of(row, key)) is not None]
        if len({spelled(value) for value in values}) + (len(values) < len(rows)) < 2 or not values:
            continue
        if not all(_is_number(value) for value in values):
            settings.append(Axis(key, "category", tuple(sorted({spelled(value) for value in values}))))
        elif min(values) > 0 and (key in logarithmic or max(values) / min(values) >= LOG_FROM):
            settings.append(Axis(key, "log"))
        else:
            settings.append(Axis(key, "linear"))
    return settings


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _drawn_by_logarithm(space: str) -> set[str]:
    """Return the settings whose distribution in the space has `log` in its name."""
    try:
        tree = yaml.safe_load(space)
    except yaml.YAMLError:  # a space is shown as its sweep writes it, which need not be plain YAML
        return set()
    names, nodes = set(), [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            nodes += node.values()
            names |= {
                str(key)
                for key, distribution in node.items()
                if isinstance(distribution, dict) and any("log" in str(name) for name in distribution)
            }
    return names
