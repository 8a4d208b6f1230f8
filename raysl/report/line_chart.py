"""Lines over a common axis: accuracy against k, a spectrum, a metric of several checkpoints."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from raysl.report.figures import CLASS_COLOURS, CLASS_SHAPES, GRID, MUTED, drawing, to_svg
from raysl.report.legend import legend
from raysl.report.summary import readable

MAX_LINES = len(CLASS_COLOURS) * len(CLASS_SHAPES)
MAX_DOTS = 30
"""Lines of more points have no marks."""
MAX_TICKS = 8
"""Places up to which each of them is written at the axis."""
LOG_FROM = 10.0
"""Positive places whose largest is so many times the smallest have a logarithmic axis."""


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Args:
        name: what the legend calls it.
        points: (x, y) by ascending x, all finite.
        colour, shape: of the line and its marks.
        bounds: ends of the whiskers at each point, None where there are none; empty: none at all.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    shape: str = "o"
    bounds: Sequence[tuple[float, float] | None] = ()


def lines_of(named: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> list[Line]:
    """Names and points as lines that colour and shape tell apart; those beyond MAX_LINES are left out."""
    return [
        Line(name, points, CLASS_COLOURS[place % len(CLASS_COLOURS)], CLASS_SHAPES[place // len(CLASS_COLOURS)])
        for place, (name, points) in enumerate(named[:MAX_LINES])
    ]


def line_chart(
    lines: Sequence[Line],
    x: str,
    y: str,
    name: str,
    title: str,
    may_be_log: bool = True,
    labels: Sequence[str] = (),
) -> str:
    """A drawing under its title, with a legend where there are several lines.

    Args:
        lines: what is drawn; those without a point are left out.
        x, y: what the axes say.
        name: of the drawing, an id that is unique on the page.
        title: plain text.
        may_be_log: whether the horizontal axis may be logarithmic, which a clock never is.
        labels: what the axis says at 0, 1 and so on, where the places have names.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    figure = Figure(figsize=(5.2, 3.1))
    with drawing(figure) as axes:
        for line in lines:
            _draw(axes, line)
        if labels:
            axes.set_xticks(range(len(labels)), list(labels))
        else:
            _scale(axes, sorted({place for line in lines for place, _ in line.points}), may_be_log)
        axes.set_xlabel(x, color=MUTED, fontsize=10)
        axes.set_ylabel(y, color=MUTED, fontsize=10)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.ticklabel_format(axis="y", scilimits=(-3, 6), useMathText=False)
        axes.yaxis.get_offset_text().set_color(MUTED)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        svg = to_svg(figure, name, f"{title}: {y} over {x}")
    marks = legend([(line.colour, line.shape, line.name) for line in lines]) if len(lines) > 1 else ""
    return f"<figure><h3>{escape(title)}</h3>{marks}{svg}</figure>"


def _draw(axes: Axes, line: Line) -> None:
    """One line with its marks and whiskers."""
    places, values = zip(*line.points, strict=True)
    marker = line.shape if len(places) <= MAX_DOTS else ""
    axes.plot(places, values, color=line.colour, linewidth=1.8, marker=marker, markersize=5)
    for (place, value), reach in zip(line.points, line.bounds or [None] * len(places), strict=True):
        if reach is not None:
            below, above = value - reach[0], reach[1] - value
            axes.errorbar(place, value, yerr=[[below], [above]], color=line.colour, capsize=3, linewidth=1.1)


def _scale(axes: Axes, places: Sequence[float], may_be_log: bool) -> None:
    """The horizontal axis: logarithmic where the places span much, with all of them written where there is room."""
    is_log = may_be_log and places[0] > 0 and places[-1] / places[0] >= LOG_FROM
    if is_log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if len(places) <= MAX_TICKS and not _crowded(places, is_log):
        axes.set_xticks(list(places))
    else:
        axes.xaxis.set_major_locator(LogLocator(numticks=7) if is_log else MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: readable(value)))


def _crowded(places: Sequence[float], is_log: bool) -> bool:
    """Whether two places are too near each other for a number at each."""
    spread = [math.log(place) for place in places] if is_log else list(places)
    gaps = [after - before for before, after in itertools.pairwise(spread)]
    return bool(gaps) and min(gaps) < 0.08 * (spread[-1] - spread[0])
