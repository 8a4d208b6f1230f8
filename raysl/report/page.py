"""`report.html`: one file that shows a run, the numbers and pictures first, with nothing loaded from elsewhere."""

from dataclasses import replace
from html import escape
from pathlib import Path

from raysl.redact import redact, redact_tree, redact_uri
from raysl.report.contents import RunReport, report_json
from raysl.report.html import document
from raysl.report.picture_sections import curves_section, map_section, neighbours_section, views_section
from raysl.report.record_sections import environment_section, settings_section, times_section, use_section
from raysl.report.score_sections import benchmarks_section, results_section


def write_report(report: RunReport, folder: Path) -> Path:
    """Write `report.json` and `report.html` into `folder`, which is made if need be; returns the path of the page.

    Neither holds credentials.
    """
    report = replace(
        report,
        config=redact_tree(report.config),
        checkpoint=redact_uri(report.checkpoint),
        command=redact(report.command),
        events=[redact(event) for event in report.events],
        notes=[redact(note) for note in report.notes],
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(report_json(report), encoding="utf-8")
    path = folder / "report.html"
    path.write_text(page(report), encoding="utf-8", errors="replace")
    return path


def page(report: RunReport) -> str:
    """The page as HTML text: the same report gives the same text."""
    parts = [
        _title(report),
        results_section(report.scores, report.notes),
        curves_section(report),
        map_section(report),
        views_section(report),
        neighbours_section(report),
        benchmarks_section(report.scores),
        times_section(report),
        settings_section(report),
        environment_section(report),
        use_section(report),
    ]
    title = f"{report.name}: {report.method} on {report.dataset}"
    return document(title, "\n".join(part for part in parts if part))


def _title(report: RunReport) -> str:
    """Name of the run; method, backbone, data set and end beneath."""
    pieces = [f"<b>{escape(text)}</b>" for text in (report.method, report.backbone, report.dataset) if text]
    if report.finished:
        pieces.append(f"finished {escape(report.finished.replace('T', ' ').replace('+00:00', ' UTC'))}")
    return f'<header><h1>{escape(report.name)}</h1><p class="what">{" · ".join(pieces)}</p></header>'
