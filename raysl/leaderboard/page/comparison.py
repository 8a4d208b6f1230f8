"""`comparison.html`: what several checkpoints learned, in one table and in drawings that have them all."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from raysl.leaderboard.comparison import Comparison, Row
from raysl.leaderboard.page.comparison_charts import bars, depth_section, steps_section
from raysl.report.contents import Score
from raysl.report.html import document, grouped_table, table
from raysl.report.page import contents
from raysl.report.score_table import COLUMN_TITLES, spread_note, spread_of
from raysl.report.summary import number


def comparison_page(found: Comparison) -> str:
    """The page as HTML text."""
    headlines = [row for row in found.rows if row.any.is_headline]
    others = [row for row in found.rows if not row.any.is_headline]
    parts = [
        _checkpoints(found),
        _results(found, headlines or others),
        depth_section(found),
        steps_section(found),
        _all_numbers(found) if headlines and others else "",
        _settings(found),
    ]
    num = len(found.names)
    title = f"Comparison of {num} checkpoint{'s' * (num > 1)}"
    header = f"<header><h1>{title}</h1></header>"
    return document(title, "\n".join([header, *contents(parts), *(part for part in parts if part)]))


def _checkpoints(found: Comparison) -> str:
    """What is compared."""
    rows = [
        f'<td class="name main">{escape(name)}</td><td>{escape(report.method)}</td><td>{escape(report.backbone)}</td>'
        f"<td>{escape(report.dataset)}</td><td>{f'{report.step:,}' if report.step else ''}</td>"
        f"<td><code>{escape(report.checkpoint)}</code></td>"
        for name, report in zip(found.names, found.reports, strict=True)
    ]
    head = "".join(f"<th>{title}</th>" for title in ("", "method", "backbone", "images", "step", "checkpoint"))
    note = ""
    if len({report.dataset for report in found.reports}) > 1:
        note = '<p class="note">These were not all measured on the same images: their numbers may not be compared.</p>'
    return f'<section id="checkpoints"><h2>Checkpoints</h2>{table(head, rows)}{note}</section>'


def _results(found: Comparison, rows: Sequence[Row]) -> str:
    """The table and the bars of what leads."""
    if not rows:
        return ""
    numbers = _table(found, rows, is_grouped=False) + _notes(rows)
    return f'<section id="results"><h2>Results</h2>{numbers}{bars(found, rows)}</section>'


def _notes(rows: Sequence[Row]) -> str:
    scores = [score for row in rows for score in row.scores if score is not None]
    lines = "Bold and green: the best of a row." if any(row.best for row in rows) else ""
    if any(len(row.rivals) < _num_rivals(row) for row in rows):
        lines += " Untrained networks and raw pixels have a number where all checkpoints have the same one."
    return f'<p class="quiet">{lines.strip()}</p>{spread_note(scores)}'


def _num_rivals(row: Row) -> int:
    """How many rivals some checkpoint of a row was measured beside."""
    return sum(
        any(getattr(score, name) is not None for score in row.scores if score is not None)
        for name in ("untrained", "pixels")
    )


def _table(found: Comparison, rows: Sequence[Row], is_grouped: bool) -> str:
    """Numbers of all checkpoints, the best marked; each benchmark's under its name where they are grouped."""
    rivals = [name for name in ("untrained", "pixels") if any(name in row.rivals for row in rows)]
    titles = [*found.names, *(COLUMN_TITLES[name] for name in rivals)]
    has_units = any(row.any.unit != "%" for row in rows)
    head = "<th></th>" if has_units else "<th>in %</th>"
    head += "".join(f'<th class="number">{escape(title)}</th>' for title in titles)
    cells = [_cells(row, rivals, has_units) for row in rows]
    if not is_grouped:
        return f'<div class="compared">{grouped_table(head, [cells])}</div>'
    groups = []
    for benchmark, group in groupby(zip(rows, cells, strict=True), key=lambda pair: pair[0].any.benchmark):
        name = f'<th class="group" scope="rowgroup" colspan="{1 + len(titles)}">{escape(benchmark)}</th>'
        groups.append([name, *(own for _, own in group)])
    return f'<div class="compared">{grouped_table(head, groups)}</div>'


def _cells(row: Row, rivals: Sequence[str], has_units: bool) -> str:
    unit = f" ({escape(row.any.unit)})" if row.any.unit and has_units else ""
    arrow = ", less is better" if row.any.is_lower_better else ""
    cells = [f'<td class="name">{escape(row.any.heading)}{unit}{arrow}</td>']
    best = row.best
    for place, score in enumerate(row.scores):
        kind = "number best" if place in best else "number"
        cells.append(f'<td class="{kind}">{_value(score)}</td>')
    cells += [f'<td class="number">{number(row.rivals.get(name), row.any.unit)}</td>' for name in rivals]
    return "".join(cells)


def _value(score: Score | None) -> str:
    """A number over its interval, or its deviation."""
    if score is None:
        return ""
    spread = spread_of(score)
    return number(score.trained, score.unit) + (f'<div class="spread">{spread}</div>' if spread else "")


def _all_numbers(found: Comparison) -> str:
    numbers = _table(found, found.rows, is_grouped=True) + _notes(found.rows)
    fold = f"<details><summary>All {len(found.rows)} numbers</summary>{numbers}</details>"
    return f'<section id="benchmarks"><h2>Benchmarks</h2>{fold}</section>'


def _settings(found: Comparison) -> str:
    """What differs in the settings."""
    if len(found.reports) < 2:
        return ""
    heading = '<section id="settings"><h2>Settings that differ</h2>'
    if not found.settings:
        return f"{heading}<p>None.</p></section>"
    head = "<th></th>" + "".join(f"<th>{escape(name)}</th>" for name in found.names)
    rows = []
    for key, values in found.settings.items():
        cells = "".join(f"<td>{'–' if own is None else f'<code>{escape(own)}</code>'}</td>" for own in values)
        rows.append(f'<td class="name"><code>{escape(key)}</code></td>{cells}')
    return f"{heading}{table(head, rows)}</section>"
