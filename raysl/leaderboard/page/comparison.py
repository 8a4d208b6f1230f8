"""`comparison.html`: what several checkpoints learned, in one table and in drawings that have them all."""

from collections.abc import Sequence
from functools import partial
from html import escape

from raysl.leaderboard.comparison import Comparison, Row, compare
from raysl.leaderboard.page.comparison_charts import bars_figure, depth_section, steps_section
from raysl.report.contents import RunReport, Score
from raysl.report.html import document, fold, quiet, section, table
from raysl.report.run_page import contents
from raysl.report.score_sections import spread_note
from raysl.report.tables import RIVALS
from raysl.storage.folder import Folder, outlast


def write_comparison(reports: Sequence[RunReport], folder: Folder) -> str:
    """Write `comparison.html`, `.json`, `.csv` and `.tex` into a folder, and return the URI of the page."""
    comparison = compare(reports)
    texts = {
        "json": comparison.json(),
        "csv": comparison.csv(),
        "tex": comparison.latex(),
        "html": comparison_page(comparison),
    }
    outlast(folder.make)
    for kind, text in texts.items():
        outlast(partial(folder.write, f"comparison.{kind}", text.encode("utf-8", errors="replace")))
    return folder.uri_of("comparison.html")


def comparison_page(comparison: Comparison) -> str:
    """Return the page as HTML text."""
    headlines = [row for row in comparison.rows if row.first_score.is_headline]
    others = [row for row in comparison.rows if not row.first_score.is_headline]
    parts = [
        _checkpoints(comparison),
        _results(comparison, headlines or others),
        depth_section(comparison),
        steps_section(comparison),
        _all_numbers(comparison) if headlines and others else "",
        _settings(comparison),
    ]
    num = len(comparison.names)
    title = f"Comparison of {num} checkpoint{'s' * (num > 1)}"
    header = f"<header><h1>{title}</h1></header>"
    return document(title, "\n".join([header, *contents(parts), *(part for part in parts if part)]))


def _checkpoints(comparison: Comparison) -> str:
    rows = [
        f'<td class="name main">{escape(name)}</td><td>{escape(report.method)}</td><td>{escape(report.backbone)}</td>'
        f"<td>{escape(report.dataset)}</td><td>{f'{report.step:,}' if report.step else ''}</td>"
        f"<td><code>{escape(report.checkpoint)}</code></td>"
        for name, report in zip(comparison.names, comparison.reports, strict=True)
    ]
    head = "".join(f"<th>{title}</th>" for title in ("", "method", "backbone", "images", "step", "checkpoint"))
    note = ""
    if len({report.dataset for report in comparison.reports}) > 1:
        note = '<p class="note">These were not all measured on the same images: their numbers may not be compared.</p>'
    return section("checkpoints", "Checkpoints", table(head, rows) + note)


def _results(comparison: Comparison, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    numbers = _table(comparison, rows, is_grouped=False) + _notes(rows)
    return section("results", "Results", numbers + bars_figure(comparison, rows))


def _notes(rows: Sequence[Row]) -> str:
    scores = [score for row in rows for score in row.scores if score is not None]
    lines = "Bold and green: the best of a row." if any(row.best for row in rows) else ""
    measured = ((row, rival) for row in rows for rival in RIVALS for score in row.scores if _has(score, rival))
    if any(rival not in row.rivals for row, rival in measured):
        lines += " Untrained networks and raw pixels have a number where all checkpoints have the same one."
    return quiet(lines.strip()) + spread_note(scores)


def _has(score: Score | None, rival: str) -> bool:
    return score is not None and getattr(score, rival) is not None


def _table(comparison: Comparison, rows: Sequence[Row], is_grouped: bool) -> str:
    """Return the numbers of all checkpoints, the best marked, grouped by benchmark where asked for."""
    has_units = any(row.first_score.unit != "%" for row in rows)

    def label(score: Score) -> str:
        unit = f" ({score.unit})" if score.unit and has_units else ""
        return score.heading + unit + (", less is better" if score.is_lower_better else "")

    numbers = comparison.table(rows, label, "" if has_units else "in %")
    return f'<div class="compared">{numbers.html(is_grouped)}</div>'


def _all_numbers(comparison: Comparison) -> str:
    numbers = _table(comparison, comparison.rows, is_grouped=True) + _notes(comparison.rows)
    return section("benchmarks", "Benchmarks", fold(f"All {len(comparison.rows)} numbers", numbers))


def _settings(comparison: Comparison) -> str:
    if len(comparison.reports) < 2:
        return ""
    head = "<th></th>" + "".join(f"<th>{escape(name)}</th>" for name in comparison.names)
    rows = []
    for key, values in comparison.settings.items():
        cells = "".join(f"<td>{'–' if value is None else f'<code>{escape(value)}</code>'}</td>" for value in values)
        rows.append(f'<td class="name"><code>{escape(key)}</code></td>{cells}')
    return section("settings", "Settings that differ", table(head, rows) if rows else "<p>None.</p>")
