"""Charts as inline SVG in the colours of the page's style sheet: light and dark follow the reader's system."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

LETTER = 6.6
"""Width of a letter at the axes, in pixels."""
CLASS_COLOURS = (
    *("#2f7ed8", "#e8862b", "#2ca25f", "#d64550", "#8e6bd0"),
    *("#9c6b4e", "#d96fb4", "#7f8a94", "#a8a02a", "#21a9b8"),
)
"""Colours of classes, checkpoints and lines, in this order; they can be read on light and on dark paper."""

CLASS_SHAPES = ("o", "^")
MAX_NAMED_CLASSES = len(CLASS_COLOURS) * len(CLASS_SHAPES)
"""Classes that colour and shape can tell apart."""

Point = tuple[float, float]
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Scale:
    """One axis: where values lie, in pixels.

    Args:
        low, high: the least and the largest value, which differ; positive on a logarithmic axis.
        ticks: values that are written at the axis, with their texts.

    >>> Scale(0.0, 10.0, 100.0, 200.0)(5.0)
    150.0
    >>> [text for _, text in Scale.fit([0.0, 100.0], 300.0, 20.0, 5).ticks]
    ['0', '20', '40', '60', '80', '100']
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False
    ticks: Ticks = ()

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, at = (math.log10(one) if self.is_log else one for one in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    @classmethod
    def fit(
        cls,
        values: Iterable[float],
        start: float,
        end: float,
        num_ticks: int,
        is_log: bool = False,
        padding: float = 0.04,
    ) -> "Scale":
        """Return the axis on which all values fit.

        Args:
            values: those that are drawn, finite.
            start, end: pixels of the axis' ends.
            num_ticks: about how many numbers are written.
            is_log: whether the axis is logarithmic where all values are positive.
            padding: free space before the least and behind the largest value, as a share of their distance.
        """
        values = list(values)
        low, high = min(values, default=0.0), max(values, default=1.0)
        is_log = is_log and low > 0
        if low == high:
            low, high = (low / 2, high * 2) if is_log else (low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10)
        room = padding / (1 + 2 * padding) * (end - start)
        marks = _decades(low, high, num_ticks) if is_log else _round_numbers(low, high, num_ticks)
        return cls(low, high, start + room, end - room, is_log, [(mark, spelled(mark)) for mark in marks])


class Chart:
    """One drawing, to which elements are added in order.

    Args:
        width, height: size of the drawing in pixels; it shrinks with the page.
        label: description for readers who do not see the drawing.
        max_width: pixels beyond which it does not grow; default: its width.

    >>> chart = Chart(300, 200, "Accuracy over epochs")
    >>> chart.frame([0, 10], [50.0, 90.0], "epochs", "%")
    >>> chart.line([(0, 50.0), (10, 90.0)], stroke="var(--trained)")
    >>> chart.svg()[:28]
    '<svg class="chart" viewBox="'
    """

    x: Scale
    y: Scale

    def __init__(self, width: float, height: float, label: str, max_width: float | None = None) -> None:
        self.width = width
        self.height = height
        self.label = label
        self.max_width = width if max_width is None else max_width
        self.parts: list[str] = []

    def add(self, element: str, text: str = "", title: str = "", **attributes: Any) -> None:
        """Add an element.

        Args:
            element: name, such as `circle`.
            text: text inside.
            title: text that is shown when it is pointed at.
            **attributes: in Python's spelling: `text_anchor`, `class_`; numbers are in pixels, None leaves one out.
        """
        inner = (f"<title>{escape(title)}</title>" if title else "") + escape(text)
        names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
        written = "".join(f' {name}="{escape(_attribute(value))}"' for name, value in names.items())
        self.parts.append(f"<{element}{written}>{inner}</{element}>" if inner else f"<{element}{written}/>")

    def frame(
        self,
        xs: Iterable[float],
        ys: Iterable[float],
        x_title: str = "",
        y_title: str = "",
        *,
        is_log: bool = False,
        padding: float = 0.04,
        y_padding: float = 0.04,
        x_ticks: Ticks | None = None,
        is_whole: bool = False,
        top: float = 26,
    ) -> None:
        """Draw axes on which all values fit, and set `x` and `y` to their scales.

        Args:
            x_title, y_title: text below the horizontal axis, and above the vertical one.
            is_log: whether the horizontal axis may be logarithmic.
            padding, y_padding: free space of both axes, see `Scale.fit`.
            x_ticks: marks of the horizontal axis; default: round numbers.
            is_whole: whether only whole numbers are written there.
            top: pixels above the drawing.
        """
        bottom, right = self.height - (40 if x_title else 24), self.width - 14
        self.y = Scale.fit(ys, bottom, top, 5, padding=y_padding)
        left = 14 + LETTER * max((len(text) for _, text in self.y.ticks), default=2)
        self.x = Scale.fit(xs, left + 4, right, max(3, int((right - left) // 70)), is_log, padding)
        ticks = self.x.ticks if x_ticks is None else x_ticks
        self.x = replace(self.x, ticks=[one for one in ticks if not is_whole or one[0] == round(one[0])])
        for value, text in self.y.ticks:
            self.add("line", class_="grid", x1=left, x2=right, y1=self.y(value), y2=self.y(value))
            self.add("text", text, class_="tick", x=left - 6, y=self.y(value) + 4, text_anchor="end")
        self.add("line", class_="axis", x1=left, x2=right, y1=bottom, y2=bottom)
        for value, text in self.x.ticks:
            at = self.x(value)
            self.add("line", class_="axis", x1=at, x2=at, y1=bottom, y2=bottom + 4)
            leaves = at + len(text) * LETTER / 2 > self.width
            where: dict[str, Any] = {"x": self.width - 2, "text_anchor": "end"}
            where = where if leaves else {"x": at, "text_anchor": "middle"}
            self.add("text", text, class_="tick", y=bottom + 17, **where)
        middle = (left + right) / 2
        self.add("text", x_title, class_="title", x=middle, y=self.height - 5, text_anchor="middle")
        self.add("text", y_title, class_="title", x=0, y=14)

    def line(self, points: Sequence[Point], title: str = "", **attributes: Any) -> None:
        """Add a line through points, given in the values of the axes."""
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        self.add("path", title=title, d=f"M{path}", **({"fill": "none"} | attributes))

    def dot(self, point: Point, radius: float, title: str = "", **attributes: Any) -> None:
        """Add a dot at a point, given in the values of the axes."""
        self.add("circle", title=title, cx=self.x(point[0]), cy=self.y(point[1]), r=radius, **attributes)

    def marker(self, x: float, y: float, radius: float, shape: str, colour: str, title: str = "") -> None:
        """Add a filled circle (`o`) or triangle (`^`) at a point in pixels."""
        if shape == "o":
            self.add("circle", title=title, cx=x, cy=y, r=radius, fill=colour)
        else:
            path = f"M{x:.1f} {y - radius:.1f}l{radius:.1f} {2 * radius:.1f}h{-2 * radius:.1f}Z"
            self.add("path", title=title, d=path, fill=colour)

    def whiskers(self, x: float, low: float, high: float, colour: str) -> None:
        """Add a vertical line from one value to another at a pixel of the horizontal axis, with a cap at each end."""
        bottom, top = self.y(low), self.y(high)
        path = f"M{x:.1f} {bottom:.1f}V{top:.1f}M{x - 3:.1f} {bottom:.1f}h6M{x - 3:.1f} {top:.1f}h6"
        self.add("path", d=path, fill="none", stroke=colour, stroke_width=1.4)

    def svg(self) -> str:
        """Return the drawing as an element of a page."""
        size, style = f"0 0 {_attribute(self.width)} {_attribute(self.height)}", f"max-width:{self.max_width:.0f}px"
        body = "".join(self.parts)
        label = escape(self.label)
        return f'<svg class="chart" viewBox="{size}" role="img" aria-label="{label}" style="{style}">{body}</svg>'


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """Return (colour, shape, name) entries as a list that wraps."""
    shapes = {"o": '<circle cx="6" cy="6" r="5.5" {}/>', "^": '<path d="M6 0L12 12H0Z" {}/>'}
    items = "".join(
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true">{shapes[shape].format(f"""style="fill:{colour}" """.strip())}'
        f"</svg>{escape(name)}</li>"
        for colour, shape, name in entries
    )
    return f'<ul class="legend">{items}</ul>'


def spelled(value: float) -> str:
    """Return a number in few letters.

    >>> spelled(96.062), spelled(1234.5), spelled(0.000123)
    ('96.06', '1,234', '1.23e-4')
    """
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e6):
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{4 if size >= 10 else 3}g}"


def _attribute(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def _round_numbers(low: float, high: float, num: int) -> list[float]:
    rough = (high - low) / max(1, num)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10, 20) if factor * unit >= rough - unit * 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{turn * step:.12g}") for turn in range(first, last + 1)]


def _decades(low: float, high: float, num: int) -> list[float]:
    """Return powers of ten between low and high, with 2 and 5 of each where there is room.

    Where hardly any power lies between, round numbers.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [(float(f"{part * 10.0**power:.6g}"), part) for power in powers for part in (1, 2, 5)]
    inside = [(value, part) for value, part in marks if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    tens = [value for value, part in inside if part == 1]
    if 1 < len(inside) <= num:
        return [value for value, _ in inside]
    if len(tens) > num:
        return tens[:: math.ceil(len(tens) / num)]
    return tens if len(tens) > 1 else _round_numbers(low, high, num)
