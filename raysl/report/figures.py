"""Drawings as inline SVG: matplotlib draws them in stand-in colours that the page's style sheet then decides."""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray

from raysl.report.contents import Score
from raysl.report.summary import large

INK, MUTED, GRID = "#010101", "#020202", "#030303"
TRAINED, UNTRAINED, PIXELS = "#040404", "#050505", "#060606"
BAD, PAPER = "#070707", "#080808"
"""Colours that do not exist on the page: each becomes the CSS variable of its name, for light and dark mode."""

VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    TRAINED: "var(--trained)",
    UNTRAINED: "var(--untrained)",
    PIXELS: "var(--pixels)",
    BAD: "var(--bad)",
    PAPER: "var(--paper)",
}
CLASS_COLOURS = (
    *("#2f7ed8", "#e8862b", "#2ca25f", "#d64550", "#8e6bd0"),
    *("#9c6b4e", "#d96fb4", "#7f8a94", "#a8a02a", "#21a9b8"),
)
CLASS_SHAPES = ("o", "^")
MAX_NAMED_CLASSES = len(CLASS_COLOURS) * len(CLASS_SHAPES)
"""Classes that colour and shape can tell apart."""

FLATTEST = 0.3
"""Least height of a map, as a share of its width."""
MAX_LABEL = 22
"""Letters in a line beside the bars."""

COLUMNS = (("trained", TRAINED), ("untrained", UNTRAINED), ("pixels", PIXELS))


def score_bars(scores: Sequence[Score], headings: Sequence[str], name: str = "scores") -> str:
    """Horizontal bars in groups: for each score trained (with whiskers, see `whiskers`), untrained and raw pixels.

    Args:
        scores: of one unit.
        headings: a name for each.
        name: of the drawing, unique on the page.
    """
    unit = scores[0].unit
    drawn = [(column, colour) for column, colour in COLUMNS if any(_is_drawn(score, column) for score in scores)]
    figure = Figure(figsize=(5, 0.75 + len(scores) * (0.28 + 0.22 * len(drawn))))
    thickness = 0.78 / max(1, len(drawn))
    with drawing(figure) as axes:
        for group, score in enumerate(scores):
            for place, (column, colour) in enumerate(drawn):
                if _is_drawn(score, column):
                    middle = group + (place - (len(drawn) - 1) / 2) * thickness
                    is_main = column == "trained"
                    reach = whiskers(score) if is_main else None
                    bar(axes, middle, thickness * 0.88, _value(score, column), unit, colour, reach, is_main)
        values = [_value(score, column) for score in scores for column, _ in drawn if _is_drawn(score, column)]
        bar_axes(axes, values, unit, headings)
        return to_svg(figure, name, f"Bars of the scores in {unit or 'numbers'}: trained, untrained, raw pixels")


def bar(
    axes: Axes,
    middle: float,
    thickness: float,
    value: float,
    unit: str,
    colour: str,
    reach: tuple[float, float] | None = None,
    is_main: bool = True,
) -> None:
    """One horizontal bar with its number at the end, and whiskers to both ends of `reach` where it is given."""
    axes.barh(middle, value, height=thickness, color=colour)
    end = 0.0
    if reach is not None:
        end = reach[1]
        axes.errorbar(value, middle, xerr=[[value - reach[0]], [end - value]], color=INK, capsize=3, linewidth=1.4)
    axes.annotate(
        large(value, unit),
        (max(0.0, value, end), middle),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=11,
        color=INK if is_main else MUTED,
        fontweight="bold" if is_main else "normal",
    )


def bar_axes(axes: Axes, values: Sequence[float], unit: str, names: Sequence[str]) -> None:
    """The axes of horizontal bars: groups by their names from the top, one scale for all values."""
    is_percent = unit == "%" and all(0 <= value <= 100 for value in values)
    axes.set_xlim(min(0.0, *values, 0.0), 112 if is_percent else max(*values, 0.0, 1e-9) * 1.15)
    if is_percent:
        axes.set_xticks(range(0, 101, 25))
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_yticks(range(len(names)), [_label(name) for name in names], fontsize=11)
    axes.set_xlabel(unit, color=MUTED, fontsize=10)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["bottom"].set_visible(False)


def whiskers(score: Score) -> tuple[float, float] | None:
    """Where the whiskers of a score's bar end: its interval, else one deviation to both sides; None without either."""
    low, high = (math.nan, math.nan) if score.interval is None else score.interval
    if not low <= score.trained <= high and score.deviation is not None:
        low, high = score.trained - score.deviation, score.trained + score.deviation
    return (low, high) if -math.inf < low <= score.trained <= high < math.inf else None


