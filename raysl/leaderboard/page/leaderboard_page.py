"""`leaderboard.html`: a sweep in one file that loads nothing from elsewhere."""

import base64
import io
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from PIL import Image

from raysl.leaderboard.best import NUM_BEST, BestRun, best_runs
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.curves import curves_section
from raysl.leaderboard.page.head import head
from raysl.leaderboard.page.importance import importance, importance_section
from raysl.leaderboard.page.lineage import lineage_section
from raysl.leaderboard.page.parallel import axes, parallel_section
from raysl.leaderboard.page.rows import row_name
from raysl.leaderboard.page.scatters import scatter_sections
from raysl.leaderboard.page.table import table_section
from raysl.report.html import document, figure, fold, quiet, section
from raysl.report.images import BAND, CELL, FRAME, GAP, data_uri
from raysl.report.run_page import contents

RELOAD_S = 15.0
"""Seconds after which the page of a sweep that runs is loaded again."""


def page(
    board: Leaderboard,
    configs: Mapping[str, str] | None = None,
    neighbours: Mapping[str, str] | None = None,
    reload_s: float = RELOAD_S,
) -> str:
    """Return the page as HTML text: the same leaderboard gives the same text.

    Args:
        configs: texts of the best configurations, by the names of their files.
        neighbours: pictures of the best runs, by their names, as the `src` of an image.
        reload_s: seconds after which the page of a sweep that runs is loaded again.
    """
    facts = board.facts
    parts = [
        table_section(board),
        *(part for section in board.sections for part in _drawings(section)),
        lineage_section(board),
        _neighbours(board, neighbours or {}),
        _configurations(board, configs or {}),
    ]
    again = f'<noscript><meta http-equiv="refresh" content="{reload_s:g}"></noscript>'
    body = [
        again if facts.state == "running" else "",
        head(board, reload_s),
        *contents(parts),
        *parts,
        '<div id="tip" role="status" hidden></div>',
    ]
    title = f"{facts.name}: {'runs' if facts.kind == 'runs' else 'leaderboard'}"
    return document(title, "\n".join(filter(None, body)), _read("page.css"), script())


def _drawings(board: Leaderboard) -> list[str]:
    rows, facts = board.choices, board.facts
    scales = axes(rows, facts.space, with_config=facts.kind == "sweep")
    learned = importance(rows, scales, facts.objectives[0].metric)
    return [
        curves_section(board),
        parallel_section(board, scales),
        importance_section(board, scales, learned),
        scatter_sections(board),
    ]


def script() -> str:
    """Return the page's JavaScript."""
    return f'"use strict";\n(() => {{\n{_read("page.js")}}})();\n'


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _neighbours(board: Leaderboard, neighbours: Mapping[str, str]) -> str:
    figures = []
    for best in best_runs(board):
        if picture := neighbours.get(best.run.trial):
            image = f'<img src="{picture}" alt="Queries and their nearest neighbours of rank {best.rank}">'
            figures.append(figure(_title(best), image))
    if not figures:
        return ""
    note = (
        "The same queries (grey, on the left) and what each backbone finds most similar, nearest first. ✔ and green: "
        "same class; ✘ and red: another class. The number is the cosine similarity."
    )
    body = f'{quiet(note)}<div class="beside">{"".join(figures)}</div>'
    return section("neighbours", "Neighbours of the best", body)


def _title(best: BestRun) -> str:
    return f'<span class="badge best{best.rank}">{best.rank}</span> {escape(row_name(best.row))}'


def _configurations(board: Leaderboard, configs: Mapping[str, str]) -> str:
    folds, commands = [], []
    for best in best_runs(board):
        if text := configs.get(best.file):
            title = f'{_title(best)} <code><a href="{best.file}">{best.file}</a></code>'
            copy = '<button type="button" class="copy" hidden>Copy</button>'
            commands.append(f"<pre>{escape(best.command(board))}</pre>")
            folds.append(fold(title, f"{copy}<pre>{escape(text)}</pre>", f' id="config{best.rank}"'))
    if not folds:
        return ""
    note = f"Whole configurations of the best {NUM_BEST}, each a run of its own beside the sweep."
    return section("configurations", "Best configurations", quiet(note) + commands[0] + "".join(folds))


NUM_QUERIES, WIDTH = 6, 620
"""Rows of a run's sheet that are kept, and the width in pixels to which it is made smaller."""
SHEET = re.compile(r'<section id="neighbours">.*?<img src="data:image/\w+;base64,([A-Za-z0-9+/=]+)"', re.DOTALL)


def neighbours_of(report: str) -> str:
    """Return the first queries of a run's page with their neighbours, as the `src` of an image; empty without any."""
    match = SHEET.search(report)
    if match is None:
        return ""
    try:
        sheet = Image.open(io.BytesIO(base64.b64decode(match[1]))).convert("RGBA")
    except (OSError, ValueError):  # the page was cut off while it was written
        return ""
    rows = NUM_QUERIES * (CELL + FRAME + BAND + GAP) - GAP
    sheet = sheet.crop((0, 0, sheet.width, min(sheet.height, rows)))
    if sheet.width > WIDTH:
        sheet = sheet.resize((WIDTH, round(sheet.height * WIDTH / sheet.width)), Image.Resampling.LANCZOS)
    return data_uri(sheet, png_limit=0)
