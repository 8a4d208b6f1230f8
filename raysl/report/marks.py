"""Marks of all drawings: axes, lines, dots, bars, whiskers and legends, as inline SVG.

Colours are those of the page's style sheet: light and dark follow the reader's system.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from raysl.report.scales import LETTER, Point, Scale, Ticks

COLOURS = (
    *("#2f7ed8", "#e8862b", "#2ca25f", "#d64550", "#8e6bd0"),
    *("#9c6b4e", "#d96fb4", "#7f8a94", "#a8a02a", "#21a9b8"),
)
"""Colours of classes, checkpoints and lines, in this order; they can be read on light and on dark paper."""
SHAPES = {
    "o": '<circle cx="6" cy="6" r="5.5" style="fill:{}"/>',
    "^": '<path d="M6 0L12 12H0Z" style="fill:{}"/>',
}
"""Shapes of a legend by the names of markers."""
MAX_MARKS = len(COLOURS) * len(SHAPES)
"""Classes or lines that colour and shape can tell apart."""


def mark_of(index: int) -> tuple[str, str]:
    """Return colour and shape of a class or a line; a grey circle for -1, unlabelled.

    >>> mark_of(0), mark_of(10)
    (('#2f7ed8', 'o'), ('#2f7ed8', '^'))
    """
    if index < 0:
        return "var(--muted)", "o"
    return COLOURS[index % len(COLOURS)], list(SHAPES)[index // len(COLOURS) % len(SHAPES)]


class Chart:
    """One drawing, to which elements are added in order.

    Args:
        width, height: size of the drawing in pixels; it shrinks with the page.
        label: description for readers who do not see the drawing.
        max_width: pixels beyond which it does not grow; default: its width.
        min_width: pixels below which it does not shrink.

    >>> chart = Chart(300, 200, "Accuracy over epochs")
    >>> chart.frame([0, 10], [50.0, 90.0], "epochs", "%")
    >>> chart.line([(0, 50.0), (10, 90.0)], stroke="var(--trained)")
    >>> chart.svg()[:28]
    '<svg class="chart" viewBox="'
    """

    x: Scale
    y: Scale

    def __init__(
        self, width: float, height: float, label: str, max_width: float | None = None, min_width: float = 0
    ) -> None:
        self.width = width
        self.height = height
        self.label = label
        self.style = f"max-width:{width if max_width is None else max_width:.0f}px"
        self.style += f";min-width:{min_width:.0f}px" if min_width else ""
        self.parts: list[str] = []

    def add(self, element: str, text: str = "", title: str = "", **attributes: Any) -> None:
        """Add an element.

        Args:
            title: text that is shown when it is pointed at.
            **attributes: in Python's spelling: `text_anchor`, `class_`; numbers are in pixels, None leaves one out.
        """
        inner = (f"<title>{escape(title)}</title>" if title else "") + escape(text)
        names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
        written = "".join(f' {name}="{escape(_attribute(value))}"' for name, value in names.items())
        self.parts.append(f"<{element}{written}>{inner}</{element}>" if inner else f"<{element}{written}/>")

    def text(
        self, text: str, x: float, y: float, kind: str = "tick", anchor: str | None = None, **attributes: Any
    ) -> None:
        """Add a text at a pixel; `kind` is its class in the style sheet, `anchor` its `start`, `middle` or `end`."""
        self.add("text", text, class_=kind, x=x, y=y, text_anchor=anchor, **attributes)

    def rule(self, kind: str, x: Point, y: Point, **attributes: Any) -> None:
        """Add a straight line from the first to the last pixel of `x` and `y`."""
        self.add("line", class_=kind, x1=x[0], x2=x[1], y1=y[0], y2=y[1], **attributes)

    def frame(
        self,
        xs: Iterable[float],
        ys: Iterable[float],
        x_title: str = "",
        y_title: str = "",
        *,
        is_log: bool = False,
        padding: float = 0.04,
        x_ticks: Ticks | None = None,
        is_whole: bool = False,
        top: float = 26,
    ) -> None:
        """Draw axes on which all values fit, and set `x` and `y` to their scales.

        Args:
            is_log: whether the horizontal axis may be logarithmic.
            padding: free space of the horizontal axis, see `Scale.fit`.
            x_ticks: marks of the horizontal axis; default: round numbers.
            is_whole: whether only whole numbers are written there.
            top: pixels above the drawing.
        """
        bottom, right = self.height - (40 if x_title else 24), self.width - 14
        # the vertical axis first, as the width of its numbers decides where the horizontal one begins
        self.y = Scale.fit(ys, bottom, top, 5)
        start = 14 + LETTER * max((len(text) for _, text in self.y.ticks), default=2)
        self.x = Scale.fit(xs, start + 4, right, max(3, int((right - start) // 70)), is_log, padding)
        ticks = self.x.ticks if x_ticks is None else x_ticks
        self.x = replace(self.x, ticks=[tick for tick in ticks if not is_whole or tick[0] == round(tick[0])])
        for value, text in self.y.ticks:
            self.rule("grid", (start, right), (self.y(value), self.y(value)))
            self.text(text, start - 6, self.y(value) + 4, anchor="end")
        self.rule("axis", (start, right), (bottom, bottom))
        for value, text in self.x.ticks:
            pixel = self.x(value)
            self.rule("axis", (pixel, pixel), (bottom, bottom + 4))
            is_outside = pixel + len(text) * LETTER / 2 > self.width
            x, anchor = (self.width - 2, "end") if is_outside else (pixel, "middle")
            self.text(text, x, bottom + 17, anchor=anchor)
        self.text(x_title, (start + right) / 2, self.height - 5, "title", "middle")
        self.text(y_title, 0, 14, "title")

    def columns(self, scale: Scale, ticks: Ticks, top: float, bottom: float, title: str) -> None:
        """Draw vertical lines at the ticks of a horizontal axis, with their texts and a title below."""
        for value, text in ticks:
            self.rule("grid", (scale(value), scale(value)), (top, bottom))
            self.text(text, scale(value), bottom + 14, anchor="middle")
        self.text(title, (scale.start + scale.end) / 2, bottom + 31, "title", "middle")

    def line(self, points: Sequence[Point], title: str = "", **attributes: Any) -> None:
        """Add a line through points, given in the values of the axes."""
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        self.add("path", title=title, d=f"M{path}", **({"fill": "none"} | attributes))

    def dot(self, point: Point, radius: float, title: str = "", **attributes: Any) -> None:
        """Add a dot at a point, given in the values of the axes."""
        self.add("circle", title=title, cx=self.x(point[0]), cy=self.y(point[1]), r=radius, **attributes)

    def marker(self, x: float, y: float, radius: float, colour: str, shape: str) -> None:
        """Add a filled circle (`o`) or triangle (`^`) at a point in pixels."""
        if shape == "o":
            self.add("circle", cx=x, cy=y, r=radius, fill=colour)
        else:
            path = f"M{x:.1f} {y - radius:.1f}l{radius:.1f} {2 * radius:.1f}h{-2 * radius:.1f}Z"
            self.add("path", d=path, fill=colour)

    def whiskers(self, x: Point, y: Point, colour: str = "var(--ink)") -> None:
        """Add an upright or level line from the first to the last pixel of `x` and `y`, with a cap at each end."""
        wide, high = (3, 0) if x[0] == x[1] else (0, 4)
        ends = zip(x, y, strict=True)
        caps = "".join(f"M{end - wide:.1f} {top - high:.1f}l{2 * wide} {2 * high}" for end, top in ends)
        path = f"M{x[0]:.1f} {y[0]:.1f}L{x[1]:.1f} {y[1]:.1f}{caps}"
        self.add("path", d=path, fill="none", stroke=colour, stroke_width=1.4)

    def svg(self) -> str:
        """Return the drawing as an element of a page."""
        size, label = f"0 0 {_attribute(self.width)} {_attribute(self.height)}", escape(self.label)
        head = f'<svg class="chart" viewBox="{size}" role="img" aria-label="{label}" style="{self.style}">'
        return f"{head}{''.join(self.parts)}</svg>"


def _attribute(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return (colour, shape, name) entries as a list that wraps."""
    items = "".join(
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true">{SHAPES[shape].format(colour)}</svg>{escape(name)}</li>'
        for colour, shape, name in entries
    )
    return f'<ul class="legend">{items}</ul>'
