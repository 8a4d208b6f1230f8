"""Charts of scores: horizontal bars in groups with whiskers, and lines over a common axis."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from raysl.report.contents import Score
from raysl.report.html import figure
from raysl.report.marks import MAX_MARKS, Chart, legend, mark_of
from raysl.report.scales import PERCENT_TICKS, Point, Scale
from raysl.report.summary import large, readable
from raysl.report.tables import COLUMN_TITLES

COLOURS = {"trained": "var(--trained)", "untrained": "var(--untrained)", "pixels": "var(--pixels)"}
"""Colours of the numbers of a score that are drawn."""
WIDTH, GROUP, ROW = 500, 26, 21
"""Pixels: of a drawing, between two groups of bars, and of a bar with the space around it."""
TITLE_LETTER = 7.4
MAX_LABEL, MAX_LINES = 22, 3
"""Pixels of a letter beside the bars, letters in a line there, and lines."""


@dataclass(frozen=True)
class Bar:
    """One bar.

    Args:
        reach: ends of its whiskers; None: it has none.
        is_main: whether its number is bold.
    """

    value: float
    colour: str
    reach: tuple[float, float] | None = None
    is_main: bool = True


def bar_chart(groups: Sequence[tuple[str, Sequence[Bar | None]]], unit: str, label: str) -> str:
    """Return bars in groups on one scale.

    Args:
        groups: names, each with its bars from the top; None leaves a gap.
        unit: unit of all values; percent ends at 100.
    """
    names = [wrap(name, MAX_LABEL, max_lines=MAX_LINES, placeholder=" …") or [""] for name, _ in groups]
    values = [bar.value for _, bars in groups for bar in bars if bar is not None]
    is_percent = unit == "%" and all(0 <= value <= 100 for value in values)
    high = 100.0 if is_percent else max(0.0, *values) or (0.0 if min(values) < 0 else 1.0)
    start_x = 20 + TITLE_LETTER * max(len(line) for lines in names for line in lines)
    bottom = 6.0 + GROUP * len(groups) + ROW * sum(len(bars) for _, bars in groups)
    chart = Chart(WIDTH, bottom + (34 if unit else 18), label)
    scale = Scale.fit([min(0.0, *values), high], start_x, WIDTH - 52, 4, padding=0)
    chart.columns(scale, PERCENT_TICKS if is_percent else scale.ticks, 0, bottom, unit)
    top = 6.0
    for lines, (_, bars) in zip(names, groups, strict=True):
        middle = top + (GROUP + ROW * len(bars)) / 2
        for turn, line in enumerate(lines):
            chart.text(line, start_x - 8, middle + 4 + 14 * (turn - (len(lines) - 1) / 2), "title", "end")
        for turn, bar in enumerate(bars):
            if bar is not None:
                _draw_bar(chart, scale, bar, top + GROUP / 2 + ROW * (turn + 0.5), unit)
        top += GROUP + ROW * len(bars)
    return chart.svg()


def _draw_bar(chart: Chart, scale: Scale, bar: Bar, middle: float, unit: str) -> None:
    start, end = sorted((scale(0.0), scale(bar.value)))
    chart.add("rect", x=start, y=middle - 9, width=max(end - start, 1.0), height=18, fill=bar.colour)
    if bar.reach is not None:
        low, high = (scale(value) for value in bar.reach)
        chart.whiskers((low, high), (middle, middle))
        end = max(end, high)
    chart.text(large(bar.value, unit), max(end, scale(0.0)) + 5, middle + 4, "label" if bar.is_main else "tick")


def score_bars(scores: Sequence[Score], headings: Sequence[str]) -> str:
    """Return bars in groups for scores of one unit: trained (with whiskers, see `whiskers`), untrained, raw pixels."""
    unit, columns = scores[0].unit, columns_of(scores)
    if not columns:
        return ""
    groups = [
        (heading, [score_bar(score, COLOURS[name], name) for name in columns])
        for score, heading in zip(scores, headings, strict=True)
    ]
    return bar_chart(groups, unit, f"Bars of the scores in {unit or 'numbers'}: trained, untrained, raw pixels")


def score_bar(score: Score, colour: str, column: str = "trained") -> Bar | None:
    """Return the bar of a number of a score; None where it has none or it is not finite."""
    value, is_main = drawn_value(score, column), column == "trained"
    return None if value is None else Bar(value, colour, whiskers(score) if is_main else None, is_main)


def drawn_value(score: Score, column: str = "trained") -> float | None:
    """Return a number of a score that can be drawn; None where it has none or it is not finite."""
    value = getattr(score, column)
    return float(value) if value is not None and math.isfinite(value) else None


def columns_of(scores: Sequence[Score]) -> list[str]:
    """Return the columns of which some score has a number that can be drawn."""
    return [name for name in COLOURS if any(drawn_value(score, name) is not None for score in scores)]


def column_legend(scores: Sequence[Score]) -> str:
    """Return what the colours of trained and untrained networks and of raw pixels are, as far as they are drawn."""
    return legend((COLOURS[name], "o", COLUMN_TITLES[name]) for name in columns_of(scores))


def whiskers(score: Score) -> tuple[float, float] | None:
    """Return the ends of a score's whiskers: its interval, else one deviation to both sides; None without either."""
    low, high = (math.nan, math.nan) if score.interval is None else score.interval
    # also where there is no interval, as a comparison with NaN is false
    if not low <= score.trained <= high and score.deviation is not None:
        low, high = score.trained - score.deviation, score.trained + score.deviation
    return (low, high) if -math.inf < low <= score.trained <= high < math.inf else None


def whiskers_note(scores: Sequence[Score]) -> str:
    """Return what the whiskers of a drawing are; empty where there are none."""
    drawn = [score for score in scores if score.unit and whiskers(score) is not None]
    kinds = []
    if any(score.interval is not None for score in drawn):
        kinds.append("95 % interval over test images")
    if any(score.interval is None for score in drawn):
        kinds.append("standard deviation over draws" + " where there is no interval" * bool(kinds))
    return f"Whiskers: {'; '.join(kinds)}." if kinds else ""


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
        _draw_line(chart, line)
    marks = legend([(line.colour, line.shape, line.name) for line in lines]) if len(lines) > 1 else ""
    return figure(escape(title), marks + chart.svg())


def _draw_line(chart: Chart, line: Line) -> None:
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
