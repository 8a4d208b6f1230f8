"""`report.html`: one file that shows a run, numbers and pictures first, and loads nothing from elsewhere."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from raysl.redact import redact, redact_tree, redact_uri
from raysl.report.contents import RunReport
from raysl.report.figure_sections import anchor, figures_of, figures_section
from raysl.report.html import document, facts_line
from raysl.report.patch_sections import patches_script, patches_section, reconstructions_section
from raysl.report.picture_sections import (
    curves_section,
    map_section,
    nearest_class_notes,
    neighbours_section,
    views_section,
)
from raysl.report.record_sections import environment_section, settings_section, times_section, use_section
from raysl.report.report_json import report_json
from raysl.report.score_sections import benchmarks_section, results_section
from raysl.report.tables import score_csv, score_latex

MIN_LISTED = 3
"""Sections from which a page has a table of contents."""
FILES = ("report.json", "report.html", "report.csv", "report.tex")
"""What `write_report` writes; the last two hold the table of the scores."""


def write_report(report: RunReport, folder: Path) -> Path:
    """Write `FILES` into `folder`, which is made if need be; returns the path of the page.

    None holds credentials.
    """
    report = redacted(report)
    folder.mkdir(parents=True, exist_ok=True)
    texts = (report_json(report), page(report), score_csv(report.scores), score_latex(report.scores))
    for name, text in zip(FILES, texts, strict=True):
        (folder / name).write_text(text, encoding="utf-8", errors="replace", newline="")
    return folder / "report.html"


def redacted(report: RunReport) -> RunReport:
    """Return a report with the credentials in its texts as `***`."""
    return replace(
        report,
        config=redact_tree(report.config),
        scores=[replace(score, title=redact(score.title), note=redact(score.note)) for score in report.scores],
        figures=redact_tree(report.figures),
        checkpoint=redact_uri(report.checkpoint),
        command=redact(report.command),
        events=[redact(event) for event in report.events],
        notes=[redact(note) for note in report.notes],
    )


def page(report: RunReport) -> str:
    """Return the page as HTML text: the same report gives the same text."""
    figures, patches = figures_of(report), patches_section(report)
    parts = [
        results_section(report.scores, [*report.notes, *nearest_class_notes(report)]),
        curves_section(report),
        map_section(report),
        views_section(report),
        reconstructions_section(report),
        neighbours_section(report),
        patches,
        benchmarks_section(report.scores, {name: anchor(name) for name in figures}),
        figures_section(figures),
        times_section(report),
        settings_section(report),
        environment_section(report),
        use_section(report),
    ]
    title = f"{report.name}: {report.method} on {report.dataset}"
    body = "\n".join([_title(report), *contents(parts), *(part for part in parts if part)])
    return document(title, body, script=patches_script() if patches else "")


def contents(parts: Sequence[str]) -> list[str]:
    """Return links to the sections of a page; none where there are few."""
    pattern = re.compile(r'<section id="([\w-]+)"[^>]*><h2>(.*?)</h2>')
    headings = [heading for part in parts for heading in pattern.findall(part)]
    if len(headings) < MIN_LISTED:
        return []
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in headings)
    return [f'<nav aria-label="Contents"><ul>{links}</ul></nav>']


def _title(report: RunReport) -> str:
    """Return the name of the run, with method, backbone, data set and end beneath."""
    pieces = [f"<b>{escape(text)}</b>" for text in (report.method, report.backbone, report.dataset) if text]
    if report.finished:
        pieces.append(f"written {escape(report.finished.replace('T', ' ').replace('+00:00', ' UTC'))}")
    return f"<header><h1>{escape(report.name)}</h1>{facts_line(pieces)}</header>"
