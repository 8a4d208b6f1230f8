"""What the drawings of a leaderboard's page are made of: one JSON object, small enough for a thousand runs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from raysl.leaderboard.best import best_runs
from raysl.leaderboard.choice import Choice
from raysl.leaderboard.entry import Entry, Objective
from raysl.leaderboard.flat import COSTS, varied
from raysl.leaderboard.leaderboard import Leaderboard, thinned
from raysl.leaderboard.page.axes import Axis, spelled
from raysl.leaderboard.page.lineage import lineage
from raysl.leaderboard.references import references
from raysl.leaderboard.stored import compact
from raysl.nn.collapse import COLLAPSE

MAX_POINTS, MAX_CURVES = 100, 8
"""Points of a curve, and metrics that have curves."""
MOST_POINTS = 100_000
"""Points of all curves together; of many runs each has fewer."""
CLOCK = "seconds"
NO_CURVE = (CLOCK, "step", "epoch")
LEADING = ("knn_top1", "loss", *COLLAPSE)
MIN_DOTS = 2
"""Rows from which one number is drawn against another."""
DIGITS = 5
"""Of numbers that are drawn."""


def drawn(board: Leaderboard, scales: Sequence[Axis], reload_s: float) -> str:
    """The object as JSON.

    Args:
        board: the leaderboard.
        scales: the settings that vary.
        reload_s: seconds after which the page of a sweep that runs is loaded again.
    """
    rows, objectives = board.choices, board.facts.objectives
    place = {run.trial: number for number, run in enumerate(board.entries)}
    curves = curve_names(board.entries, objectives)
    limit = max(8, min(MAX_POINTS, MOST_POINTS // max(1, len(board.entries) * max(1, len(curves)))))
    charts = scatters(rows, objectives)
    names = list(
        dict.fromkeys([*(one.metric for one in objectives), *(name for c in charts.values() for name in c["x"])])
    )
    content = {
        "state": board.facts.state,
        "written": board.facts.written,
        "reload": reload_s,
        "best": len(best_runs(board)),
        "objectives": [{"metric": one.metric, "mode": one.mode} for one in objectives],
        "curves": curves,
        "scatters": charts,
        "references": {
            name: [[own.rival.replace("pixels", "raw pixels"), rounded(own.mean)] for own in found]
            for name in dict.fromkeys([*curves, *(chart["y"] for chart in charts.values())])
            if (found := references(rows, name))
        },
        "axes": [{"key": axis.key, "kind": axis.kind, "names": axis.names} for axis in scales],
        "rows": [_row(row, scales, names, place) for row in rows],
        "runs": [_run(run, curves, limit) for run in board.entries],
        "lineage": [
            [place[one.run.trial], one.lane, one.start, one.end, place[one.parent.trial] if one.parent else None]
            for one in lineage(board.entries)
        ],
    }
    return compact(content)


def curve_names(entries: Sequence[Entry], objectives: Sequence[Objective]) -> list[str]:
    """Metrics that have curves: objectives first, then those that lead, then those that most runs have.

    Behind all of these stand metrics of which no run has two points.
    """
    counts: dict[str, int] = {}
    drawn_lines: set[str] = set()
    for entry in entries:
        for name, line in entry.course.items():
            if line and name not in NO_CURVE:
                counts[name] = counts.get(name, 0) + 1
                drawn_lines |= {name} if len(line) > 1 else set()
    first = [one.metric for one in objectives] + list(LEADING)

    def key(name: str) -> tuple[bool, int, int, str]:
        return name not in drawn_lines, first.index(name) if name in first else len(first), -counts[name], name

    return sorted(counts, key=key)[:MAX_CURVES]


def scatters(rows: Sequence[Choice], objectives: Sequence[Objective]) -> dict[str, Any]:
    """The drawings of one number against another, by their ids: names of what is horizontal, and what is vertical."""
    ranked = [row for row in rows if row.value(objectives[0].metric) is not None]
    if len(ranked) < MIN_DOTS:
        return {}
    known = {name for row in ranked for name in row.numbers}
    ranks = [one.metric for one in objectives]
    found: dict[str, Any] = {}
    has_reach = any(row.numbers[ranks[0]].interval is not None for row in ranked)
    if others := [name for name in ranks[1:] if name in known]:
        found["front"] = {"x": others, "y": ranks[0], "reach": has_reach}
    if costs := [name for name in ("gpu_hours", *COSTS) if name in known and name not in ranks]:
        found["cost"] = {"x": list(dict.fromkeys(costs)), "y": ranks[0], "reach": has_reach, "less": True}
    geometry = sorted(name for name in known if name.startswith("geometry/") and name.count("/") == 1)
    if geometry := [name for name in (*geometry, *COLLAPSE) if name in known and name not in ranks]:
        notes = {name: _correlation(rows, name, ranks[0]) for name in geometry}
        found["geometry"] = {"x": geometry, "y": ranks[0], "reach": has_reach, "notes": notes}
    return found


def _correlation(rows: Sequence[Choice], x: str, y: str) -> str:
    """Spearman's correlation of two numbers over the rows that have both; of fewer than four nothing."""
    pairs = np.array([(one, two) for row in rows if None not in (one := row.value(x), two := row.value(y))], float)
    if len(pairs) < 4 or (np.ptp(pairs, axis=0) == 0).any():
        return ""
    from scipy.stats import spearmanr

    return f"Spearman's rank correlation {spearmanr(pairs[:, 0], pairs[:, 1]).statistic:.2f}, n = {len(pairs)}."


