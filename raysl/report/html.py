"""What every page is made of: one file of HTML that loads nothing from elsewhere."""

from collections.abc import Sequence
from html import escape

from raysl.report.style import STYLE


def document(title: str, body: str, style: str = "") -> str:
    """A page.

    Args:
        title: plain text.
        body: HTML of the page's one column.
        style: rules of this kind of page, after those of all pages.
    """
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body><main>\n{body}\n</main></body></html>\n'


def table(head: str, rows: Sequence[str]) -> str:
    """Rows of cells as a table that scrolls on its own where it is too wide."""
    return grouped_table(head, [rows])


def grouped_table(head: str, groups: Sequence[Sequence[str]]) -> str:
    """Groups of rows of cells as one table, likewise."""
    header = f"<thead><tr>{head}</tr></thead>" if head else ""
    bodies = "".join(f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody>" for rows in groups)
    return f'<div class="wide"><table class="full">{header}{bodies}</table></div>'


def slug(text: str) -> str:
    """Text as part of an id: every character but ASCII letters and digits as its code, so that no two texts meet."""
    return "".join(char if char.isascii() and char.isalnum() else f"_{ord(char):x}_" for char in text)
