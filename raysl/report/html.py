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
    header = f"<thead><tr>{head}</tr></thead>" if head else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table class="full">{header}<tbody>{body}</tbody></table></div>'
