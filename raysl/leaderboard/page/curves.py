"""What runs logged, a line a run, against epochs or seconds of training."""

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from html import escape

from raysl.leaderboard.best import best_runs, references
from raysl.leaderboard.entry import Entry, Objective
from raysl.leaderboard.leaderboard import Leaderboard, thinned
from raysl.leaderboard.page.rows import BETWEEN, chart_section, clock, draw_rivals, rank_class, row_name
from raysl.nn.collapse import COLLAPSE
from raysl.report.contents import online_names
from raysl.report.curves import is_spent
from raysl.report.marks import Chart
from raysl.report.scales import Point, spelled

WIDTH, HEIGHT, MAX_WIDTH = 1100, 400, 1320
MAX_POINTS, MAX_CURVES = 100, 8
"""Points of a curve, and metrics that have curves."""
MOST_POINTS = 80_000
"""Points of all curves together: of many runs each has fewer."""
CLOCK = "seconds"
NO_CURVE = (CLOCK, "step", "epoch")
LEADING = ("loss", *COLLAPSE)


def curves_section(board: Leaderboard) -> str:
    """Return the section of the curves; empty where nothing was logged."""
    names = curve_names(board.entries, board.facts.objectives)
    if not names:
        return ""
    has_clock = any(entry.course.get(CLOCK) for entry in board.entries)
    units = ["epochs", CLOCK] if has_clock else ["epochs"]
    limit = max(8, min(MAX_POINTS, MOST_POINTS // (max(1, len(board.entries)) * len(names) * len(units))))
    drawings = {
        BETWEEN.join([name] * (len(names) > 1) + [unit] * (len(units) > 1)): _drawing(board, name, unit, limit)
        for name, unit in itertools.product(names, units)
    }
    note = "A line a run; a dot ends a run that is over. Point at a line or at a row of the table."
    choosers = {"metric": names, "against": units}
    return chart_section(board, "curves", "Course of training", drawings, note, choosers, _legend(board))


def curve_names(entries: Sequence[Entry], objectives: Sequence[Objective]) -> list[str]:
    """Return the metrics that have curves: objectives first, then leading ones, then those that most runs have, and
    times and memory behind them.

    Metrics of which no run has two points come last.
    """
    counts: Counter[str] = Counter()
    with_lines: set[str] = set()
    for entry in entries:
        for name, line in entry.course.items():
            if name not in NO_CURVE and any(math.isfinite(value) for _, value in line):
                counts[name] += 1
                with_lines |= {name} if len(line) > 1 else set()
    online = online_names(counts)
    first = [*(one.metric for one in objectives), *online, *LEADING]

    def key(name: str) -> tuple[bool, int, bool, int, str]:
        rank = first.index(name) if name in first else len(first)
        return name not in with_lines, rank, is_spent(name), -counts[name], name

    return sorted(counts, key=key)[:MAX_CURVES]


def _drawing(board: Leaderboard, metric: str, unit: str, limit: int) -> str:
    """Return the curves of one metric, the best rows on top."""
    lines = []
    for index, row in reversed(list(enumerate(board.choices))):
        for run in row.runs:
            points = finite_points(run.course.get(metric, []), limit)
            times = finite_points(run.course.get(CLOCK, []), MAX_POINTS) if unit == CLOCK else []
            if points and (times or unit != CLOCK):
                xs = [_seconds_at(times, epoch) if times else epoch for epoch, _ in points]
                lines.append((index, row, run, points, xs))
    rivals = references(board.choices, metric)
    all_xs = [x for *_, xs in lines for x in xs]
    title, seconds = clock(all_xs) if unit == CLOCK else (unit, 1.0)
    values = [y for *_, points, _ in lines for _, y in points] + [rival.mean for rival in rivals]
    chart = Chart(WIDTH, HEIGHT, f"{metric} of each run over {unit}", MAX_WIDTH)
    chart.frame([0.0, *(x / seconds for x in all_xs)], values, title, metric, padding=0.01)
    num_best = len(best_runs(board))
    for index, row, run, points, xs in lines:
        kind, (epoch, value) = rank_class(index, num_best), points[-1]
        seed = f", seed {run.seed}" if len(row.runs) > 1 else ""
        description = f"{row_name(row)}{seed}\n{metric} {spelled(value)} at epoch {spelled(epoch)}\n"
        description += f"{run.status}, rank {index + 1}"
        scaled = [(x / seconds, y) for x, (_, y) in zip(xs, points, strict=True)]
        if len(scaled) > 1:
            chart.line(scaled, description, class_=f"curve {kind}", data_row=board.first + index, fill=None)
        if run.status != "running" or len(scaled) == 1:
            radius = 2 if kind == "rest" else 3.5
            chart.dot(scaled[-1], radius, description, class_=f"end {kind}", data_row=board.first + index)
    draw_rivals(chart, rivals)
    return chart.svg()


def finite_points(line: Sequence[Point], limit: int) -> list[Point]:
    """Return at most `limit` points of a line, evenly chosen with both ends, without those that are not finite."""
    return [(x, y) for x, y in thinned(line, limit) if math.isfinite(x) and math.isfinite(y)]


def _seconds_at(times: Sequence[Point], epoch: float) -> float:
    """Return the seconds at an epoch: linear between the known times from (0, 0) on, and beyond the last.

    >>> _seconds_at([(1.0, 10.0), (3.0, 20.0)], 2.0)
    15.0
    """
    index = min(bisect_left(times, epoch, key=lambda point: point[0]), len(times) - 1)
    (first, start), (last, end) = times[index - 1] if index else (0.0, 0.0), times[index]
    return start + (end - start) * (epoch - first) / (last - first) if last > first else end


def _legend(board: Leaderboard) -> str:
    """Return what the colours of the curves are."""
    rows, num_best = board.choices, len(best_runs(board))
    names = [(rank_class(index, num_best), f"{index + 1}: {row_name(rows[index])}") for index in range(num_best)]
    names += [("rest", "others")] if len(rows) > num_best else []
    items = "".join(
        '<span><svg viewBox="0 0 28 12" class="key" aria-hidden="true">'
        f'<path d="M1 6L27 6" class="curve {kind}"/></svg> {escape(name)}</span>'
        for kind, name in names
    )
    return f'<span class="keys">{items}</span>'
