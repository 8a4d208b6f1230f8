"""One number of each row against another: trade-offs, costs, and the geometry of features beside accuracy."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from raysl.leaderboard.best import best_runs, references
from raysl.leaderboard.choice import Choice
from raysl.leaderboard.entry import Objective
from raysl.leaderboard.flat import COSTS
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.rows import chart_section, clock, draw_rivals, rank_class, row_name
from raysl.nn.collapse import COLLAPSE
from raysl.report.contents import is_beside
from raysl.report.html import quiet
from raysl.report.marks import Chart
from raysl.report.record_sections import duration
from raysl.report.scales import Point, spelled

WIDTH, HEIGHT, MAX_WIDTH = 440, 340, 640
MIN_DOTS = 2
"""Rows from which one number is drawn against another."""
LOG_FROM = 20.0
"""Ratio of the largest to the smallest positive value from which an axis is logarithmic."""


@dataclass(frozen=True)
class Scatter:
    """A section whose vertical axis is the first objective.

    Args:
        xs: names of the numbers that may be the horizontal axis.
        front: whether the rows that no other beats are joined, in words; empty: they are not.
    """

    name: str
    title: str
    xs: Sequence[str]
    front: str = ""


def scatter_sections(board: Leaderboard) -> str:
    """Return the sections side by side; empty where there is nothing to draw."""
    metric = board.facts.objectives[0].metric
    has_interval = any(row.numbers[metric].interval is not None for row in board.choices if metric in row.numbers)
    reach = " Lines: 95 % interval." if has_interval else ""
    sections = []
    for kind in scatters(board.choices, board.facts.objectives):
        drawings = {x if len(kind.xs) > 1 else "": _drawing(board, kind, x) for x in kind.xs}
        note = f"{escape(metric)} of each row.{reach} {kind.front}".rstrip()
        sections.append(chart_section(board, kind.name, kind.title, drawings, note, {"against": kind.xs}))
    return f'<div class="pair scatters">{"".join(sections)}</div>' if sections else ""


def scatters(rows: Sequence[Choice], objectives: Sequence[Objective]) -> list[Scatter]:
    """Return what can be drawn of some rows."""
    ranked = [row for row in rows if row.value(objectives[0].metric) is not None]
    if len(ranked) < MIN_DOTS:
        return []
    counts = Counter(name for row in ranked for name in row.numbers)
    known = {name for name, num in counts.items() if num >= MIN_DOTS}
    ranks = [one.metric for one in objectives]
    geometry = sorted(name for name in known if name.startswith("geometry/") and not is_beside(name))
    joined = "Joined: finished rows that no other beats in both."
    cheaper = "Joined: finished rows for which none is both cheaper and better."
    kinds = [
        Scatter("front", "Trade-off", [name for name in ranks[1:] if name in known], joined),
        Scatter("cost", "What it costs", _beside(("gpu_hours", *COSTS), known, ranks), cheaper),
        Scatter("geometry", "Geometry beside accuracy", _beside((*geometry, *COLLAPSE), known, ranks)),
    ]
    return [kind for kind in kinds if kind.xs]


def _beside(names: Sequence[str], known: set[str], ranks: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name in known and name not in ranks]


def _drawing(board: Leaderboard, kind: Scatter, x: str) -> str:
    """Return one drawing: a dot a row, whose interval is cut off where it is much longer than all else."""
    y, num_best = board.facts.objectives[0].metric, len(best_runs(board))
    dots = [(index, row) for index, row in enumerate(board.choices) if x in row.numbers and y in row.numbers]
    xs = [row.numbers[x].mean for _, row in dots]
    ys = [row.numbers[y].mean for _, row in dots]
    title, unit = clock(xs) if x == "seconds" else (x, 1.0)
    low, high = min(ys, default=0.0), max(ys, default=0.0)
    reach = (high - low) / 2 or math.inf
    bounds = {
        index: [min(max(end, low - reach), high + reach) for end in row.numbers[y].interval or ()]
        for index, row in dots
    }
    rivals = references(board.choices, y)
    chart = Chart(WIDTH, HEIGHT, f"{y} against {x}", MAX_WIDTH)
    is_log = min(xs, default=0.0) > 0 and max(xs) / min(xs) >= LOG_FROM
    values = [*ys, *itertools.chain(*bounds.values()), *(rival.mean for rival in rivals)]
    chart.frame([value / unit for value in xs], values, title, y, is_log=is_log, top=40)
    if kind.front:
        _draw_front(chart, [row for _, row in dots], x, board.facts.objectives, unit)
    for index, row in reversed(dots):
        number, across, rank = row.numbers[y], row.numbers[x].mean, rank_class(index, num_best)
        interval = ""
        if number.interval is not None:
            interval = f" ({spelled(number.interval[0])} to {spelled(number.interval[1])})"
            line = [(across / unit, end) for end in bounds[index]]
            chart.line(line, class_=f"reach {rank}", data_row=board.first + index, fill=None)
        spent = duration(across) if x == "seconds" else spelled(across)
        description = f"{row_name(row)}\n{y} {spelled(number.mean)}{interval}\n{x} {spent}, rank {index + 1}"
        point = (across / unit, number.mean)
        chart.dot(point, 4 if rank == "rest" else 8, description, class_=f"dot {rank}", data_row=board.first + index)
        if rank != "rest":
            x_pixel, y_pixel = chart.x(point[0]), chart.y(point[1])
            chart.text(str(index + 1), x_pixel, y_pixel + 4, "rank", "middle", data_row=board.first + index)
    draw_rivals(chart, rivals)
    return chart.svg() + ("" if kind.front else quiet(_correlation(board.choices, x, y)))


def _correlation(rows: Sequence[Choice], x: str, y: str) -> str:
    """Return Spearman's correlation of two numbers over the rows that have both; of fewer than four nothing."""
    pairs = np.array([(one, two) for row in rows if None not in (one := row.value(x), two := row.value(y))], float)
    if len(pairs) < 4 or (np.ptp(pairs, axis=0) == 0).any():
        return ""
    from scipy.stats import spearmanr

    return f"Spearman's rank correlation {spearmanr(pairs[:, 0], pairs[:, 1]).statistic:.2f}, n = {len(pairs)}."


def _draw_front(chart: Chart, rows: Sequence[Choice], x: str, objectives: Sequence[Objective], unit: float) -> None:
    """Join the finished rows that no other beats, from the best in one number to the best in the other, in steps."""
    y, modes = objectives[0].metric, {one.metric: one.mode for one in objectives}
    across, up = (1 if modes.get(x, "min") == "min" else -1), (1 if modes[y] == "min" else -1)
    # sorted from the better end of x on, a point is on the front if its y beats that of all before it
    points = [(row.numbers[x].mean, row.numbers[y].mean) for row in rows if row.standing == 0]
    corners: list[Point] = []
    for point in sorted(points, key=lambda point: (across * point[0], up * point[1])):
        if not corners or up * point[1] < up * corners[-1][1]:
            corners += [(point[0], corners[-1][1]), point] if corners else [point]
    if corners:
        chart.line([(one / unit, other) for one, other in corners], class_="front", fill=None)
