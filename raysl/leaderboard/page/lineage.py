"""Who took weights from whom: runs of a population as stretches of epochs on the lines of their members."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raysl.leaderboard.entry import Entry
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.rows import Shades, chart_section, row_name, short_name
from raysl.report.marks import Chart
from raysl.report.scales import Scale, spelled

TOP = 24
"""Pixels above the lines."""


@dataclass(frozen=True)
class Stretch:
    """One run on the drawing.

    Args:
        lane: line of its member, from 0.
        start, end: epochs between which it trained itself.
        parent: run whose weights it began with; None if it began anew or its parent is not known.
    """

    run: Entry
    lane: int
    start: float
    end: float
    parent: Entry | None


def lineage(entries: Sequence[Entry]) -> list[Stretch]:
    """Return the runs that have trained, in the order of drawing; empty where none has taken weights.

    A run takes its parent's line where that is free from its start on, or else the first that is.
    """
    if not any(entry.parents for entry in entries):
        return []
    named = {entry.trial: entry for entry in entries}
    stretches: dict[str, Stretch] = {}
    ends: dict[int, float] = {}
    for entry in sorted(entries, key=lambda entry: entry.index):
        start = entry.parents[0][1] if entry.parents else 0.0
        if entry.epoch is None or entry.epoch < start:
            continue
        parent = named.get(entry.parents[0][0]) if entry.parents else None
        above = stretches.get(parent.trial) if parent else None
        free = [lane for lane, end in ends.items() if end <= start]
        lane = above.lane if above and above.lane in free else min(free, default=len(ends))
        ends[lane] = entry.epoch
        stretches[entry.trial] = Stretch(entry, lane, start, entry.epoch, parent)
    return list(stretches.values())


def lineage_section(board: Leaderboard) -> str:
    """Return the section of a population; empty where no run has taken weights."""
    stretches = lineage(board.entries)
    if not stretches:
        return ""
    note = "A line a member, a stretch a run, coloured by its number; arrows lead from the run that gave its weights."
    return chart_section(board, "lineage", "Lineage", {"": _drawing(board, stretches)}, note)


def _drawing(board: Leaderboard, stretches: Sequence[Stretch]) -> str:
    """Return stretches of epochs on the lines of their members, with arrows where weights were copied."""
    num_lanes = max(one.lane for one in stretches) + 1
    gap = max(16.0, min(44.0, 520 / num_lanes))
    start_x, top, width = 84, TOP, 1100
    bottom = top + gap * num_lanes
    chart = Chart(width, bottom + 68, "Which run took weights from which", 1320)
    x = chart.x = Scale.fit([0.0, *(one.end for one in stretches)], start_x, width - 16, 11, padding=0.01)
    for lane in range(num_lanes):
        y = top + gap * (lane + 0.5)
        chart.rule("grid", (start_x, width - 16), (y, y))
        chart.text(f"member {lane + 1}", start_x - 8, y + 4, anchor="end")
    chart.columns(x, x.ticks, top, bottom, "epochs")
    indices = {run.trial: index for index, row in enumerate(board.choices) for run in row.runs}
    shades, thick = Shades(board), max(5.0, gap * 0.3)
    for one in stretches:
        index = indices[one.run.trial]
        start, middle = x(one.start) + 2.5, top + gap * (one.lane + 0.5)
        end = max(x(one.end) - 2.5, start + 1.5)
        box: dict[str, Any] = {"x": start, "y": middle - thick / 2, "width": end - start, "height": thick, "rx": 2}
        style = f"fill:{shades.colour(board.choices[index])}"
        chart.add("rect", title=_description(board, one, index), class_="stretch", style=style, data_row=index, **box)
    lanes = {one.run.trial: one.lane for one in stretches}
    for one in stretches:
        above = None if one.parent is None else lanes.get(one.parent.trial)
        if above is not None and above != one.lane:
            _draw_arrow(chart, one, above, indices[one.run.trial], gap, thick)
    shades.legend(chart, "lineage-shades", bottom + 40)
    return chart.svg()


def _description(board: Leaderboard, one: Stretch, index: int) -> str:
    row, metric = board.choices[index], board.facts.objectives[0].metric
    value = row.value(metric)
    number = "–" if value is None else spelled(value)
    start = f"weights of {short_name(one.parent)} at epoch {spelled(one.start)}" if one.parent else "began anew"
    return f"{row_name(row)}\n{metric} {number}, rank {index + 1}\n{start}"


def _draw_arrow(chart: Chart, one: Stretch, above: int, index: int, gap: float, thick: float) -> None:
    """Draw an arrow from the line of the member whose weights were copied, at a lane `above` or below."""
    top, x, way = TOP, chart.x(one.start), 1 if one.lane > above else -1
    tail = top + gap * (above + 0.5) + way * thick / 2
    end = top + gap * (one.lane + 0.5) - way * (thick / 2 + 5)
    bend = 7 + 2.5 * abs(one.lane - above)
    half = way * gap * 0.5
    curve = f"C{x - 4 - bend:.1f} {tail + half:.1f} {x + 5 - bend / 2:.1f} {end - half:.1f} {x + 5:.1f} {end:.1f}"
    chart.add("path", class_="copied", d=f"M{x - 4:.1f} {tail:.1f}{curve}", data_row=index)
    chart.add("path", class_="arrow", d=f"M{x + 5:.1f} {end + way * 5:.1f}l-4 {-way * 7}l8 0Z", data_row=index)
