"""Rows of numbers with intervals, written as HTML, CSV in full precision and LaTeX as a paper prints them."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from raysl.redact import visible
from raysl.report.contents import Score
from raysl.report.html import grouped_table
from raysl.report.summary import bounds, number, readable

COLUMNS = ("benchmark", "metric", "title", "unit", "trained", "low", "high", "deviation", "untrained", "pixels", "note")
"""Of the CSV: `low` and `high` are the ends of the 95 % interval of `trained`."""
RIVALS = {"untrained": "untrained", "pixels": "raw pixels"}
COLUMN_TITLES = {"trained": "pre-trained", **RIVALS}

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # at the start of a row it would be an argument of the \\ before it, as would a star
    "]": "{]}",
    "*": "{*}",
    **{char: f"\\{char}" for char in "{}$&#_%"},
}


@dataclass(frozen=True)
class Cell:
    """A number of a table, and what stands beside it.

    Args:
        value: the number; None: there is none.
        unit: `%`, or another; may be empty.
        interval: at 95 %.
        is_best: whether it is the best of those that it is compared with.

    >>> Cell(81.25, interval=(80.0, 82.5), is_best=True).latex()
    '\\\\textbf{81.25} {\\\\scriptsize 80.00 to 82.50}'
    """

    value: float | None = None
    unit: str = "%"
    deviation: float | None = None
    interval: tuple[float, float] | None = None
    is_best: bool = False

    @property
    def text(self) -> str:
        """The number for people."""
        return self._spelled(self.value)

    @property
    def bounds(self) -> str:
        """Both ends of the interval for people; empty without one."""
        return (
            "" if self.interval is None else f"{self._spelled(self.interval[0])} to {self._spelled(self.interval[1])}"
        )

    def columns(self, name: str) -> dict[str, float | None]:
        """Return the number, its deviation and both ends of its interval as columns of a CSV."""
        low, high = self.interval or (None, None)
        return {name: self.value, f"{name}: deviation": self.deviation, f"{name}: low": low, f"{name}: high": high}

    def html(self) -> str:
        """Return the number with its deviation beside it and its interval beneath, as HTML."""
        deviation = f' <span class="spread">± {number(self.deviation, self.unit)}</span>' if self.deviation else ""
        beneath = f'<div class="spread">{self.bounds}</div>' if self.interval else ""
        return f"{self.text}{deviation}{beneath}"

    def latex(self) -> str:
        """Return the number, bold where it is the best, with its interval or else its deviation small behind it."""
        value = f"\\textbf{{{self.text}}}" if self.is_best else self.text
        deviation = "" if self.deviation is None else f"$\\pm$ {number(self.deviation, self.unit)}"
        spread = self.bounds or deviation
        return f"{value} {{\\scriptsize {spread}}}" if spread else value

    def _spelled(self, value: float | None) -> str:
        if value is None or self.unit == "%" or not math.isfinite(value):
            return number(value, self.unit)
        return readable(value) if abs(value) >= 1e4 else f"{value:.4g}"


@dataclass(frozen=True)
class Table:
    """Rows of texts and numbers.

    Args:
        head: names of the columns.
        groups: rows by the name of their group.
    """

    head: Sequence[str]
    groups: Mapping[str, Sequence[Sequence[str | Cell]]]

    def html(self, with_names: bool = False) -> str:
        """Return the table as HTML.

        Args:
            with_names: whether each group has its name above it.
        """
        head = f"<th>{escape(self.head[0])}</th>"
        head += "".join(f'<th class="number">{escape(title)}</th>' for title in self.head[1:])
        groups = []
        for name, rows in self.groups.items():
            title = f'<th class="group" scope="rowgroup" colspan="{len(self.head)}">{escape(name)}</th>'
            cells = ["".join(self._html(cell) for cell in row) for row in rows]
            groups.append([title] * with_names + cells)
        return grouped_table(head, groups)

    def _html(self, cell: str | Cell) -> str:
        if isinstance(cell, str):
            return f'<td class="name">{escape(cell)}</td>'
        return f'<td class="number{" best" * cell.is_best}">{cell.html()}</td>'

    def latex(self) -> str:
        """Return the table as a `tabular` of booktabs, its groups set apart."""
        cells = [
            [[cell.latex() if isinstance(cell, Cell) else latex_text(cell) for cell in row] for row in rows]
            for rows in self.groups.values()
        ]
        return latex_table([latex_text(title) for title in self.head], cells)


def score_csv(scores: Sequence[Score]) -> str:
    """Return a line a score under the names of `COLUMNS`."""
    rows: list[list[str | float | None]] = []
    for score in scores:
        low, high = score.interval or (None, None)
        numbers = (score.trained, low, high, score.deviation, score.untrained, score.pixels)
        rows.append([score.benchmark, score.metric, score.heading, score.unit, *numbers, score.note])
    return as_csv(COLUMNS, rows)


def as_csv(header: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> str:
    """Return rows as CSV (RFC 4180, with line feeds alone); numbers read back unchanged."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([unformulated(cell) for cell in header])
    writer.writerows([[unformulated(cell) for cell in row] for row in rows])
    return text.getvalue()


