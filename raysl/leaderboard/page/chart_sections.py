"""The sections of a leaderboard's page that its script fills with drawings, and the bars of importance."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.entry import Entry, Objective
from raysl.leaderboard.page.axes import Axis
from raysl.leaderboard.page.drawn import CLOCK, curve_names, title_of
from raysl.leaderboard.page.importance import MIN_ROWS, REPEATS, TREES, Importance
from raysl.leaderboard.page.lineage import lineage
from raysl.report.html import table

NO_SCRIPT = '<noscript><p class="quiet">Drawn by a script, which this reader does not run.</p></noscript>'
MIN_AXES = 2
"""Settings from which there are parallel coordinates."""


def _section(name: str, title: str, note: str, tools: str = "") -> str:
    tools = f'<div class="tools" hidden>{tools}</div>' if tools else ""
    note = f'<p class="quiet">{note}</p>' if note else ""
    drawing = f'<div class="chart" id="{name}-chart"></div>'
    return f'<section id="{name}"><h2>{title}</h2>{tools}{drawing}{NO_SCRIPT}{note}</section>'


def _chooser(name: str, title: str, values: Sequence[str]) -> str:
    """A choice among several names; nothing where there is one alone."""
    if len(values) < 2:
        return ""
    options = "".join(f"<option>{escape(value)}</option>" for value in values)
    return f'<label>{title} <select id="{name}">{options}</select></label>'


def curves_section(entries: Sequence[Entry], objectives: Sequence[Objective]) -> str:
    """What runs logged, against epochs or seconds."""
    names = curve_names(entries, objectives)
    if not names:
        return ""
    has_clock = any(entry.course.get(CLOCK) for entry in entries)
    is_spread = not has_clock and any(CLOCK in entry.costs and entry.epoch for entry in entries)
    tools = _chooser("curve-metric", "metric", names)
    tools += _chooser("curve-axis", "against", ["epochs", "seconds"] if has_clock or is_spread else ["epochs"])
    note = "A line a run; the best three have colours, dots end what is over. Point at a line or at a row of the table."
    if is_spread:
        note += " Seconds of a run are spread evenly over its epochs."
    return _section("curves", "Course of training", note, tools)


def parallel_section(scales: Sequence[Axis], objective: Objective) -> str:
    """The settings that vary, each row a line through them to its number."""
    if len(scales) < MIN_AXES:
        return ""
    note = f"A line a row, through its settings to {escape(title_of(objective))}; its colour tells the number."
    return _section("parallel", "Settings and what came of them", note)


def importance_section(
    rows: Sequence[Choice], scales: Sequence[Axis], objective: Objective, learned: Importance | None
) -> str:
    """Bars of how much each setting matters, or why that cannot be said."""
    if len(scales) < MIN_AXES:
        return ""
    heading = '<section id="importance"><h2>Importance of settings</h2>'
    metric = escape(objective.metric)
    if learned is None:
        num = sum(row.value(objective.metric) is not None for row in rows)
        text = f"It takes {MIN_ROWS} rows with different numbers of {metric} to tell; there are {num} rows with one."
        return f'{heading}<p class="quiet">{text}</p></section>'
    facts = f"n = {learned.num} rows, out-of-bag R² = {learned.fit:.2f}"
    if not learned.settings:
        text = f"A random forest does not predict {metric} from the settings better than the mean does ({facts})."
        return f'{heading}<p class="quiet">{text} More rows may tell.</p></section>'
    largest = max(max(mean for _, mean, _ in learned.settings), 1e-9)
    bars = [
        f'<td class="name"><code>{escape(key)}</code></td><td class="number main">{mean:.3f} '
        f'<span class="spread">± {deviation:.3f}</span></td>'
        f'<td class="bar"><div style="width:{max(0.0, 100 * mean / largest):.1f}%"></div></td>'
        for key, mean, deviation in learned.settings
    ]
    note = (
        f"What R² of a random forest ({TREES} trees, {facts}) loses where a setting's values are shuffled among the "
        f"rows; mean ± standard deviation of {REPEATS} shuffles, fixed seed. It is of the ranges searched here, and "
        "settings that vary together share what they matter."
    )
    return f'{heading}{table("", bars)}<p class="quiet">{note}</p></section>'


SCATTERS = {
    "front": ("Trade-off", "Joined: finished rows that no other beats in both."),
    "cost": ("What it costs", "Joined: finished rows for which none is both cheaper and better."),
    "geometry": ("Geometry beside accuracy", ""),
}


def scatter_sections(known: Mapping[str, Mapping[str, Any]]) -> str:
    """One number against another, side by side; lines at a point are 95 % intervals."""
    sections = []
    for name, (title, note) in SCATTERS.items():
        if name in known:
            reach = " Lines: 95 % interval." if known[name]["reach"] else ""
            words = f"{escape(known[name]['y'])} of each row.{reach} {note}"
            words += f'<span id="{name}-note"></span>'
            sections.append(_section(name, title, words, _chooser(f"{name}-x", "against", known[name]["x"])))
    return f'<div class="pair scatters">{"".join(sections)}</div>' if sections else ""


def lineage_section(entries: Sequence[Entry]) -> str:
    """Who took weights from whom."""
    if not lineage(entries):
        return ""
    note = "A line a member, a stretch a run, coloured by its number; an arrow leads from whose weights were copied."
    return _section("lineage", "Lineage", note)
