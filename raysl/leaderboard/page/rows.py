"""What the parts of a leaderboard's page call a row, how they colour it, and sections that hold drawings."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from raysl.leaderboard.best import Reference
from raysl.leaderboard.choice import Choice
from raysl.leaderboard.entry import Entry, Objective
from raysl.leaderboard.flat import shown
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.report.html import quiet, section
from raysl.report.marks import Chart
from raysl.report.scales import spelled
from raysl.report.tables import RIVALS

BETWEEN = " · "
"""Text between the choices of a section's selects in the name of a drawing."""
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
        # a few very bad rows, as of runs that diverged, would leave one colour for all others
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
        """Add a strip of the colours with the numbers of both ends, at the right, under an id that is unique on the
        page.
        """
        start, width = chart.width - 220, 200
        stops = "".join(f'<stop offset="{share}%" style="stop-color:{_mixed(share)}"/>' for share in range(0, 101, 25))
        chart.parts.append(f'<defs><linearGradient id="{name}">{stops}</linearGradient></defs>')
        chart.add("rect", x=start, y=top, width=width, height=8, rx=2, fill=f"url(#{name})")
        sign = ("≥ " if self.objective.mode == "min" else "≤ ") if self.has_worse else ""
        chart.text(f"{sign}{spelled(self.bad)}", start, top + 21)
        chart.text(spelled(self.good), start + width, top + 21, anchor="end")
        chart.text(self.objective.metric, start - 8, top + 8, anchor="end")


def _mixed(percent: int) -> str:
    return f"color-mix(in oklab, var(--high) {percent}%, var(--low))"


def draw_rivals(chart: Chart, rivals: Sequence[Reference]) -> None:
    """Add the numbers of rivals as lines across the axes of a chart, with their names at the left.

    The best marks are at the right.
    """
    start, right = chart.x.start - 4, chart.width - 14
    for one in rivals:
        y = chart.y(one.mean)
        chart.rule(f"reference {one.rival}", (start, right), (y, y))
        chart.text(f"{RIVALS[one.rival]} {spelled(one.mean)}", start + 6, y - 4, "halo rival")


def clock(values: Sequence[float]) -> tuple[str, float]:
    """Return the unit in which an axis of seconds is written, and its seconds."""
    most = max(values, default=0.0)
    return ("seconds", 1.0) if most < 180 else ("minutes", 60.0) if most < 10_800 else ("hours", 3600.0)


def chart_section(
    board: Leaderboard,
    name: str,
    title: str,
    drawings: Mapping[str, str],
    note: str,
    choosers: Mapping[str, Sequence[str]] | None = None,
    legend: str = "",
) -> str:
    """Return a section with drawings, of which one is shown at a time.

    Args:
        name: class of the section; its id is made of it.
        drawings: HTML by the reader's choices, joined by `BETWEEN`; the first is shown at first.
        choosers: names to choose from, by the titles of their selects.
    """
    anchor = board.anchor(name)
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
    return section(anchor, board.headed(title), tools + legend + figures + quiet(note), name)
