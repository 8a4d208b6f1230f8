"""Charts that compare several checkpoints: bars, and line charts by stage, by k, and by training step."""

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape

from raysl.leaderboard.comparison import Comparison, Row
from raysl.report.charts import (
    Bar,
    Line,
    bar_chart,
    drawn_value,
    line_chart,
    lines_of,
    score_bar,
    score_line,
    whiskers_note,
)
from raysl.report.contents import Score, by_benchmark
from raysl.report.families import families, stages_of
from raysl.report.html import figure, fold, quiet, section
from raysl.report.marks import COLOURS, MAX_MARKS, legend
from raysl.report.scales import Point

MAX_BARS = 8
"""Largest number of rows drawn as bars; a row has one bar for each checkpoint."""
MAX_CHECKPOINTS = len(COLOURS)
"""Largest number of checkpoints in bars and in charts by stage and by k; the tables have all."""
MAX_CHARTS = 24
"""Largest number of charts by step in each of two groups: headlines, and further numbers."""


def bars_figure(comparison: Comparison, rows: Sequence[Row]) -> str:
    """Return bar charts of at most MAX_BARS rows, two for each unit; empty if no row has a unit."""
    rows = _choose_rows(rows)
    charts: list[str] = []
    for unit in dict.fromkeys(row.first_score.unit for row in rows if row.first_score.unit):
        same_unit = [row for row in rows if row.first_score.unit == unit]
        half = math.ceil(len(same_unit) / 2)
        # two charts, which stand side by side where the page has room
        charts += [_bar_chart(comparison, part, unit) for part in (same_unit[:half], same_unit[half:])]
    if not any(charts):
        return ""
    colours = legend((colour, "o", name) for colour, name in zip(COLOURS, comparison.names, strict=False))
    scores = [score for row in rows for score in row.scores if score is not None]
    note = f"{_limit_note(comparison)} {whiskers_note(scores)}".strip()
    return figure("", f'{colours}<div class="pair">{"".join(charts)}</div>', note, "bars")


def _limit_note(comparison: Comparison) -> str:
    """Return a sentence if there are more checkpoints than are drawn."""
    num = len(comparison.names)
    return f"The first {MAX_CHECKPOINTS} of {num} checkpoints." if num > MAX_CHECKPOINTS else ""


def _choose_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """Return at most MAX_BARS rows: if there are more, the first row of each benchmark comes before all others."""
    if len(rows) <= MAX_BARS:
        return rows
    first = _first_rows(rows)
    return [*first, *(row for row in rows if row not in first)][:MAX_BARS]


def _first_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the first row of each benchmark."""
    return list({row.first_score.benchmark: row for row in reversed(rows)}.values())[::-1]


def _bar_chart(comparison: Comparison, rows: Sequence[Row], unit: str) -> str:
    num = min(len(comparison.names), MAX_CHECKPOINTS)
    groups = [(row.first_score.heading, [_bar(row, index) for index in range(num)]) for row in rows]
    if not any(bar for _, bars in groups for bar in bars):
        return ""
    return bar_chart(groups, unit, f"Bars of the scores in {unit} of each checkpoint")


def _bar(row: Row, index: int) -> Bar | None:
    """Return the bar of the checkpoint with this index; None if it has no finite score."""
    score = row.scores[index]
    bar = None if score is None else score_bar(score, COLOURS[index])
    return None if bar is None else replace(bar, is_main=index in row.best)


def depth_section(comparison: Comparison) -> str:
    """Return line charts by stage and by k, one line for each checkpoint."""
    groups = [
        (index, benchmark, scores)
        for index, report in enumerate(comparison.reports[:MAX_CHECKPOINTS])
        for benchmark, scores in by_benchmark(report.scores).items()
    ]
    charts = _stage_charts(comparison, groups) + _family_charts(comparison, groups)
    if not charts:
        return ""
    body = f'{quiet(_limit_note(comparison))}<div class="figures">{"".join(charts)}</div>'
    return section("lines", "By stage, and against k", body)


def _stage_charts(comparison: Comparison, groups: Sequence[tuple[int, str, list[Score]]]) -> list[str]:
    """Return one chart for each number by stage; against relative depth if the checkpoints' stages differ."""
    by_title: dict[str, dict[int, dict[str, Score]]] = {}
    for index, benchmark, scores in groups:
        for group in stages_of(scores):
            by_title.setdefault(f"{benchmark}: {group.title}", {})[index] = group.scores
    charts = []
    for title, checkpoints in by_title.items():
        first = next(iter(checkpoints.values()))
        stages = list(first)
        has_same_stages = all(list(by_stage) == stages for by_stage in checkpoints.values())
        lines = []
        for index, by_stage in checkpoints.items():
            spacing = 1.0 if has_same_stages else 1 / max(1, len(by_stage) - 1)
            by_depth = {depth * spacing: score for depth, score in enumerate(by_stage.values())}
            lines.append(score_line(comparison.names[index], by_depth, COLOURS[index]))
        unit = next(iter(first.values())).unit
        x, labels = ("stage", stages) if has_same_stages else ("relative depth", [])
        charts.append(line_chart(lines, x, unit, title, may_be_log=False, labels=labels))
    return charts


def _family_charts(comparison: Comparison, groups: Sequence[tuple[int, str, list[Score]]]) -> list[str]:
    """Return one chart for each number at several k, shots or shares of labels."""
    by_title: dict[tuple[str, str], list[Line]] = {}
    units: dict[tuple[str, str], str] = {}
    for index, benchmark, scores in groups:
        for family in families(scores):
            key = (f"{benchmark}: {family.title}", family.x)
            line = score_line(comparison.names[index], family.scores, COLOURS[index])
            by_title.setdefault(key, []).append(line)
            units[key] = next(iter(family.scores.values())).unit
    return [line_chart(lines, key[1], units[key], key[0]) for key, lines in by_title.items()]


def steps_section(comparison: Comparison) -> str:
    """Return line charts by training step, one line for each run."""
    runs = dict(list(comparison.runs.items())[:MAX_MARKS])
    if not runs:
        return ""
    headlines, others = list[str](), list[str]()
    first = _first_rows([row for row in comparison.rows if row.first_score.is_headline])
    for row in comparison.rows:
        score = row.first_score
        charts = headlines if row in first or not score.unit else others
        lines = lines_of([(run, _points(comparison, row, indices)) for run, indices in runs.items()])
        lines = [line for line in lines if len(line.points) > 1]
        if lines and len(charts) < MAX_CHARTS:
            title = f"{score.benchmark}: {score.heading}"
            charts.append(line_chart(lines, "step", score.unit, title, may_be_log=False))
    if not headlines and not others:
        return ""
    further = fold("Further numbers", f'<div class="figures">{"".join(others)}</div>') if headlines and others else ""
    limit = f" The first {len(runs)} of {len(comparison.runs)} runs." if len(comparison.runs) > len(runs) else ""
    note = f"Checkpoints of {escape(', '.join(runs))}.{limit}"
    body = f'{quiet(note)}<div class="figures">{"".join(headlines or others)}</div>{further}'
    return section("steps", "Against the steps of training", body)


def _points(comparison: Comparison, row: Row, indices: Sequence[int]) -> list[Point]:
    """Return (step, value) of a run's checkpoints that have a finite score."""
    pairs = [(comparison.reports[index].step, row.scores[index]) for index in indices]
    values = [(step, drawn_value(score)) for step, score in pairs if score is not None]
    return [(float(step), value) for step, value in values if value is not None]
