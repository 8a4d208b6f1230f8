"""Parts of every page: one HTML file that loads nothing from elsewhere."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path


def document(title: str, body: str, style: str = "", script: str = "") -> str:
    """Return a page.

    Args:
        title: plain text.
        style: rules of this kind of page, after those of all pages.
        script: JavaScript that runs once the body is there; the page allows no other.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"; script-src 'sha256-{digest}'" if script else ""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'{allowed}\">"
        f"<title>{escape(title)}</title><style>{_style()}{style}</style>"
    )
    end = f"<script>{script}</script>" if script else ""
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body><main>\n{body}\n</main>{end}</body></html>\n'


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def facts_line(facts: Sequence[str]) -> str:
    """Return facts, HTML each, in a line with dots between them; where it wraps, no dot ends or begins a line."""
    return f'<p class="what facts">{" ".join(f"<span>{fact}</span>" for fact in facts)}</p>'


def section(name: str, title: str, body: str, kind: str = "") -> str:
    """Return a section of a page; `name` is its id, `title` HTML, and `kind` its class."""
    return f'<section id="{name}"{_class(kind)}><h2>{title}</h2>{body}</section>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def quiet(html: str) -> str:
    """Return a note beside a drawing or a table; nothing for an empty one."""
    return f'<p class="quiet">{html}</p>' if html else ""


def figure(title: str, body: str, note: str = "", kind: str = "") -> str:
    """Return a drawing between its title and what stands beneath it, all of them HTML; `kind` is its class."""
    heading = f"<h3>{title}</h3>" if title else ""
    caption = f"<figcaption>{note}</figcaption>" if note else ""
    return f"<figure{_class(kind)}>{heading}{body}{caption}</figure>"


def fold(summary: str, body: str, attributes: str = "") -> str:
    """Return HTML that is unfolded by a click on its summary."""
    return f"<details{attributes}><summary>{summary}</summary>{body}</details>"


def bar_cell(percent: float) -> str:
    """Return a cell of a table with a bar of this share of its width."""
    return f'<td class="bar"><div style="width:{min(100.0, max(0.0, percent)):.1f}%"></div></td>'


def table(head: str, rows: Sequence[str]) -> str:
    """Return rows of cells as a table that scrolls by itself where it is too wide."""
    return grouped_table(head, [rows])


def grouped_table(head: str, groups: Sequence[Sequence[str]]) -> str:
    """Return groups of rows of cells as one table that scrolls by itself where it is too wide."""
    header = f"<thead><tr>{head}</tr></thead>" if head else ""
    bodies = "".join(f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody>" for rows in groups)
    return f'<div class="wide"><table class="full">{header}{bodies}</table></div>'


def plain_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return texts as a table for a notebook."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def slug(text: str) -> str:
    """Return text as part of an id, unique: each character but ASCII letters and digits becomes its code."""
    return "".join(char if char.isascii() and char.isalnum() else f"_{ord(char):x}_" for char in text)
