"""What the colours and shapes of a drawing mean."""

from collections.abc import Sequence
from html import escape

from raysl.report.figures import VARIABLES

SHAPES = {"o": '<circle cx="6" cy="6" r="5.5" {fill}/>', "^": '<path d="M6 0L12 12H0Z" {fill}/>'}
"""Markers, in a box of 12."""


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """(colour, shape, name) entries as a list that wraps."""
    items = []
    for colour, shape, name in entries:
        mark = SHAPES[shape].format(fill=f'style="fill:{VARIABLES.get(colour, colour)}"')
        items.append(f'<li><svg viewBox="0 0 12 12" aria-hidden="true">{mark}</svg>{escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'
