"""The settings that vary, each row a line through them to its number: parallel coordinates."""

from collections.abc import Sequence
from html import escape

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.axes import UNSET, Axis
from raysl.leaderboard.page.rows import Shades, chart_section, objective_title, row_name
from raysl.report.marks import Chart
from raysl.report.scales import LETTER, Scale, cut, spelled

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
