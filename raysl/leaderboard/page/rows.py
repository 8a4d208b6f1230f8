"""What the parts of a leaderboard's page call a row, how they colour it, and sections that hold drawings."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from raysl.leaderboard.best import best_runs
from raysl.leaderboard.choice import Choice
from raysl.leaderboard.entry import Entry, Objective
from raysl.leaderboard.flat import shown
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.references import references
from raysl.report.chart import Chart, spelled

BETWEEN = " · "
"""Joins what is chosen in the selects of a section, which names one of its drawings."""
MOST_NAMED = 2
"""Settings up to which they are part of a row's name."""
WORST_SHARE = 0.9
"""Share of the ranked rows behind which all have the colour of the worst."""


def row_name(row: Choice) -> str:
    """Return what people call a row: its configuration and what varies, or its first run where that is much."""
    few = row.varied if len(row.varied) <= MOST_NAMED else {}
    settings = [f"{key.rpartition('.')[2]} {shown(value)}" for key, value in few.items()]
    return ", ".join(filter(None, [row.config, *settings])) or short_name(row.runs[0])


def short_name(run: Entry) -> str:
    """Return the name of a run without what all names begin with."""
    return run.trial.removeprefix("trial_")


def objective_title(objective: Objective) -> str:
    """Return an objective in words."""
    return f"{objective.metric} ({'more' if objective.mode == 'max' else 'less'} is better)"


def rank_class(index: int, num_best: int) -> str:
    """Return the style class of a row, counted from 0: the best have colours."""
    return f"best{index + 1}" if index < num_best else "rest"


class Shades:
    """Colours from the worst to the best number of the first objective, for the rows of a leaderboard."""

    def __init__(self, board: Leaderboard) -> None:
        self.objective = board.facts.objectives[0]
        values = [value for row in board.choices if (value := row.value(self.objective.metric)) is not None]
        values.sort(key=self.objective.key)
        self.good = values[0] if values else 0.0
        worst = math.ceil((len(values) - 1) * WORST_SHARE)
        self.bad = values[worst] if values else 0.0
        self.has_worse = worst < len(values) - 1

    def colour(self, row: Choice) -> str:
        """Return the colour of a row, for CSS."""
        value = row.value(self.objective.metric)
        if value is None:
            return "var(--grid)"
        share = 1.0 if self.good == self.bad else min(1.0, max(0.0, (value - self.bad) / (self.good - self.bad)))
        return _mixed(round(100 * share))

    def legend(self, chart: Chart, name: str, top: float) -> None:
        """Add a strip of the colours with the numbers of both ends, at the right.

        Args:
            name: an id that is unique on the page.
        """
        left, width = chart.width - 220, 200
        stops = "".join(f'<stop offset="{share}%" style="stop-color:{_mixed(share)}"/>' for share in range(0, 101, 25))
        chart.parts.append(f'<defs><linearGradient id="{name}">{stops}</linearGradient></defs>')
        chart.add("rect", x=left, y=top, width=width, height=8, rx=2, fill=f"url(#{name})")
        sign = ("≥ " if self.objective.mode == "min" else "≤ ") if self.has_worse else ""
        chart.add("text", f"{sign}{spelled(self.bad)}", class_="tick", x=left, y=top + 21)
        chart.add("text", spelled(self.good), class_="tick", x=left + width, y=top + 21, text_anchor="end")
        chart.add("text", self.objective.metric, class_="tick", x=left - 8, y=top + 8, text_anchor="end")


def _mixed(percent: int) -> str:
    return f"color-mix(in oklab, var(--high) {percent}%, var(--low))"


def number_of_best(board: Leaderboard) -> int:
    """Return how many rows have colours of their own."""
    return len(best_runs(board))


def rivals(rows: Sequence[Choice], metric: str) -> list[tuple[str, float]]:
    """Return raw pixels and untrained networks with their numbers, as far as they were measured for a metric."""
    return [(one.rival, one.mean) for one in references(rows, metric)]


def draw_rivals(chart: Chart, lines: Sequence[tuple[str, float]]) -> None:
    """Add the numbers of rivals as lines across the axes of a chart, with their names at the left.

    The best marks are at the right.
    """
    left, right = chart.x.start - 4, chart.width - 14
    for rival, value in lines:
        y = chart.y(value)
        chart.add("line", class_=f"reference {rival}", x1=left, x2=right, y1=y, y2=y)
        name = "raw pixels" if rival == "pixels" else rival
        chart.add("text", f"{name} {spelled(value)}", class_="halo rival", x=left + 6, y=y - 4)


def clock(values: Sequence[float]) -> tuple[str, float]:
    """Return the unit in which seconds up to the largest of some are written, and its seconds."""
    most = max(values, default=0.0)
    return ("seconds", 1.0) if most < 180 else ("minutes", 60.0) if most < 10_800 else ("hours", 3600.0)


def chart_section(
    name: str,
    title: str,
    drawings: Mapping[str, str],
    note: str = "",
    choosers: Mapping[str, Sequence[str]] | None = None,
    legend: str = "",
    anchor: str = "",
) -> str:
    """Return a section with drawings, of which one is shown at a time.

    Args:
        name: class of the section, and its id unless there is an anchor.
        drawings: HTML by what the reader chooses, joined by `BETWEEN`; the first is shown at first.
        note: HTML of what stands beneath.
        choosers: names to choose from, by the titles of their selects.
        legend: HTML of what stands above the drawings.
        anchor: id of the section where the page has several of the name.
    """
    anchor = anchor or name
    selects = "".join(
        f'<label>{label} <select id="{anchor}-{index}">{"".join(f"<option>{escape(one)}</option>" for one in names)}'
        "</select></label>"
        for index, (label, names) in enumerate((choosers or {}).items())
        if len(names) > 1
    )
    tools = f'<div class="tools" hidden>{selects}</div>' if selects else ""
    figures = "".join(
        f'<div class="drawing" data-choice="{escape(choice)}"{" hidden" * (index > 0)}>{drawing}</div>'
        for index, (choice, drawing) in enumerate(drawings.items())
    )
    note = f'<p class="quiet">{note}</p>' if note else ""
    head = f'<section id="{anchor}" class="{name}"><h2>{title}</h2>'
    return f"{head}{tools}{legend}{figures}{note}</section>"
