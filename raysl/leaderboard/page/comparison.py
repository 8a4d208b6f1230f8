"""`comparison.html`: what several checkpoints learned, in one table and in drawings that have them all."""

from collections.abc import Sequence
from html import escape

from raysl.leaderboard.comparison import Comparison, Row
from raysl.leaderboard.page.comparison_charts import bars, depth_section, steps_section
from raysl.report.contents import Score
from raysl.report.html import document, table
from raysl.report.page import contents
from raysl.report.score_table import spread_note


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
    has_units = any(row.any.unit != "%" for row in rows)

    def label(score: Score) -> str:
        unit = f" ({score.unit})" if score.unit and has_units else ""
        return score.heading + unit + (", less is better" if score.is_lower_better else "")

    numbers = found.table(rows, label, "" if has_units else "in %")
    return f'<div class="compared">{numbers.html(is_grouped)}</div>'


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
