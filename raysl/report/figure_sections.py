"""The section of a run's page with the figures of each benchmark."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

from raysl.errors import log
from raysl.report.benchmark_figures import (
    confusion_figure,
    curves_figures,
    family_figure,
    per_class_figure,
    reliability_figure,
    stages_figure,
)
from raysl.report.contents import Retrieved, RunReport, Score, by_benchmark
from raysl.report.families import families, stages_of
from raysl.report.html import fold, quiet, section, slug
from raysl.report.images import retrieved_sheet
from raysl.report.picture_sections import sheet_figure

DAMAGED = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""What values give that are not what a drawing is made of."""


def figures_section(figures: Mapping[str, Mapping[str, str]]) -> str:
    """Return the drawings of `figures_of`, folded by benchmark; the first is open."""
    parts = []
    for index, (benchmark, drawings) in enumerate(figures.items()):
        names = f'<span class="quiet">{escape(", ".join(drawings))}</span>'
        body = f'<div class="figures">{"".join(drawings.values())}</div>'
        is_open = " open" if index == 0 else ""
        parts.append(fold(f"{escape(benchmark)} {names}", body, f' id="{anchor(benchmark)}"{is_open}'))
    return section("figures", "Benchmark by benchmark", "".join(parts)) if parts else ""


def anchor(benchmark: str) -> str:
    """Return the id of a benchmark's drawings."""
    return f"of-{slug(benchmark)}"


def figures_of(report: RunReport) -> dict[str, dict[str, str]]:
    """Return drawings by benchmark and by what they show, of benchmarks that have any.

    Figures of unknown names are left out; one that cannot be drawn is left out with a line in the log.
    """
    scores = by_benchmark(report.scores)
    pictures = report.retrieved or {}
    figures = {}
    for benchmark in dict.fromkeys([*scores, *report.figures, *pictures]):
        drawn = _of_scores(scores.get(benchmark, ()))
        drawn |= _of_figures(report.figures.get(benchmark), benchmark)
        if benchmark in pictures:
            drawn["retrieved images"] = _drawn(partial(_grid, pictures[benchmark], _class_names(report)), benchmark)
        drawn = {kind: text for kind, text in drawn.items() if text}
        if drawn:
            figures[benchmark] = drawn
    return figures


def _of_scores(scores: Sequence[Score]) -> dict[str, str]:
    """Draw numbers that belong together."""
    drawn = {stages.title: stages_figure(stages) for stages in stages_of(scores)}
    drawn |= {family.title: family_figure(family) for family in families(scores)}
    return {title[:1].lower() + title[1:]: drawing for title, drawing in drawn.items()}


def _of_figures(figures: Any, benchmark: str) -> dict[str, str]:
    """Draw the figures that a benchmark left for the page."""
    if not isinstance(figures, Mapping):
        return {}
    confusion = figures.get("confusion")
    classes = confusion.get("classes") if isinstance(confusion, Mapping) else None
    kinds: dict[str, Callable[[Any], str]] = {
        "confusion": confusion_figure,
        "reliability": reliability_figure,
        "per_class": partial(per_class_figure, classes=classes if isinstance(classes, list) else []),
        "curves": curves_figures,
    }
    titles = {"per_class": "classes"}
    return {
        titles.get(kind, kind): _drawn(partial(draw, figures[kind]), f"{benchmark}: {kind}")
        for kind, draw in kinds.items()
        if kind in figures
    }


def _drawn(draw: Callable[[], str], what: str) -> str:
    """Return what `draw` returns; empty where it fails for its values."""
    try:
        return draw()
    except DAMAGED as error:
        log.warning("a figure is left out of the page, %s cannot be drawn: %r", what, error)
        return ""


def _grid(sample: Retrieved, class_names: Sequence[str]) -> str:
    """Draw queries with their search results, right ones marked."""
    sheet = retrieved_sheet(sample, class_names)
    shown = sample.right[: sheet.num_rows]
    note = f"✔ and green: right ({int(shown.sum())} of {shown.size}); ✘ and red: wrong. Best first."
    picture = sheet_figure(sheet, "Queries and search results")
    return f'<div class="whole"><h3>Retrieved images</h3>{picture}{quiet(note)}</div>'


def _class_names(report: RunReport) -> list[str]:
    return report.embeddings.class_names if report.embeddings is not None else []
