"""Scores as text for the terminal, and as a table for a notebook."""

import math
from collections.abc import Sequence

from raysl.report.contents import Score
from raysl.report.html import plain_table

NAMES = ("benchmark", "metric", "unit")
NUMBERS = ("trained", "±", "95 %", "untrained", "pixels")


def score_table(scores: Sequence[Score]) -> str:
    """Return an aligned table, a line a score: names to the left, numbers to the right, no trailing spaces.

    `±` is the standard deviation of `trained` over draws; `95 %` its interval over test images, of scores without a
    deviation. Columns that no score fills are left out, and the units where all are percent; no scores, no text.
    """
    if not scores:
        return ""
    header, *body = _rows(scores)
    rule = ["-" * max(map(len, column)) for column in zip(header, *body, strict=True)]
    return "\n".join(aligned([header, rule, *body], sum(title in NAMES for title in header)))


def aligned(rows: Sequence[Sequence[str]], num_names: int) -> list[str]:
    """Return rows of cells as lines: the first columns to the left, those behind them to the right, no trailing spaces.

    >>> aligned([["run", "loss"], ["a", "0.5"]], num_names=1)
    ['run  loss', 'a     0.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_line(cells, widths, num_names) for cells in rows]


def score_html(scores: Sequence[Score]) -> str:
    """Return the same table for a notebook; empty without scores."""
    if not scores:
        return ""
    titles, *rows = _rows(scores)
    return plain_table(titles, rows)


def number(value: float | None, unit: str = "%") -> str:
    """Return two decimals of a percentage, else three digits; nothing for None, `nan` or `inf` as they are.

    >>> number(87.126), number(0.06374, "s"), number(None)
    ('87.13', '0.0637', '')
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(float(value))
    return f"{value:.2f}" if unit == "%" else readable(value)


def bounds(interval: tuple[float, float] | None, unit: str = "%") -> str:
    """Return both ends of an interval; nothing for None.

    >>> bounds((96.1, 98.3))
    '96.10 to 98.30'
    """
    return "" if interval is None else f"{number(interval[0], unit)} to {number(interval[1], unit)}"


def large(value: float | None, unit: str = "%") -> str:
    """Return a number for large type: one decimal of a percentage, else three digits; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.1f}" if unit == "%" else readable(value)


def readable(value: float) -> str:
    """Return three digits, or all before the point.

    >>> readable(0.0001134), readable(12_400.4)
    ('0.000113', '12,400')
    """
    return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"


def _rows(scores: Sequence[Score]) -> list[tuple[str, ...]]:
    """Return the titles, then the cells of each score, without empty columns."""
    has_units = any(score.unit != "%" for score in scores)
    rows = [_cells(score, score.unit if has_units else "") for score in scores]
    titled = zip(NAMES + NUMBERS, zip(*rows, strict=True), strict=True)
    return list(zip(*[(title, *cells) for title, cells in titled if any(cells)], strict=True))


def _cells(score: Score, unit: str) -> tuple[str, ...]:
    trained, spread, *rivals = (
        number(value, score.unit) for value in (score.trained, score.deviation, score.untrained, score.pixels)
    )
    interval = "" if spread else bounds(score.interval, score.unit)
    return score.benchmark, score.metric, unit, trained, spread, interval, *rivals


def _line(cells: Sequence[str], widths: Sequence[int], num_names: int) -> str:
    """Return a line with names to the left and numbers to the right."""
    padded = [
        cell.ljust(width) if column < num_names else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()
