"""Horizontal bars of scores, in groups, with whiskers and numbers at their ends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from raysl.report.chart import Chart, Scale
from raysl.report.contents import Score
from raysl.report.summary import large

COLUMNS = (("trained", "var(--trained)"), ("untrained", "var(--untrained)"), ("pixels", "var(--pixels)"))
"""Numbers of a score that are drawn, with their colours."""
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
        label: description for readers who do not see the drawing.
    """
    names = [_lines(name) for name, _ in groups]
    values = [bar.value for _, bars in groups for bar in bars if bar is not None]
    is_percent = unit == "%" and all(0 <= value <= 100 for value in values)
    high = 100.0 if is_percent else max(0.0, *values) or (0.0 if min(values) < 0 else 1.0)
    left = 12 + TITLE_LETTER * max(len(line) for lines in names for line in lines)
    num_rows = sum(len(bars) for _, bars in groups)
    bottom = 6.0 + GROUP * len(groups) + ROW * num_rows
    chart = Chart(WIDTH, bottom + (34 if unit else 18), label)
    scale = Scale.fit([min(0.0, *values), high], left, WIDTH - 52, 4, padding=0)
    ticks = [(float(tick), str(tick)) for tick in range(0, 101, 25)] if is_percent else scale.ticks
    for value, text in ticks:
        chart.add("line", class_="grid", x1=scale(value), x2=scale(value), y1=0, y2=bottom)
        chart.add("text", text, class_="tick", x=scale(value), y=bottom + 14, text_anchor="middle")
    chart.add("text", unit, class_="tick", x=(left + WIDTH - 52) / 2, y=bottom + 30, text_anchor="middle")
    top = 6.0
    for lines, (_, bars) in zip(names, groups, strict=True):
        middle = top + (GROUP + ROW * len(bars)) / 2
        for turn, line in enumerate(lines):
            y = middle + 4 + 14 * (turn - (len(lines) - 1) / 2)
            chart.add("text", line, class_="title", x=left - 8, y=y, text_anchor="end")
        for turn, bar in enumerate(bars):
            if bar is not None:
                _draw(chart, scale, bar, top + GROUP / 2 + ROW * (turn + 0.5), unit)
        top += GROUP + ROW * len(bars)
    return chart.svg()


def _lines(name: str) -> list[str]:
    """Return a name on at most three short lines."""
    return wrap(name, MAX_LABEL, max_lines=MAX_LINES, placeholder=" …") or [""]


def _draw(chart: Chart, scale: Scale, bar: Bar, middle: float, unit: str) -> None:
    start, end = sorted((scale(0.0), scale(bar.value)))
    chart.add("rect", x=start, y=middle - 9, width=max(end - start, 1.0), height=18, fill=bar.colour)
    if bar.reach is not None:
        low, high = (scale(value) for value in bar.reach)
        path = f"M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 4:.1f}v8M{high:.1f} {middle - 4:.1f}v8"
        chart.add("path", d=path, fill="none", stroke="var(--ink)", stroke_width=1.4)
        end = max(end, high)
    text, kind = large(bar.value, unit), "label" if bar.is_main else "tick"
    chart.add("text", text, class_=kind, x=max(end, scale(0.0)) + 5, y=middle + 4)


def score_bars(scores: Sequence[Score], headings: Sequence[str]) -> str:
    """Return bars in groups: for each score trained (with whiskers, see `whiskers`), untrained and raw pixels.

    Args:
        scores: scores of one unit.
    """
    unit = scores[0].unit
    columns = [(name, colour) for name, colour in COLUMNS if any(is_drawn(score, name) for score in scores)]
    groups = [
        (heading, [_bar(score, name, colour) for name, colour in columns])
        for score, heading in zip(scores, headings, strict=True)
    ]
    if not columns:
        return ""
    return bar_chart(groups, unit, f"Bars of the scores in {unit or 'numbers'}: trained, untrained, raw pixels")


def _bar(score: Score, column: str, colour: str) -> Bar | None:
    is_main = column == "trained"
    reach = whiskers(score) if is_main else None
    return Bar(float(getattr(score, column)), colour, reach, is_main) if is_drawn(score, column) else None


def is_drawn(score: Score, column: str) -> bool:
    """Return whether a column of a score holds a number that can be drawn."""
    value = getattr(score, column)
    return value is not None and math.isfinite(value)


def whiskers(score: Score) -> tuple[float, float] | None:
    """Return the ends of a score's whiskers: its interval, else one deviation to both sides; None without either."""
    low, high = (math.nan, math.nan) if score.interval is None else score.interval
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
