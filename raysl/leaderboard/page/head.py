"""The head of a leaderboard's page: the search, its progress, its best row and its time."""

from collections import Counter
from datetime import UTC, datetime
from html import escape

from raysl.leaderboard.best import gains, verdict
from raysl.leaderboard.entry import State, Status
from raysl.leaderboard.flat import shown
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.rows import objective_title, short_name
from raysl.report.html import facts_line, fold, quiet
from raysl.report.record_sections import duration
from raysl.report.score_sections import gain_line
from raysl.report.summary import bounds, large, readable

STATUSES: dict[Status, str] = {"finished": "✓", "stopped": "■", "running": "▶", "failed": "✕", "waiting": "·"}
"""Marks of the statuses, in the order of the page."""

RUNS_LIVE = "Runs go on. This page shows them as they are, and loads itself again."
"""Note on the page over a storage while it is served."""
LIVE: dict[State, str] = {
    "running": "The sweep runs. This page is written while it does, and loads itself again.",
    "stopped": "The sweep was stopped before its end. The command that started it runs the trials that are left.",
}
"""Note on the page of a sweep that is not done."""
STALE = (
    "The sweep ran when this page was written, and has written nothing since. If it was cut off, the command that "
    "started it runs the trials that are left."
)
"""Note that the script shows if nothing was written for ten minutes."""


def head(board: Leaderboard, reload_s: float) -> str:
    """Return name and facts, the trials as one bar, and the command; the script reloads a running sweep's page."""
    facts = board.facts
    pieces = []
    if facts.kind == "sweep":
        pieces = [f"search <b>{escape(facts.search)}</b>", f"scheduler <b>{escape(facts.scheduler)}</b>"]
    pieces += [f"ranked by <b>{escape(objective_title(facts.objectives[0]))}</b>"]
    pieces += [f"beside <b>{escape(objective_title(objective))}</b>" for objective in facts.objectives[1:]]
    pieces += _times(board)
    command = f"<pre>{escape(facts.command)}</pre>" if facts.command else ""
    space = escape(facts.space.strip())
    space = fold("What varies", f"<pre>{space}</pre>", ' id="space"') if space else ""
    reload = f' data-written="{facts.written:.0f}" data-reload="{reload_s:g}" data-stale="{STALE}"'
    text = RUNS_LIVE if facts.kind == "runs" else LIVE.get(facts.state, "")
    live = f'<p class="note" id="live"{reload * (facts.state == "running")}>{text}</p>' if facts.state in LIVE else ""
    return (
        f"<header><h1>{escape(facts.name)}</h1>{facts_line(pieces)}</header>"
        f"{live}{_bar(board)}{''.join(map(_best, board.sections))}{command}{space}"
    )


def _bar(board: Leaderboard) -> str:
    """Return how many runs have each status, as one bar and in words."""
    kind = "run" if board.facts.kind == "runs" else "trial"
    counts = Counter(entry.status for entry in board.entries)
    total = max(board.facts.trials or 0, len(board.entries))
    if not total:
        return quiet(f"No {kind} has begun.")
    counts["waiting"] += total - len(board.entries)
    shares = [(status, counts[status]) for status in STATUSES if counts[status]]
    parts = "".join(f'<div class="{status}" style="flex-grow:{num}"></div>' for status, num in shares)
    items = "".join(f'<li><i class="mark {status}">{STATUSES[status]}</i>{num} {status}</li>' for status, num in shares)
    label = ", ".join(f"{num} {status}" for status, num in shares)
    title = f"{total} {kind}{'s' * (total != 1)}"
    bar = f'<div class="progress" role="img" aria-label="{label}">{parts}</div>'
    return f'<div id="progress">{bar}<ul class="legend"><li><b>{title}</b></li>{items}</ul></div>'


def _best(board: Leaderboard) -> str:
    """Return a card for the best row of a section and one for each objective."""
    run = board.best
    if run is None:
        return ""
    row = board.choices[0]
    cards = []
    for objective in board.facts.objectives:
        number, unit = row.numbers.get(objective.metric), board.units.get(objective.metric, "")
        if number is None:
            continue
        big = f"{large(number.mean, unit)}{f' <small>{unit}</small>' if unit else ''}"
        low, high = number.interval or (0.0, 0.0)
        interval = f"95 %: {bounds(number.interval, unit)}" if low < high else ""
        lines = gains(row, objective.metric, unit, objective.mode == "min").items()
        cards.append(
            f'<div class="card"><h3>{escape(objective.metric)}</h3><div class="big">{big}</div>'
            f'<div class="interval">{interval}</div>{"".join(gain_line(*line) for line in lines)}</div>'
        )
    settings = " · ".join(f"{escape(key)} <b>{escape(shown(value))}</b>" for key, value in row.settings.items())
    name = f'<span class="badge best1">1</span> {escape(row.config or short_name(row.runs[0]))}'
    title = f"The best of {escape(board.title)}" if board.title else "The best"
    first = (
        f'<div class="card"><h3>{title}</h3><div class="lead">{name}</div><div class="settings">{settings}</div></div>'
    )
    text = verdict(board)
    sentence = f'<p id="{board.anchor("verdict")}">{escape(text)}</p>' if text else ""
    return f'<div class="cards">{first}{"".join(cards)}</div>{sentence}'


def _times(board: Leaderboard) -> list[str]:
    """Return when the page was written, and how long the sweep and all its runs took."""
    runs = board.entries
    begun = [run.started for run in runs if run.started is not None]
    ended = [run.ended for run in runs if run.ended is not None]
    parts = []
    if begun and (last := max(ended) if board.facts.state != "running" and ended else board.facts.written) > min(begun):
        parts.append(f"{duration(last - min(begun))} on the clock")
    if spent := sum(run.costs.get("seconds", 0.0) for run in runs):
        parts.append(f"{duration(spent)} in all runs")
    if hours := sum(run.costs.get("gpu_hours", 0.0) for run in runs):
        parts.append(f"{readable(hours)} GPU hours")
    if board.facts.written:
        parts.append(f"written {datetime.fromtimestamp(board.facts.written, UTC):%Y-%m-%d %H:%M:%S} UTC")
    return parts