def unformulated(cell: Any) -> Any:
    """Return a cell of a CSV file with a quote before a text that a spreadsheet would run as a formula.

    >>> unformulated("=1+1"), unformulated("-0.5"), unformulated(-0.5)
    ("'=1+1", '-0.5', -0.5)
    """
    if not isinstance(cell, str):
        return cell
    cell = visible(cell)
    if not cell.startswith(("=", "+", "-", "@", "\t")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def link(target: str) -> str:
    """Return an address as the target of a link; empty for one that a browser would run, such as `javascript:`.

    >>> link("runs/mine/report.html"), link("javascript:alert(1)")
    ('runs/mine/report.html', '')
    """
    plain = "".join(letter for letter in target if letter > " ")  # a browser drops blanks and control characters
    scheme = re.match(r"([^/?#]*?):", plain)
    return target if scheme is None or scheme[1].lower() in _LINKED else ""


_LINKED = ("http", "https", "file", "s3", "gs", "gcs", "hf", "az", "abfs", "abfss")


def score_latex(scores: Sequence[Score]) -> str:
    """Return a `tabular` of booktabs: a row a score, benchmarks set apart, empty columns left out."""
    columns = {
        "pre-trained": [number(score.trained, score.unit) for score in scores],
        "$\\pm$": [number(score.deviation, score.unit) for score in scores],
        "95\\,\\% interval": [bounds(score.interval, score.unit) for score in scores],
        **{title: [number(getattr(score, name), score.unit) for score in scores] for name, title in RIVALS.items()},
    }
    shown = {title: cells for title, cells in columns.items() if title == "pre-trained" or any(cells)}
    rows = [
        (score.benchmark, [latex_text(with_unit(score)), *(cells[row] for cells in shown.values())])
        for row, score in enumerate(scores)
    ]
    return latex_table(
        ["", *shown], [[cells for _, cells in group] for _, group in groupby(rows, key=lambda row: row[0])]
    )


def with_unit(score: Score) -> str:
    """Return the heading of a score, with its unit unless that is percent."""
    return f"{score.heading} ({score.unit})" if score.unit not in ("", "%") else score.heading


def latex_table(head: Sequence[str], groups: Sequence[Sequence[Sequence[str]]]) -> str:
    """Return groups of rows of LaTeX cells as a table: the first column to the left, numbers to the right."""
    bodies = ["".join(f"{' & '.join(cells)} \\\\\n" for cells in rows) for rows in groups]
    lines = [
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        "\\toprule",
        f"{' & '.join(head)} \\\\",
        "\\midrule",
        "\\addlinespace\n".join(bodies) + "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    """Return plain text as LaTeX sets it, on one line.

    >>> print(latex_text("100 % of a_b"))
    100 \\% of a\\_b
    """
    return "".join(_SPECIAL.get(char, char) for char in re.sub(r"\s+", " ", text).strip())
