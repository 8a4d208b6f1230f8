"""Drawings of what benchmarks found: reliability, classes one by one, lines, stages; HTML from values of JSON."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raysl.report.contents import Score
from raysl.report.families import FEATURES, Family, Stages
from raysl.report.figures import COLUMNS, GRID, INK, MUTED, TRAINED, VARIABLES, drawing, to_svg, whiskers
from raysl.report.html import table
from raysl.report.legend import legend
from raysl.report.line_chart import Line, line_chart, lines_of
from raysl.report.score_table import COLUMN_TITLES
from raysl.report.summary import large, readable

MAX_BY_CLASS = 30
"""Classes that are all drawn; of more the worst and the best, half of so many each."""


def reliability_figure(found: Mapping[str, Any], name: str) -> str:
    """The diagram of `raysl.benchmarks.suite.figures.reliability` with the expected calibration error.

    Raises:
        ValueError, TypeError, KeyError: if it is something else.
    """
    bins = np.array([[float(value) for value in own] for own in found["bins"]])
    if bins.ndim != 2 or bins.shape[1] != 3 or not np.isfinite(bins).all() or bins.min() < 0:
        raise ValueError("bins are [mean confidence, share that is right, number of images]")
    confidence, share, counts = bins.T
    figure = Figure(figsize=(4.4, 3.9))
    with drawing(figure) as axes:
        axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1.2, linestyle="--")
        axes.vlines(100 * confidence, 100 * confidence, 100 * share, color=TRAINED, linewidth=2, alpha=0.45)
        axes.scatter(100 * confidence, 100 * share, s=18 + 180 * counts / counts.max(), color=TRAINED, linewidths=0)
        axes.set(xlim=(-3, 103), ylim=(-3, 103), xticks=range(0, 101, 25), yticks=range(0, 101, 25))
        axes.set_xlabel("confidence, %", color=MUTED, fontsize=10)
        axes.set_ylabel("right, %", color=MUTED, fontsize=10)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        svg = to_svg(figure, name, "Reliability: share of right predictions over their confidence")
    means = np.average(100 * bins[:, :2], axis=0, weights=counts)
    error = float(found["ece"])
    note = (
        f"Expected calibration error {large(error)} %: the gap to the dashed line, on average over images (Guo et al. "
        f"2017). Mean confidence {large(means[0])} %, right {large(means[1])} %. Area of a dot: number of images."
    )
    return f"<figure><h3>Reliability</h3>{svg}<figcaption>{note}</figcaption></figure>"


def per_class_figure(found: Mapping[str, Any], classes: Sequence[Any]) -> str:
    """Bars for each class, the lowest first.

    Args:
        found: {title: {class: number}}.
        classes: names of the classes, for those that are told by their number; may be empty.

    Raises:
        ValueError, TypeError, AttributeError: if it is something else.
    """
    return "".join(_by_class(str(title), _named(values, classes)) for title, values in found.items())


def _named(values: Mapping[str, Any], classes: Sequence[Any]) -> dict[str, float]:
    """Finite numbers by the names of their classes."""
    known = {str(place): str(name) for place, name in enumerate(classes)}
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


def curves_figures(found: Mapping[str, Any], name: str) -> str:
    """Drawings of lines: {title: {"x": name, "y": name, "lines": {name: [[x, y], ...]}}}.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: if it is something else.
    """
    drawings = []
    for place, (title, content) in enumerate(found.items()):
        named = [(str(key), _points(points)) for key, points in content["lines"].items()]
        x, y = str(content["x"]), str(content["y"])
        drawings.append(line_chart(lines_of(named), x, y, f"{name}-{place}", str(title)))
    return "".join(drawings)


def _points(found: Sequence[Sequence[Any]]) -> list[tuple[float, float]]:
    """Finite points by ascending x; those with a null are left out."""
    pairs = [(float(x), float(y)) for x, y in found if x is not None and y is not None]
    return sorted(pair for pair in pairs if math.isfinite(pair[0]) and math.isfinite(pair[1]))


def family_figure(family: Family, name: str) -> str:
    """One number at several k, or the like: trained with its whiskers, untrained and raw pixels."""
    lines = []
    for column, colour in COLUMNS:
        members = [(x, score) for x, score in family.scores.items() if _is_drawn(score, column)]
        points = [(x, float(getattr(score, column))) for x, score in members]
        bounds = [whiskers(score) if column == "trained" else None for _, score in members]
        lines.append(Line(COLUMN_TITLES[column], points, colour, bounds=bounds))
    unit = next(iter(family.scores.values())).unit
    return line_chart(lines, family.x, unit, name, family.title)


def stages_figure(stages: Stages, name: str) -> str:
    """Bars of one number by stage, from the first to the last: trained with whiskers, untrained, raw pixels."""
    scores = list(stages.scores.values())
    drawn = [(column, colour) for column, colour in COLUMNS if any(_is_drawn(score, column) for score in scores)]
    figure = Figure(figsize=(max(4.4, 0.9 + 0.85 * len(scores)), 3.2))
    with drawing(figure) as axes:
        for place, (column, colour) in enumerate(drawn):
            _column_bars(axes, scores, column, colour, (place - (len(drawn) - 1) / 2) * 0.8 / len(drawn), len(drawn))
        axes.set_xticks(range(len(scores)), list(stages.scores), fontsize=10)
        axes.set_ylabel(scores[0].unit, color=MUTED, fontsize=10)
        axes.tick_params(axis="both", length=0)
        axes.tick_params(axis="x", labelcolor=INK)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.margins(y=0.12)
        svg = to_svg(figure, name, f"{stages.title}: trained, untrained, raw pixels")
    marks = legend([(VARIABLES[colour], "o", COLUMN_TITLES[column]) for column, colour in drawn])
    note = f"<figcaption>From shallow to deep; {FEATURES}: what the network gives at its end.</figcaption>"
    return f"<figure><h3>{escape(stages.title)}</h3>{marks}{svg}{note}</figure>"


def _column_bars(axes: Axes, scores: Sequence[Score], column: str, colour: str, shift: float, num: int) -> None:
    """The bars of one column of the scores, at their places moved by `shift`."""
    for place, score in enumerate(scores):
        if not _is_drawn(score, column):
            continue
        value, top = float(getattr(score, column)), float(getattr(score, column))
        axes.bar(place + shift, value, width=0.8 / num * 0.9, color=colour)
        if column == "trained":
            if (reach := whiskers(score)) is not None:
                top = reach[1]
                errors = [[value - reach[0]], [top - value]]
                axes.errorbar(place + shift, value, yerr=errors, color=INK, capsize=2.5, linewidth=1.2)
            text: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 9.5, "color": INK}
            at = (place + shift, max(0.0, top))
            axes.annotate(large(value, score.unit), at, xytext=(0, 3), textcoords="offset points", **text)


def _is_drawn(score: Score, column: str) -> bool:
    value = getattr(score, column)
    return value is not None and math.isfinite(value)