def _row(row: Choice, scales: Sequence[Axis], names: Sequence[str], place: dict[str, int]) -> dict[str, Any]:
    numbers = {name: row.numbers[name] for name in names if name in row.numbers}
    return {
        "name": row_name(row),
        "whole": row.standing == 0,
        "told": [f"{key} {spelled(row.settings[key])}" for key in varied([row])],
        "runs": [place[run.trial] for run in row.runs],
        "at": [axis.place(row) for axis in scales],
        "numbers": {name: [rounded(one.mean), *map(rounded, one.interval or ())] for name, one in numbers.items()},
    }


def row_name(row: Choice) -> str:
    """What people call a row: its configuration, or its first run."""
    return row.config or short(row.runs[0])


def short(run: Entry) -> str:
    """The name of a run without what all have."""
    return run.trial.removeprefix("trial_")


def _run(run: Entry, curves: Sequence[str], limit: int) -> dict[str, Any]:
    """A run's curves as [epoch, value, epoch, value ...], by the places of their names, and its clock likewise."""
    told: dict[str, Any] = {"name": short(run), "seed": run.seed, "status": run.status}
    lines = {turn: flattened(run.course[name], limit) for turn, name in enumerate(curves) if run.course.get(name)}
    told["lines"] = {turn: line for turn, line in lines.items() if line}
    clock = run.course.get(CLOCK) or []
    if not clock and run.epoch and CLOCK in run.costs:
        clock = [(run.epoch, run.costs[CLOCK])]
    if clock:
        told["clock"] = flattened(clock, 12)
    return told


def flattened(line: Sequence[tuple[float, float]], limit: int) -> list[float]:
    """At most `limit` points of a line, evenly chosen with both ends, flat; of those the ones that are finite."""
    points = thinned(line, limit)
    return [number for x, y in points if math.isfinite(x) and math.isfinite(y) for number in (rounded(x), rounded(y))]


def rounded(value: float) -> float:
    """A number in as many digits as a drawing shows."""
    return float(f"{value:.{DIGITS}g}")


def title_of(objective: Objective) -> str:
    """An objective in words."""
    return f"{objective.metric} ({'more' if objective.mode == 'max' else 'less'} is better)"