def whiskers_note(scores: Sequence[Score]) -> str:
    """What the whiskers of a drawing are; empty where there are none."""
    drawn = [score for score in scores if score.unit and whiskers(score) is not None]
    kinds = []
    if any(score.interval is not None for score in drawn):
        kinds.append("95 % interval over test images")
    if any(score.interval is None for score in drawn):
        kinds.append("standard deviation over draws" + " where there is no interval" * bool(kinds))
    return f"Whiskers: {'; '.join(kinds)}." if kinds else ""


def _label(name: str) -> str:
    """A name on at most three short lines."""
    return fill(name, MAX_LABEL, max_lines=3, placeholder=" …")


def _value(score: Score, column: str) -> float:
    """The number in a column of a score, NaN where it has none."""
    value = {"trained": score.trained, "untrained": score.untrained, "pixels": score.pixels}[column]
    return float("nan") if value is None else float(value)


def _is_drawn(score: Score, column: str) -> bool:
    """Whether a column of a score holds a number that a bar can show."""
    return bool(np.isfinite(_value(score, column)))


def embedding_map(points: NDArray[np.float64], labels: NDArray[np.int64], class_names: Sequence[str]) -> str:
    """Points [N, 2] in the colour and shape of their class; up to 20 classes bear their name at their middle."""
    width, height = np.ptp(points, axis=0) + 0.06 * np.ptp(points, axis=0).max()
    figure = Figure(figsize=(5.6, 5.6 * float(np.clip(height / width, FLATTEST, 1.0))))
    with drawing(figure) as axes:
        classes = [int(label) for label in np.unique(labels)]
        for label in classes:
            here = points[labels == label]
            colour, shape = class_colour(label), class_shape(label)
            axes.scatter(here[:, 0], here[:, 1], s=20, linewidths=0, alpha=0.85, color=colour, marker=shape)
        for label in classes if len(classes) <= MAX_NAMED_CLASSES else []:
            if 0 <= label < len(class_names):
                _name_at_middle(axes, points[labels == label], class_names[label])
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_aspect("equal", adjustable="datalim")
        axes.spines["bottom"].set_visible(False)
        return to_svg(figure, "map", "Map of the embeddings, coloured by class")


def _name_at_middle(axes: Axes, points: NDArray[np.float64], name: str) -> None:
    """Write a class's name just above the point that is nearest to the median of its points."""
    left, up = points[np.argmin(np.square(points - np.median(points, axis=0)).sum(axis=1))]
    text = name if len(name) <= 16 else name[:15] + "…"
    halo = {"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.7}
    font: dict[str, Any] = {"fontsize": 11, "fontweight": "bold", "color": INK, "ha": "center", "va": "bottom"}
    axes.annotate(text, (left, up), xytext=(0, 6), textcoords="offset points", bbox=halo, **font)


def class_colour(label: int) -> str:
    """Colour of a class; grey for unlabelled (-1)."""
    return CLASS_COLOURS[label % len(CLASS_COLOURS)] if label >= 0 else MUTED


def class_shape(label: int) -> str:
    """Marker of a class: the second ten classes differ by shape."""
    return CLASS_SHAPES[label // len(CLASS_COLOURS) % len(CLASS_SHAPES)] if label >= 0 else "o"


@contextmanager
def drawing(figure: Figure) -> Iterator[Axes]:
    """A pair of axes in the page's style. What the caller draws and turns to SVG inside belongs to it.

    Text is taken literally (no mathematics in dollar signs), and SVG keeps it as text.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "raysl", "text.parse_math": False})
        figure.set_layout_engine("constrained")
        axes = figure.add_subplot()
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        axes.set_axisbelow(True)
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(GRID)
        axes.tick_params(colors=GRID, labelcolor=MUTED, labelsize=10)
        yield axes


def to_svg(figure: Figure, name: str, label: str) -> str:
    """A figure as an `<svg>` element for HTML: its ids start with `name`, which is unique on the page."""
    buffer = io.StringIO()
    FigureCanvasSVG(figure)
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None, "matplotlib wrote an svg element without a viewBox"
    body = re.sub(r'\bid="', f'id="{name}-', body.replace("xlink:href", "href"))
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, variable)
    width = round(figure.get_figwidth() * 96)
    start = f'<svg {box.group()} role="img" aria-label="{escape(label)}" style="max-width:{width}px">'
    return start + re.sub(r">\s+<", "><", body).strip()
