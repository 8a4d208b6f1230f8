"""Scores as text for the terminal."""

import math
from collections.abc import Sequence

from raysl.report.contents import Score

HEADER = ("benchmark", "metric", "trained", "±", "untrained", "pixels")
NUM_NAMES = 2


def score_table(scores: Sequence[Score]) -> str:
    """An aligned table, a line a score: names to the left, numbers to the right, no trailing spaces.

    `±` is the standard deviation of `trained`. Columns that no score fills are left out; no scores, no text.
    """
    if not scores:
        return ""
    rows = [
        (score.benchmark, score.metric, *map(number, (score.trained, score.deviation, score.untrained, score.pixels)))
        for score in scores
    ]
    columns = [(title, *cells) for title, cells in zip(HEADER, zip(*rows, strict=True), strict=True) if any(cells)]
    widths = [max(map(len, column)) for column in columns]
    header, *body = zip(*columns, strict=True)
    return "\n".join(_line(cells, widths) for cells in (header, ["-" * width for width in widths], *body))


def number(value: float | None) -> str:
    """Two decimals; nothing for None, `nan` or `inf` as they are."""
    if value is None:
        return ""
    return f"{value:.2f}" if math.isfinite(value) else str(float(value))


def readable(value: float) -> str:
    """Three digits, or all before the point: `0.000113`, `1.91`, `12,400`."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    padded = [
        cell.ljust(width) if column < NUM_NAMES else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()
