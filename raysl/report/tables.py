"""The scores as tables that load elsewhere: CSV in full precision, LaTeX as a paper prints them."""

import csv
import io
import re
from collections.abc import Sequence
from itertools import groupby

from raysl.report.contents import Score
from raysl.report.summary import bounds, number

COLUMNS = ("benchmark", "metric", "title", "unit", "trained", "low", "high", "deviation", "untrained", "pixels", "note")
"""Of the CSV: `low` and `high` are the ends of the 95 % interval of `trained`."""
RIVALS = {"untrained": "untrained", "pixels": "raw pixels"}

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


def score_csv(scores: Sequence[Score]) -> str:
    """A line a score under the names of `COLUMNS`; empty where there is no number."""
    return as_csv(COLUMNS, [_csv_row(score) for score in scores])


def as_csv(header: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> str:
    """Rows as CSV (RFC 4180, but for lines that end in a line feed alone); numbers read back as they were."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _csv_row(score: Score) -> list[str | float | None]:
    low, high = score.interval or (None, None)
    numbers = (score.trained, low, high, score.deviation, score.untrained, score.pixels)
    return [score.benchmark, score.metric, score.heading, score.unit, *numbers, score.note]


def score_latex(scores: Sequence[Score]) -> str:
    """A `tabular` of the package booktabs: a row a score, benchmarks set apart, columns that none fills left out."""
    columns = {
        "pre-trained": [number(score.trained, score.unit) for score in scores],
        "$\\pm$": [number(score.deviation, score.unit) for score in scores],
        "95\\,\\% interval": [bounds(score.interval, score.unit) for score in scores],
        **{title: [number(getattr(score, name), score.unit) for score in scores] for name, title in RIVALS.items()},
    }
    kept = {title: cells for title, cells in columns.items() if title == "pre-trained" or any(cells)}
    rows = [
        (score.benchmark, [latex_text(with_unit(score)), *(cells[row] for cells in kept.values())])
        for row, score in enumerate(scores)
    ]
    return latex_table(
        ["", *kept], [[cells for _, cells in group] for _, group in groupby(rows, key=lambda row: row[0])]
    )


def with_unit(score: Score) -> str:
    """The heading of a score, with its unit where that is not percent."""
    return f"{score.heading} ({score.unit})" if score.unit not in ("", "%") else score.heading


def latex_table(head: Sequence[str], groups: Sequence[Sequence[Sequence[str]]]) -> str:
    """Groups of rows of cells, all LaTeX already: the first column to the left, numbers to the right."""
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
    """Plain text as LaTeX sets it, on one line."""
    return "".join(_SPECIAL.get(char, char) for char in re.sub(r"\s+", " ", text).strip())
