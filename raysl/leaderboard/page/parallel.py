"""The settings that vary, each row a line through them to its number: parallel coordinates."""

from collections.abc import Sequence
from html import escape

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.axes import UNSET, Axis
from raysl.leaderboard.page.rows import Shades, chart_section, objective_title, row_name
from raysl.report.chart import LETTER, Chart, Scale, spelled

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
        self.axis, self.title, self.bottom = axis, axis.key, bottom
        is_unset = len(values) < len(rows)
        end = bottom - 24 if is_unset else bottom  # rows that have not the setting are below all values
        if axis.kind == "category":
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
    title, drawings = board.headed("Settings and what came of them"), {"": _drawing(board, axes)}
    return chart_section("parallel", title, drawings, note, anchor=board.anchor("parallel"))


def _drawing(board: Leaderboard, axes: Sequence[Axis]) -> str:
    objective, shades = board.facts.objectives[0], Shades(board)
    rows = [(index, row) for index, row in enumerate(board.choices) if row.value(objective.metric) is not None]
    bottom = max(300.0, min(720.0, TOP + 17.0 * max(len(axis.names) for axis in axes)))
    width = max(WIDTH, 110 * len(axes) + 150)
    chart = Chart(width, bottom + 54, f"Settings of each row and its {objective.metric}", max(width, MAX_WIDTH))
    poles = [Pole(axis, [row for _, row in rows], bottom) for axis in axes]
    start, end = (TOP, bottom) if objective.mode == "min" else (bottom, TOP)
    last = Scale.fit([row.numbers[objective.metric].mean for _, row in rows], start, end, 6)
    left = 16 + LETTER * min(MAX_NAME, max((len(text) for _, text in poles[0].ticks), default=2))
    gap = (width - left - 60) / len(axes)
    for index, row in reversed(rows):
        value = row.numbers[objective.metric].mean
        heights = [*(pole.position(row) for pole in poles), last(value)]
        path = "L".join(f"{left + turn * gap:.1f} {y:.1f}" for turn, y in enumerate(heights))
        description = f"{row_name(row)}\n{objective.metric} {spelled(value)}, rank {index + 1}"
        style = f"stroke:{shades.colour(row)}"
        chart.add("path", title=description, d=f"M{path}", class_="thread", style=style, data_row=board.first + index)
    for turn, pole in enumerate(poles):
        _draw_pole(chart, left + turn * gap, pole.title, pole.ticks, bottom, turn, gap)
    ticks = [(last(value), text) for value, text in last.ticks]
    _draw_pole(chart, left + len(axes) * gap, objective.metric, ticks, bottom, len(axes), gap, is_last=True)
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
    chart.add("line", class_="pole", x1=x, x2=x, y1=TOP, y2=bottom)
    at, anchor = (chart.width - 2, "end") if is_last else (x, "middle") if turn else (0, "start")
    name = _cut(title, int(1.7 * gap / LETTER))
    chart.add("text", name, title, class_="title", x=at, y=30 if turn % 2 else 14, text_anchor=anchor)
    side, anchor = (7, "start") if is_last else (-7, "end")
    for y, text in ticks:
        chart.add("line", class_="pole", x1=x - 3, x2=x + 3, y1=y, y2=y)
        chart.add("text", _cut(text, MAX_NAME), text, class_="tick halo", x=x + side, y=y + 4, text_anchor=anchor)


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: max(1, letters - 1)] + "…"
