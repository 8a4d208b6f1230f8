"""Drawings of benchmarks' figures: confusion, reliability, single classes, lines, stages; HTML from values of JSON."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from raysl.report.charts import COLOURS, column_legend, line_chart, lines_of, score_bars, score_line
from raysl.report.families import FEATURES, Family
from raysl.report.html import bar_cell, figure, table
from raysl.report.marks import Chart
from raysl.report.scales import LETTER, PERCENT_TICKS, Point, cut
from raysl.report.summary import large, readable
from raysl.report.tables import COLUMN_TITLES

COLOUR = "var(--trained)"
MAX_BY_CLASS = 30
"""Most classes that are drawn; of more, the worst half and the best half of this number."""


def reliability_figure(content: Mapping[str, Any]) -> str:
    """Draw the diagram of `raysl.benchmarks.suite.measured.reliability` with the expected calibration error."""
    bins = np.array([[float(value) for value in row] for row in content["bins"]])
    if bins.ndim != 2 or bins.shape[1] != 3 or not np.isfinite(bins).all() or bins.min() < 0:
        raise ValueError("bins are [mean confidence, share that is right, number of images]")
    confidence, share, counts = bins.T
    chart = Chart(420, 370, "Reliability: share of right predictions over their confidence")
    chart.frame([0, 100], [0, 100], "confidence, %", "right, %", x_ticks=PERCENT_TICKS)
    chart.line([(0, 0), (100, 100)], stroke="var(--muted)", stroke_width=1.2, stroke_dasharray="5 4")
    for mean, right, count in zip(100 * confidence, 100 * share, counts / counts.max(), strict=True):
        chart.line([(mean, mean), (mean, right)], stroke=COLOUR, stroke_width=2, stroke_opacity=0.45)
        # the root, as the area of a dot shows the number of images
        chart.dot((mean, right), float(np.sqrt(8 + 90 * count)), fill=COLOUR)
    means = np.average(100 * bins[:, :2], axis=0, weights=counts)
    error = float(content["ece"])
    note = (
        f"Expected calibration error {large(error)} %: the gap to the dashed line, on average over images (Guo et al. "
        f"2017). Mean confidence {large(means[0])} %, right {large(means[1])} %. Area of a dot: number of images."
    )
    return figure("Reliability", chart.svg(), note)


def per_class_figure(values_by_title: Mapping[str, Any], classes: Sequence[Any]) -> str:
    """Draw a bar for each class of {title: {class: number}}, the lowest first, with names for numbered classes."""
    return "".join(_by_class(str(title), _named(values, classes)) for title, values in values_by_title.items())


def _named(values: Mapping[str, Any], classes: Sequence[Any]) -> dict[str, float]:
    """Return finite numbers by the names of their classes."""
    known = {str(index): str(name) for index, name in enumerate(classes)}
    is_numbered = set(values) <= set(known)
    finite = {name: float(value) for name, value in values.items() if value is not None and math.isfinite(float(value))}
    return {known[name] if is_numbered else name: value for name, value in finite.items()}


def _by_class(title: str, values: Mapping[str, float]) -> str:
    if not values:
        return ""
    ordered = sorted(values.items(), key=lambda pair: pair[1])
    end = 100.0 if "%" in title else max(ordered[-1][1], 1e-12)
    spell, note = large if end == 100 else readable, ""
    rows = [
        f'<td class="name">{escape(name)}</td><td class="number">{spell(value)}</td>{bar_cell(100 * value / end)}'
        for name, value in ordered
    ]
    if len(rows) > MAX_BY_CLASS:
        half = MAX_BY_CLASS // 2
        note = f"The {half} lowest and the {half} highest of {len(rows):,} classes."
        rows = rows[:half] + rows[-half:]
    return figure(escape(title), table("", rows), note, "classes")


def curves_figures(charts: Mapping[str, Any]) -> str:
    """Drawings of lines: {title: {"x": name, "y": name, "lines": {name: [[x, y], ...]}}}."""
    drawings = []
    for title, content in charts.items():
        named = [(str(key), _points(points)) for key, points in content["lines"].items()]
        x, y = str(content["x"]), str(content["y"])
        drawings.append(line_chart(lines_of(named), x, y, str(title)))
    return "".join(drawings)


def _points(points: Sequence[Sequence[Any]]) -> list[Point]:
    """Return finite points by ascending x."""
    pairs = [(float(x), float(y)) for x, y in points if x is not None and y is not None]
    return sorted(pair for pair in pairs if math.isfinite(pair[0]) and math.isfinite(pair[1]))


def family_figure(family: Family[float]) -> str:
    """Draw one number against k or the like: trained with its whiskers, untrained and raw pixels."""
    lines = [score_line(COLUMN_TITLES[name], family.scores, colour, name) for name, colour in COLOURS.items()]
    return line_chart(lines, family.x, next(iter(family.scores.values())).unit, family.title)


def stages_figure(stages: Family[str]) -> str:
    """Return bars of one number by stage, from the first to the last: trained with whiskers, untrained, raw pixels."""
    scores = list(stages.scores.values())
    note = f"From shallow to deep; {FEATURES}: what the network gives at its end."
    return figure(escape(stages.title), column_legend(scores) + score_bars(scores, list(stages.scores)), note)


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
    """Draw the heat map and the list of `raysl.benchmarks.suite.measured.confusion`."""
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
