"""Drawings of several checkpoints together: bars, lines by stage and against k, courses over training."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from raysl.leaderboard.comparison import Comparison, Row
from raysl.report.bars import Bar, bar_chart, whiskers, whiskers_note
from raysl.report.chart import CLASS_COLOURS, legend
from raysl.report.contents import Score
from raysl.report.families import families, stages_of
from raysl.report.line_chart import Line, line_chart, lines_of

MAX_BARS = 8
"""Numbers that are drawn as bars."""
MAX_NETWORKS = len(CLASS_COLOURS)
"""Checkpoints that are drawn; the tables have all."""
MAX_CHARTS = 24
"""Numbers that are drawn against steps, of the leading ones and of the others each."""


def bars(comparison: Comparison, rows: Sequence[Row]) -> str:
    """Return a drawing for each named unit, of at most MAX_BARS rows."""
    rows = _leading(rows)
    drawings: list[str] = []
    for unit in dict.fromkeys(row.any.unit for row in rows if row.any.unit):
        alike = [row for row in rows if row.any.unit == unit]
        half = math.ceil(len(alike) / 2)
        for part in (alike[:half], alike[half:]):  # side by side, where the page has room
            drawings.append(_bars_of(comparison, part, unit))
    if not any(drawings):
        return ""
    names = comparison.names[:MAX_NETWORKS]
    marks = legend([(CLASS_COLOURS[index], "o", name) for index, name in enumerate(names)])
    note = whiskers_note([score for row in rows for score in row.scores if score is not None])
    if len(comparison.names) > MAX_NETWORKS:
        note = f"The first {MAX_NETWORKS} of {len(comparison.names)} checkpoints. {note}"
    caption = f"<figcaption>{note}</figcaption>" if note else ""
    return f'<figure class="bars">{marks}<div class="pair">{"".join(drawings)}</div>{caption}</figure>'


def _leading(rows: Sequence[Row]) -> Sequence[Row]:
    """Return at most MAX_BARS rows: where there are more, the first of each benchmark before the others."""
    if len(rows) <= MAX_BARS:
        return rows
    first = _firsts(rows)
    return [*first, *(row for row in rows if row not in first)][:MAX_BARS]


def _firsts(rows: Sequence[Row]) -> list[Row]:
    """Return the first row of each benchmark."""
    return list({row.any.benchmark: row for row in reversed(rows)}.values())[::-1]


def _bars_of(comparison: Comparison, rows: Sequence[Row], unit: str) -> str:
    num = min(len(comparison.names), MAX_NETWORKS)
    groups = [(row.any.heading, [_bar(row, index) for index in range(num)]) for row in rows]
    if not any(bar for _, bars in groups for bar in bars):
        return ""
    return bar_chart(groups, unit, f"Bars of the scores in {unit} of each checkpoint")


def _bar(row: Row, index: int) -> Bar | None:
    score = row.scores[index]
    if score is None or not math.isfinite(score.trained):
        return None
    return Bar(score.trained, CLASS_COLOURS[index], whiskers(score), index in row.best)


def depth_section(comparison: Comparison) -> str:
    """Return numbers by stage and against k, a line a checkpoint."""
    charts = _stage_charts(comparison) + _family_charts(comparison)
    if not charts:
        return ""
    return f'<section id="lines"><h2>By stage, and against k</h2><div class="figures">{"".join(charts)}</div></section>'


def _by_benchmark(comparison: Comparison, index: int) -> dict[str, list[Score]]:
    scores: dict[str, list[Score]] = {}
    for score in comparison.reports[index].scores:
        scores.setdefault(score.benchmark, []).append(score)
    return scores


def _stage_charts(comparison: Comparison) -> list[str]:
    """Return one chart for each number by stage; at relative depth where the networks' stages differ."""
    by_title: dict[str, dict[int, dict[str, Score]]] = {}
    for index in range(min(len(comparison.names), MAX_NETWORKS)):
        for benchmark, scores in _by_benchmark(comparison, index).items():
            for group in stages_of(scores):
                by_title.setdefault(f"{benchmark}: {group.title}", {})[index] = group.scores
    charts = []
    for title, members in by_title.items():
        stages = list(next(iter(members.values())))
        are_alike = all(list(group) == stages for group in members.values())
        lines = []
        for index, by_stage in members.items():
            gap = 1.0 if are_alike else 1 / max(1, len(by_stage) - 1)
            lines.append(
                _line(comparison, index, {depth * gap: score for depth, score in enumerate(by_stage.values())})
            )
        unit = next(iter(next(iter(members.values())).values())).unit
        x = "stage" if are_alike else "relative depth"
        charts.append(line_chart(lines, x, unit, title, False, stages if are_alike else ()))
    return charts


def _family_charts(comparison: Comparison) -> list[str]:
    by_title: dict[tuple[str, str], list[Line]] = {}
    units: dict[tuple[str, str], str] = {}
    for index in range(min(len(comparison.names), MAX_NETWORKS)):
        for benchmark, scores in _by_benchmark(comparison, index).items():
            for family in families(scores):
                key = (f"{benchmark}: {family.title}", family.x)
                by_title.setdefault(key, []).append(_line(comparison, index, family.scores))
                units[key] = next(iter(family.scores.values())).unit
    return [line_chart(lines, key[1], units[key], key[0]) for key, lines in by_title.items()]


def _line(comparison: Comparison, index: int, scores: Mapping[float, Score]) -> Line:
    """Return the numbers of a checkpoint as a line in its colour."""
    finite = {x: score for x, score in scores.items() if math.isfinite(score.trained)}
    points = [(x, score.trained) for x, score in finite.items()]
    return Line(
        comparison.names[index], points, CLASS_COLOURS[index], bounds=[whiskers(score) for score in finite.values()]
    )


def _points(comparison: Comparison, row: Row, indices: Sequence[int]) -> list[tuple[float, float]]:
    """Return (step, value) of the checkpoints of a run."""
    pairs = [(comparison.reports[index].step, row.scores[index]) for index in indices]
    return [(float(step), score.trained) for step, score in pairs if score is not None and math.isfinite(score.trained)]


def steps_section(comparison: Comparison) -> str:
    """Return numbers against the step of training, a line a run."""
    runs = comparison.runs
    charts = {True: list[str](), False: list[str]()}
    headlines = _firsts([row for row in comparison.rows if row.any.is_headline])
    for row in comparison.rows if runs else ():
        lines = lines_of([(run, _points(comparison, row, indices)) for run, indices in runs.items()])
        lines = [line for line in lines if len(line.points) > 1]
        leads = row in headlines or not row.any.unit
        if lines and len(charts[leads]) < MAX_CHARTS:
            title = f"{row.any.benchmark}: {row.any.heading}"
            charts[leads].append(line_chart(lines, "step", row.any.unit, title, False))
    if not any(charts.values()):
        return ""
    shown = "".join(charts[True] or charts[False])
    folded = ""
    if charts[True] and charts[False]:
        others = "".join(charts[False])
        folded = f'<details><summary>Further numbers</summary><div class="figures">{others}</div></details>'
    names = escape(", ".join(runs))
    heading = f'<section id="steps"><h2>Against the steps of training</h2><p class="quiet">Checkpoints of {names}.</p>'
    return f'{heading}<div class="figures">{shown}</div>{folded}</section>'
