"""Drawings of benchmarks' figures: reliability, single classes, lines, stages; HTML from values of JSON."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from raysl.report.bars import COLOURS, column_legend, score_bars
from raysl.report.families import FEATURES, Family
from raysl.report.html import bar_cell, figure, table
from raysl.report.line_chart import line_chart, lines_of, score_line
from raysl.report.marks import Chart
from raysl.report.scales import PERCENT_TICKS, Point
from raysl.report.score_table import COLUMN_TITLES
from raysl.report.summary import large, readable

COLOUR = "var(--trained)"
MAX_BY_CLASS = 30
"""Most classes that are drawn; of more, the worst half and the best half of this number."""


def reliability_figure(content: Mapping[str, Any]) -> str:
    """Draw the diagram of `raysl.benchmarks.suite.figures.reliability` with the expected calibration error."""
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
