"""Lines over a common axis: accuracy against k, a spectrum, a metric of several checkpoints."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from raysl.report.bars import drawn_value, whiskers
from raysl.report.contents import Score
from raysl.report.html import figure
from raysl.report.marks import MAX_MARKS, Chart, legend, mark_of
from raysl.report.scales import Point
from raysl.report.summary import readable

MAX_DOTS = 30
"""Lines of more points have no marks."""
MAX_TICKS = 8
"""Values of x up to which each of them is written at the axis."""
LOG_FROM = 10.0
"""Ratio of the largest to the smallest positive value from which an axis is logarithmic."""


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Args:
        name: entry in the legend.
        points: (x, y) by ascending x, all finite.
        bounds: ends of the whiskers at each point, None where there are none; empty: none at all.
    """

    name: str
    points: Sequence[Point]
    colour: str
    shape: str = "o"
    bounds: Sequence[tuple[float, float] | None] = ()


def lines_of(named: Sequence[tuple[str, Sequence[Point]]]) -> list[Line]:
    """Return lines that colour and shape tell apart; those beyond MAX_MARKS are left out."""
    return [Line(name, points, *mark_of(turn)) for turn, (name, points) in enumerate(named[:MAX_MARKS])]


def score_line(name: str, scores: Mapping[float, Score], colour: str, column: str = "trained") -> Line:
    """Return one number of scores, by x, as a line; only that of the trained backbone has whiskers."""
    drawn = {x: (score, value) for x, score in scores.items() if (value := drawn_value(score, column)) is not None}
    bounds = [whiskers(score) if column == "trained" else None for score, _ in drawn.values()]
    return Line(name, [(x, value) for x, (_, value) in drawn.items()], colour, bounds=bounds)


def line_chart(
    lines: Sequence[Line],
    x: str,
    y: str,
    title: str,
    may_be_log: bool = True,
    labels: Sequence[str] = (),
) -> str:
    """Draw lines that have points under a plain title, with a legend where there are several.

    Args:
        may_be_log: whether the horizontal axis may be logarithmic, which a clock never is.
        labels: names of the values 0, 1 and so on, where they have names.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    xs = sorted({at for line in lines for at, _ in line.points})
    is_log = may_be_log and xs[0] > 0 and xs[-1] / xs[0] >= LOG_FROM
    ticks = [(float(at), label) for at, label in enumerate(labels)] if labels else None
    if not labels and len(xs) <= MAX_TICKS and not _crowded(xs, is_log):
        ticks = [(at, readable(at)) for at in xs]
    ends = [end for line in lines for reach in line.bounds for end in reach or ()]
    chart = Chart(500, 300, f"{title}: {y} over {x}")
    values = [value for line in lines for _, value in line.points] + ends
    chart.frame(xs, values, x, y, is_log=is_log, x_ticks=ticks)
    for line in lines:
        _draw(chart, line)
    marks = legend([(line.colour, line.shape, line.name) for line in lines]) if len(lines) > 1 else ""
    return figure(escape(title), marks + chart.svg())


def _draw(chart: Chart, line: Line) -> None:
    chart.line(line.points, stroke=line.colour, stroke_width=1.8)
    for (at, value), reach in zip(line.points, line.bounds or [None] * len(line.points), strict=True):
        if reach is not None:
            chart.whiskers((chart.x(at), chart.x(at)), (chart.y(reach[0]), chart.y(reach[1])), line.colour)
        if len(line.points) <= MAX_DOTS:
            chart.marker(chart.x(at), chart.y(value), 3.4, line.colour, line.shape)


def _crowded(xs: Sequence[float], is_log: bool) -> bool:
    """Return whether two values are too near each other for a number at each."""
    spread = [math.log(at) for at in xs] if is_log else list(xs)
    gaps = [after - before for before, after in itertools.pairwise(spread)]
    return bool(gaps) and min(gaps) < 0.08 * (spread[-1] - spread[0])
