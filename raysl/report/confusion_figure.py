"""A heat map of confused classes, and the most frequent mistakes."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from raysl.report.html import figure, table
from raysl.report.marks import Chart
from raysl.report.scales import LETTER, cut

MAX_CLASSES = 50
MAX_PAIRS = 10
MAX_IN_COLUMN = 25
"""Classes up to which the map has room beside another drawing."""
SIDE = 520
"""Pixels of the longer side of the cells together."""
MIN_CELL, MAX_CELL, MIN_NUMBERED = 13, 46, 30
"""Pixels of a cell's side, and from which it has room for a number."""
LABEL_LETTERS = 14
"""Letters of a class's name at the axes."""


def confusion_figure(content: Mapping[str, Any]) -> str:
    """Draw the heat map and the list of `raysl.benchmarks.suite.figures.confusion`."""
    parts = []
    if classes := [str(name) for name in content.get("classes") or ()]:
        counts = np.array(content["counts"], np.int64)
        if len(classes) > MAX_CLASSES or counts.shape != (len(classes),) * 2 or counts.min() < 0:
            raise ValueError(f"the counts of {len(classes)} classes are {counts.shape}, for {MAX_CLASSES} at most")
        parts.append(_map(classes, counts.tolist()))
    pairs = [(str(true), str(taken), int(count)) for true, taken, count in content["pairs"]][:MAX_PAIRS]
    if pairs:
        rows = [
            f'<td class="name">{escape(true)}</td><td class="taken">{escape(taken)}</td>'
            f'<td class="number">{count:,}</td>'
            for true, taken, count in pairs
        ]
        head = '<th>class</th><th>taken for</th><th class="number">images</th>'
        parts.append(figure("Most frequent mistakes", table(head, rows)))
    return "".join(parts)


def _map(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Draw a row for each true class: hits in the colour of the trained backbone, mistakes in that of warnings."""
    num = len(classes)
    cell = max(MIN_CELL, min(MAX_CELL, SIDE // num))
    labels = [cut(name, LABEL_LETTERS) for name in classes]
    font = max(10, min(13, cell - 2))
    margin = 12 + math.ceil(LETTER / 11 * font * max(map(len, labels)))
    side, size = num * cell, num * cell + margin + 8
    label = f"Confusion of {num} classes: a row for each true class, a column for each predicted one"
    chart = Chart(size, size, label, min_width=min(size, 9 * num + margin))
    style: dict[str, Any] = {"anchor": "end", "dy": ".35em", "style": f"font-size:{font}px"}
    for index, text in enumerate(labels):
        middle = (index + 0.5) * cell
        chart.text(text, margin - 6, middle, **style)
        chart.text(text, margin + middle, side + 7, transform=f"rotate(-90 {margin + middle:g} {side + 7})", **style)
    chart.add("rect", x=margin, width=side, height=side, fill="none", stroke="var(--grid)")
    for row, row_counts in enumerate(counts):
        total = sum(row_counts)
        for column, count in enumerate(row_counts):
            if count:
                title = f"{classes[row]} taken for {classes[column]}: {count:,} of {total:,}"
                _draw_cell(
                    chart, (margin + column * cell, row * cell), cell, count, count / total, row == column, title
                )
    note = (
        "Rows: true classes; columns: what they were taken for. Blue: right; red: mistakes. The stronger, the larger "
        "the share of the row, mistakes by the square root of theirs. Pointing at a cell tells its number."
    )
    return figure("Confusion", f'<div class="wide">{chart.svg()}</div>', note, "whole" if num > MAX_IN_COLUMN else "")


def _draw_cell(
    chart: Chart, corner: tuple[int, int], side: int, count: int, share: float, is_right: bool, title: str
) -> None:
    """Draw one cell, with its number where there is room and its meaning as a title."""
    x, top = corner
    # mistakes have small shares, which the square root makes visible
    strength = share if is_right else max(0.15, share**0.5)
    colour = "var(--trained)" if is_right else "var(--bad)"
    box: dict[str, Any] = {"x": x, "y": top, "width": side, "height": side}
    chart.add("rect", title=title, **box, fill=colour, fill_opacity=f"{strength:.2f}")
    if side >= MIN_NUMBERED:
        ink, font = "var(--paper)" if strength > 0.6 else "var(--ink)", 12 if count < 10_000 else 9
        style = f"font-size:{font}px;fill:{ink};pointer-events:none"
        chart.text(str(count), x + side / 2, top + side / 2, "tick", "middle", dy=".35em", style=style)
