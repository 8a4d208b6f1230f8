"""A heat map of confused classes, and the most frequent mistakes."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from raysl.report.html import table

MAX_CLASSES = 50
MAX_PAIRS = 10
MAX_IN_COLUMN = 25
"""Classes up to which the map has room beside another drawing."""
SIDE = 520
"""Pixels of the longer side of the cells together."""
MIN_CELL, MAX_CELL, MIN_NUMBERED = 13, 46, 30
"""Pixels of a cell's side, and from which it has room for a number."""
LABEL_LETTERS, LETTER = 14, 6.6
"""Letters of a class's name at the axes, and pixels of one."""


def confusion_figure(content: Mapping[str, Any]) -> str:
    """Draw the heat map and the list of `raysl.benchmarks.suite.figures.confusion`."""
    parts = []
    classes, counts = content.get("classes"), content.get("counts")
    if classes and counts:
        parts.append(_map(_names(classes), _square(counts, len(classes))))
    pairs = [(str(true), str(taken), int(count)) for true, taken, count in content["pairs"]][:MAX_PAIRS]
    if pairs:
        rows = [
            f'<td class="name">{escape(true)}</td><td class="taken">{escape(taken)}</td>'
            f'<td class="number">{count:,}</td>'
            for true, taken, count in pairs
        ]
        head = '<th>class</th><th>taken for</th><th class="number">images</th>'
        parts.append(f"<figure><h3>Most frequent mistakes</h3>{table(head, rows)}</figure>")
    return "".join(parts)


def _names(classes: Sequence[Any]) -> list[str]:
    if isinstance(classes, str) or len(classes) > MAX_CLASSES:
        raise ValueError(f"{MAX_CLASSES} names of classes at most are drawn")
    return [str(name) for name in classes]


def _square(counts: Sequence[Sequence[Any]], num: int) -> list[list[int]]:
    square = [[int(count) for count in row] for row in counts]
    if len(square) != num or any(len(row) != num for row in square) or min(map(min, square)) < 0:
        raise ValueError(f"the table of {num} classes has not {num} rows of as many counts")
    return square


def _map(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Draw a row for each true class: hits in the colour of the trained backbone, mistakes in that of warnings."""
    num = len(classes)
    cell = max(MIN_CELL, min(MAX_CELL, SIDE // num))
    labels = [name if len(name) <= LABEL_LETTERS else f"{name[: LABEL_LETTERS - 1]}…" for name in classes]
    font = max(10, min(13, cell - 2))
    margin = 12 + math.ceil(LETTER / 11 * font * max(map(len, labels)))
    width, height = margin + num * cell + 8, num * cell + margin + 8
    parts = [f'<g font-size="{font}" fill="var(--muted)">']
    for index, label in enumerate(labels):
        middle, text = (index + 0.5) * cell, escape(label)
        left, end = margin + middle, num * cell + 7
        parts.append(f'<text x="{margin - 6}" y="{middle:g}" dy=".35em" text-anchor="end">{text}</text>')
        parts.append(
            f'<text x="{left:g}" y="{end}" dy=".35em" text-anchor="end" '
            f'transform="rotate(-90 {left:g} {end})">{text}</text>'
        )
    parts.append("</g>")
    side = num * cell
    parts.append(f'<rect x="{margin}" width="{side}" height="{side}" fill="none" stroke="var(--grid)"/>')
    for row, row_counts in enumerate(counts):
        total = sum(row_counts)
        for column, count in enumerate(row_counts):
            if count:
                spoken = f"{classes[row]} taken for {classes[column]}: {count:,} of {total:,}"
                corner = (margin + column * cell, row * cell)
                parts.append(_cell(corner, cell, count, count / total, row == column, spoken))
    spoken = f"Confusion of {num} classes: a row for each true class, a column for each predicted one"
    style = f"max-width:{width}px;min-width:{min(width, 9 * num + margin)}px"
    svg = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{spoken}" style="{style}">{"".join(parts)}</svg>'
    note = (
        "Rows: true classes; columns: what they were taken for. Blue: right; red: mistakes. The stronger, the larger "
        "the share of the row, mistakes by the square root of theirs. Pointing at a cell tells its number."
    )
    kind = ' class="whole"' if num > MAX_IN_COLUMN else ""
    return f'<figure{kind}><h3>Confusion</h3><div class="wide">{svg}</div><figcaption>{note}</figcaption></figure>'


def _cell(corner: tuple[int, int], side: int, count: int, share: float, is_right: bool, spoken: str) -> str:
    """Draw one cell, with its number where there is room and its meaning as a title."""
    left, top = corner
    strength = share if is_right else max(0.15, share**0.5)
    colour = "var(--trained)" if is_right else "var(--bad)"
    cell = (
        f'<rect x="{left}" y="{top}" width="{side}" height="{side}" fill="{colour}" fill-opacity="{strength:.2f}">'
        f"<title>{escape(spoken)}</title></rect>"
    )
    if side < MIN_NUMBERED:
        return cell
    ink = "var(--paper)" if strength > 0.6 else "var(--ink)"
    size = 12 if count < 10_000 else 9
    return (
        f'{cell}<text x="{left + side / 2:g}" y="{top + side / 2:g}" dy=".35em" text-anchor="middle" '
        f'font-size="{size}" fill="{ink}" pointer-events="none">{count}</text>'
    )
