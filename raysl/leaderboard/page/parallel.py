"""The settings that vary, their scales, and each row a line through them to its number: parallel coordinates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import yaml

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.flat import shown, varied
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.rows import Shades, chart_section, objective_title, row_name
from raysl.report.marks import Chart
from raysl.report.scales import LETTER, Scale, cut, spelled

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
        return float(self.names.index(setting_text(value))) if self.kind == "category" else float(value)


def value_of(row: Choice, key: str) -> Any:
    """Return a setting of a row; None where the row lacks it."""
    return row.config if key == "config" and key not in row.settings else row.settings.get(key)


def setting_text(value: Any) -> str:
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
        if len({setting_text(value) for value in values}) + (len(values) < len(rows)) < 2 or not values:
            continue
        if not all(_is_number(value) for value in values):
            settings.append(Axis(key, "category", tuple(sorted({setting_text(value) for value in values}))))
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


MIN_AXES = 2
"""Settings from which there are parallel coordinates."""
WIDTH, MAX_WIDTH = 1100, 1320
TOP = 46
"""Pixels above the axes."""
MAX_NAME = 15
"""Letters of a value at an axis."""


class Pole:
    """One vertical axis: of a setting, whose values it places in pixels."""

    def __init__(self, axis: Axis, rows: Sequence[Choice], bottom: float) -> None:
        values = [value for row in rows if (value := axis.position(row)) is not None]
        self.axis, self.bottom = axis, bottom
        is_unset = len(values) < len(rows)
        end = bottom - 24 if is_unset else bottom  # rows that have not the setting are below all values
        if axis.kind == "category":
            # categories 0, 1, 2 and so on are at the middles of equal heights, from the top
            room = (end - TOP) / len(axis.names)
            ticks = [(float(position), name) for position, name in enumerate(axis.names)]
            self.scale = Scale(0.0, 1.0, TOP + room / 2, TOP + 1.5 * room, ticks=ticks)
        else:
            self.scale = Scale.fit(values, end, TOP, 6, axis.kind == "log", padding=0.02)
        self.ticks = [(self.scale(value), text) for value, text in self.scale.ticks]
        self.ticks += [(bottom, UNSET)] * is_unset

    def position(self, row: Choice) -> float:
        """Return the pixel of a row."""
        value = self.axis.position(row)
        return self.bottom if value is None else self.scale(value)


def parallel_section(board: Leaderboard, axes: Sequence[Axis]) -> str:
    """Return the section; empty where fewer than two settings vary."""
    metric = board.facts.objectives[0].metric
    if len(axes) < MIN_AXES or all(row.value(metric) is None for row in board.choices):
        return ""
    objective = objective_title(board.facts.objectives[0])
    note = f"A line a row, through its settings to {escape(objective)}; its colour shows that number."
    return chart_section(board, "parallel", "Settings and what came of them", {"": _drawing(board, axes)}, note)


def _drawing(board: Leaderboard, axes: Sequence[Axis]) -> str:
    objective, shades = board.facts.objectives[0], Shades(board)
    rows = [(index, row) for index, row in enumerate(board.choices) if row.value(objective.metric) is not None]
    bottom = max(300.0, min(720.0, TOP + 17.0 * max(len(axis.names) for axis in axes)))
    width = max(WIDTH, 110 * len(axes) + 150)
    chart = Chart(width, bottom + 54, f"Settings of each row and its {objective.metric}", max(width, MAX_WIDTH))
    poles = [Pole(axis, [row for _, row in rows], bottom) for axis in axes]
    # pixels of the least and of the largest number, so that the better end is at the top either way
    worst, best = (TOP, bottom) if objective.mode == "min" else (bottom, TOP)
    last = Scale.fit([row.numbers[objective.metric].mean for _, row in rows], worst, best, 6)
    start = 16 + LETTER * min(MAX_NAME, max((len(text) for _, text in poles[0].ticks), default=2))
    gap = (width - start - 60) / len(axes)
    for index, row in reversed(rows):
        value = row.numbers[objective.metric].mean
        heights = [*(pole.position(row) for pole in poles), last(value)]
        path = "L".join(f"{start + turn * gap:.1f} {y:.1f}" for turn, y in enumerate(heights))
        description = f"{row_name(row)}\n{objective.metric} {spelled(value)}, rank {index + 1}"
        style = f"stroke:{shades.colour(row)}"
        chart.add("path", title=description, d=f"M{path}", class_="thread", style=style, data_row=board.first + index)
    for turn, pole in enumerate(poles):
        _draw_pole(chart, start + turn * gap, pole.axis.key, pole.ticks, bottom, turn, gap)
    ticks = [(last(value), text) for value, text in last.ticks]
    _draw_pole(chart, start + len(axes) * gap, objective.metric, ticks, bottom, len(axes), gap, is_last=True)
    shades.legend(chart, board.anchor("parallel-shades"), bottom + 28)
    return chart.svg()


def _draw_pole(
    chart: Chart,
    x: float,
    title: str,
    ticks: Sequence[tuple[float, str]],
    bottom: float,
    turn: int,
    gap: float,
    is_last: bool = False,
) -> None:
    """Draw one vertical axis with its name above and its values to the left, of the last one to the right."""
    chart.rule("pole", (x, x), (TOP, bottom))
    pixel, anchor = (chart.width - 2, "end") if is_last else (x, "middle") if turn else (0, "start")
    name = cut(title, int(1.7 * gap / LETTER))
    chart.text(name, pixel, 30 if turn % 2 else 14, "title", anchor, title=title)
    side, anchor = (7, "start") if is_last else (-7, "end")
    for y, text in ticks:
        chart.rule("pole", (x - 3, x + 3), (y, y))
        chart.text(cut(text, MAX_NAME), x + side, y + 4, "tick halo", anchor, title=text)
