"""Drawings of benchmarks' figures: reliability, single classes, lines, stages; HTML from values of JSON."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from raysl.report.bars import COLUMNS, is_drawn, whiskers
from raysl.report.chart import Chart, legend
from raysl.report.families import FEATURES, Family, Stages
from raysl.report.html import table
from raysl.report.line_chart import Line, line_chart, lines_of
from raysl.report.score_table import COLUMN_TITLES
from raysl.report.summary import large, readable

COLOUR = "var(--trained)"
MAX_BY_CLASS = 30
"""Classes that are all drawn; of more the worst and the best, half of so many each."""


def reliability_figure(content: Mapping[str, Any]) -> str:
    """Draw the diagram of `raysl.benchmarks.suite.figures.reliability` with the expected calibration error."""
    bins = np.array([[float(value) for value in row] for row in content["bins"]])
    if bins.ndim != 2 or bins.shape[1] != 3 or not np.isfinite(bins).all() or bins.min() < 0:
        raise ValueError("bins are [mean confidence, share that is right, number of images]")
    confidence, share, counts = bins.T
    chart = Chart(420, 370, "Reliability: share of right predictions over their confidence")
    ticks = [(float(tick), str(tick)) for tick in range(0, 101, 25)]
    chart.frame([0, 100], [0, 100], "confidence, %", "right, %", x_ticks=ticks)
    chart.line([(0, 0), (100, 100)], stroke="var(--muted)", stroke_width=1.2, stroke_dasharray="5 4")
    for mean, right, count in zip(100 * confidence, 100 * share, counts / counts.max(), strict=True):
        gap: dict[str, Any] = {"stroke": COLOUR, "stroke_width": 2, "stroke_opacity": 0.45}
        chart.line([(mean, mean), (mean, right)], **gap)
        chart.dot((mean, right), float(np.sqrt(8 + 90 * count)), fill=COLOUR)
    svg = chart.svg()
    means = np.average(100 * bins[:, :2], axis=0, weights=counts)
    error = float(content["ece"])
    note = (
        f"Expected calibration error {large(error)} %: the gap to the dashed line, on average over images (Guo et al. "
        f"2017). Mean confidence {large(means[0])} %, right {large(means[1])} %. Area of a dot: number of images."
    )
    return f"<figure><h3>Reliability</h3>{svg}<figcaption>{note}</figcaption></figure>"


def per_class_figure(values_by_title: Mapping[str, Any], classes: Sequence[Any]) -> str:
    """Draw a bar for each class, the lowest first.

    Args:
        values_by_title: {title: {class: number}}.
        classes: names of the classes, for those that are given by their number; may be empty.
    """
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
    rows, note = [_class_row(name, value, end) for name, value in ordered], ""
    if len(rows) > MAX_BY_CLASS:
        half = MAX_BY_CLASS // 2
        note = f"<figcaption>The {half} lowest and the {half} highest of {len(rows):,} classes.</figcaption>"
        rows = rows[:half] + rows[-half:]
    return f'<figure class="classes"><h3>{escape(title)}</h3>{table("", rows)}{note}</figure>'


def _class_row(name: str, value: float, end: float) -> str:
    share = min(100.0, max(0.0, 100 * value / end))
    shown = large(value) if end == 100 else readable(value)
    bar = f'<td class="bar"><div style="width:{share:.1f}%"></div></td>'
    return f'<td class="name">{escape(name)}</td><td class="number">{shown}</td>{bar}'


def curves_figures(charts: Mapping[str, Any]) -> str:
    """Drawings of lines: {title: {"x": name, "y": name, "lines": {name: [[x, y], ...]}}}."""
    drawings = []
    for title, content in charts.items():
        named = [(str(key), _points(points)) for key, points in content["lines"].items()]
        x, y = str(content["x"]), str(content["y"])
        drawings.append(line_chart(lines_of(named), x, y, str(title)))
    return "".join(drawings)


def _points(points: Sequence[Sequence[Any]]) -> list[tuple[float, float]]:
    """Return finite points by ascending x."""
    pairs = [(float(x), float(y)) for x, y in points if x is not None and y is not None]
    return sorted(pair for pair in pairs if math.isfinite(pair[0]) and math.isfinite(pair[1]))


def family_figure(family: Family) -> str:
    """Draw one number against k or the like: trained with its whiskers, untrained and raw pixels."""
    lines = []
    for column, colour in COLUMNS:
        members = [(x, score) for x, score in family.scores.items() if is_drawn(score, column)]
        points = [(x, float(getattr(score, column))) for x, score in members]
        bounds = [whiskers(score) if column == "trained" else None for _, score in members]
        lines.append(Line(COLUMN_TITLES[column], points, colour, bounds=bounds))
    unit = next(iter(family.scores.values())).unit
    return line_chart(lines, family.x, unit, family.title)


def stages_figure(stages: Stages) -> str:
    """Return bars of one number by stage, from the first to the last: trained with whiskers, untrained, raw pixels."""
    scores = list(stages.scores.values())
    columns = [(name, colour) for name, colour in COLUMNS if any(is_drawn(score, name) for score in scores)]
    reaches = {index: whiskers(score) for index, score in enumerate(scores)}
    values = [float(getattr(score, name)) for score in scores for name, _ in columns if is_drawn(score, name)]
    ends = [end for reach in reaches.values() for end in reach or ()]
    chart = Chart(max(420, 80 + 80 * len(scores)), 310, f"{stages.title}: trained, untrained, raw pixels")
    ticks = [(float(index), name) for index, name in enumerate(stages.scores)]
    chart.frame([-0.5, len(scores) - 0.5], [0.0, *values, *ends], " ", scores[0].unit, padding=0, x_ticks=ticks, top=40)
    thick = 0.8 / max(1, len(columns)) * (chart.x(1) - chart.x(0))
    for turn, (name, colour) in enumerate(columns):
        for index, score in enumerate(scores):
            if is_drawn(score, name):
                left = chart.x(index) + (turn - len(columns) / 2) * thick
                reach = reaches[index] if name == "trained" else None
                _stage_bar(chart, (left, 0.9 * thick), float(getattr(score, name)), colour, reach)
                if name == "trained":
                    top = chart.y(max(0.0, float(score.trained), *(reach or ())))
                    where: dict[str, Any] = {"x": left + 0.45 * thick, "y": top - 5, "text_anchor": "middle"}
                    chart.add("text", large(score.trained, score.unit), class_="label", **where)
    marks = legend([(colour, "o", COLUMN_TITLES[name]) for name, colour in columns])
    note = f"<figcaption>From shallow to deep; {FEATURES}: what the network gives at its end.</figcaption>"
    return f"<figure><h3>{escape(stages.title)}</h3>{marks}{chart.svg()}{note}</figure>"


def _stage_bar(
    chart: Chart, span: tuple[float, float], value: float, colour: str, reach: tuple[float, float] | None
) -> None:
    """Draw one upright bar, whose left edge and width are in pixels, with its whiskers."""
    (left, width), (top, bottom) = span, sorted((chart.y(0.0), chart.y(value)))
    chart.add("rect", x=left, y=top, width=width, height=bottom - top, fill=colour)
    if reach is not None:
        chart.whiskers(left + width / 2, *reach, "var(--ink)")
