"""The rows of a leaderboard as an HTML table, complete without the script that sorts and filters it."""

import re
from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from raysl.leaderboard.best import best_runs
from raysl.leaderboard.choice import Choice, Number
from raysl.leaderboard.entry import Entry
from raysl.leaderboard.flat import ENDS, measured, shown, varied
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.axes import spelled
from raysl.leaderboard.page.head import STATUSES
from raysl.leaderboard.page.rows import short_name
from raysl.leaderboard.references import Reference, references
from raysl.report.contents import DEFAULTS
from raysl.report.tables import Cell, link
from raysl.storage.addresses import split_query

TITLES = {"step_s": "s a step", "memory_gb": "memory, GB", "gpu_hours": "GPU hours"}
MORE = "number more"
"""Class of columns that the script hides until they are asked for: costs, and measurements behind the first."""
OTHER = "number other"
"""Class of further measurements, which the script hides as well where there is no room for them."""
MOST_OTHERS = 3
"""Measurements beside the objectives that are always shown."""
MOST_LETTERS = 24
"""Letters up to which the text of a setting stays on one line."""
MAX_PLAIN = 25
"""Rows up to which the table has no height of its own."""
Column = tuple[str, str, str]
"""Class, what sorts (a number, or text), HTML."""


def table_section(board: Leaderboard) -> str:
    """The table, its filters, and what its intervals are."""
    if not board.choices:
        return ""
    heads, rows = _columns(board)
    titles = "".join(
        f'<th scope="col" class="{kind}" aria-sort="{"ascending" if index == 0 else "none"}">{_heading(title)}</th>'
        for index, (kind, title) in enumerate(heads)
    )
    body = "".join(_body(section, heads, rows[section.first :]) for section in board.sections)
    configs = {row.config for row in board.choices if row.config} if board.facts.kind == "sweep" else set()
    tools = _filters(board.choices, sorted(configs), any(kind in (MORE, OTHER) for kind, _ in heads))
    tall = " tall" if len(board.choices) > MAX_PLAIN else ""
    return (
        f'<section id="results"><h2>Results</h2>{tools}<div class="wide{tall}" tabindex="0" '
        f'role="region" aria-label="Results"><table class="full board"><thead><tr>{titles}</tr></thead>'
        f"{body}</table></div>{_note(board)}</section>"
    )


def _body(section: Leaderboard, heads: Sequence[tuple[str, str]], rows: Sequence[list[Column]]) -> str:
    """Return the rows of a section below its title, and behind them those of its rivals."""
    lines = "".join(
        f'<tr data-row="{index}" data-status="{row.status}" data-config="{escape(row.config)}"{_settings(row)}>'
        + "".join(f'<td class="{kind}"{_sorted(by)}>{html}</td>' for kind, by, html in cells)
        + "</tr>"
        for index, (row, cells) in enumerate(zip(section.choices, rows, strict=False), section.first)
    )
    foot = _foot(section, heads)
    if not section.title:
        return f"<tbody>{lines}</tbody>" + (f"<tfoot>{foot}</tfoot>" if foot else "")
    title = f'<th class="group" scope="rowgroup" colspan="{len(heads)}"><span>{escape(section.title)}</span></th>'
    return f'<tbody><tr class="section">{title}</tr>{lines}</tbody>' + (f"<tbody>{foot}</tbody>" if foot else "")


def _heading(title: str) -> str:
    """Return a title that may break behind its dots and strokes."""
    return re.sub(r"(?<=[./])", "<wbr>", escape(title))


def _settings(row: Choice) -> str:
    """Return what the script shows of a row, beside what a drawing says of it."""
    lines = [f"{key} {spelled(value)}" for key, value in row.settings.items()]
    return f' data-told="{escape(chr(10).join(lines))}"' if lines else ""


def _sorted(by: str) -> str:
    return f' data-by="{escape(by)}"' if by else ""


def _filters(rows: Sequence[Choice], configs: list[str], has_more: bool) -> str:
    """What the script shows: a text, and the configuration and status of rows where there are several."""
    fields = '<label>Filter <input type="search" id="filter" placeholder="words of a row" autocomplete="off"></label>'
    statuses = [status for status in STATUSES if any(run.status == status for row in rows for run in row.runs)]
    for name, values in (("config", configs), ("status", statuses)):
        if len(values) > 1:
            options = "".join(f"<option>{escape(value)}</option>" for value in values)
            fields += f'<label>{name} <select id="{name}"><option value="">all</option>{options}</select></label>'
    if has_more:
        fields += '<label><input type="checkbox" id="more"> costs and all numbers</label>'
    return f'<div class="tools" hidden>{fields}<output id="count"></output></div>'


def _columns(board: Leaderboard) -> tuple[list[tuple[str, str]], list[list[Column]]]:
    """Headings with their classes, and the cells of each row."""
    rows, objectives = board.choices, board.facts.objectives
    ranks = [objective.metric for objective in objectives]
    known = {name for row in rows for name in row.numbers}
    rivals = [name for rank in ranks if (name := f"{rank}/untrained") in known]
    ends = [name for name in ENDS if name in known and name not in ranks]
    with_seeds = any(len(row.runs) > 1 for row in rows)
    numbers = [*ranks, *(["untrained"] if len(rivals) == 1 else rivals)]
    heads = [("number", "#"), ("name", "run"), *(("number", name) for name in numbers), ("", "status")]
    heads += [("number", "epoch")] + [("number", "seeds")] * with_seeds
    settings = varied(rows)
    heads += [("number" if _are_numbers(rows, name) else "", name) for name in settings]
    others = measured(rows, objectives)
    mores = [*[OTHER] * MOST_OTHERS, *[MORE] * len(others)]
    heads += [(kind, name) for kind, name in zip(mores, others, strict=False)]
    heads += [(MORE, TITLES.get(name, name)) for name in ends]
    units = {name: unit for run in board.entries for name, unit in run.units.items()}
    cells = []
    places = [(index, row, len(best_runs(part))) for part in board.sections for index, row in enumerate(part.choices)]
    for index, row, num_best in places:
        line = [_rank(index, row, ranks[0], index < num_best), _name(row, board.facts.path)]
        line += [_number(row.numbers.get(name), units.get(name, ""), name == ranks[0]) for name in ranks]
        line += [_bare(row.numbers.get(name), units.get(name.removesuffix("/untrained"), "")) for name in rivals]
        line += [_status(row), ("number", _key(row.epoch), "" if row.epoch is None else f"{row.epoch:.4g}")]
        line += [("number", str(len(row.counted)), _seeds(row))] * with_seeds
        line += [_setting(row, name) for name in settings]
        line += [_number(row.numbers.get(name), units.get(name, "")) for name in others]
        line += [_bare(row.numbers.get(name), units.get(name, "")) for name in ends]
        # a cell of a column that may be hidden is hidden with its heading
        pairs = zip(heads, line, strict=True)
        cells.append([(head, *cell[1:]) if head in (MORE, OTHER) else cell for (head, _), cell in pairs])
    return heads, cells


def _foot(board: Leaderboard, heads: Sequence[tuple[str, str]]) -> str:
    """A line each for raw pixels and untrained networks, below the numbers that they were measured for."""
    units = {name: unit for run in board.entries for name, unit in run.units.items()}
    known = {
        title: {reference.rival: reference for reference in references(board.choices, title)} for _, title in heads
    }
    lines = []
    for rival, words in (("pixels", "raw pixels"), ("untrained", "untrained")):
        if not any(rival in rivals for rivals in known.values()):
            continue
        cells = []
        for kind, title in heads:
            reference = known[title].get(rival)
            text = "" if reference is None else _range(reference, units.get(reference.metric, ""))
            cells.append(f'<td class="{kind}">{words if title == "run" else text}</td>')
        lines.append(f'<tr class="rival">{"".join(cells)}</tr>')
    return "".join(lines)


def _range(reference: Reference, unit: str) -> str:
    """The number of a rival, or the least and the largest over the rows."""
    low, high = (Cell(end, unit).text for end in (reference.low, reference.high))
    return low if low == high else f"{low} to {high}"


def _are_numbers(rows: Sequence[Choice], name: str) -> bool:
    values = [row.settings[name] for row in rows if name in row.settings]
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _key(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _rank(index: int, row: Choice, metric: str, is_best: bool) -> Column:
    rank = f'<span class="badge best{index + 1}">{index + 1}</span>' if is_best else str(index + 1)
    return "number", str(index + 1), rank if row.value(metric) is not None else '<span class="quiet">–</span>'


def _name(row: Choice, path: str) -> Column:
    """The configuration, and the runs, with links to the pages of those that are finished."""
    links = []
    for run in row.runs:
        text = escape(short_name(run))
        if len(row.runs) > 1:
            text = f"seed\N{NO-BREAK SPACE}{run.seed}"
        target = link(_report(run, path)) if run.status == "finished" and run.path else ""
        links.append(f'<a href="{escape(target)}">{text}</a>' if target else text)
    runs = " · ".join(links)
    if not row.config:
        return (
            "name",
            "",
            f"<code>{runs}</code>" if len(row.runs) == 1 else f"{escape(short_name(row.runs[0]))}: {runs}",
        )
    config = escape(row.config).replace("/", "/<wbr>")
    if row.config == row.runs[0].trial and len(row.runs) == 1:
        target = link(_report(row.runs[0], path)) if row.runs[0].path and row.status == "finished" else ""
        return "name", row.config, f'<b><a href="{escape(target)}">{config}</a></b>' if target else f"<b>{config}</b>"
    return "name", row.config, f'<b>{config}</b><div class="spread">{runs}</div>'


def _report(run: Entry, path: str) -> str:
    """The page of a run: below that of the leaderboard, or where it is."""
    (base, query), (above, query_above) = split_query(run.path), split_query(path)
    is_below = base.startswith(f"{above}/") and query == query_above
    return f"{quote(base.removeprefix(f'{above}/')) if is_below else run.path}/report.html"


def _number(number: Number | None, unit: str, is_main: bool = False) -> Column:
    """A number, its deviation beside it and its interval beneath."""
    kind = "number main" if is_main else "number"
    if number is None:
        return kind, "", ""
    if number.deviation == 0:
        return kind, _key(number.mean), Cell(number.mean, unit).text
    return kind, _key(number.mean), Cell(number.mean, unit, number.deviation, number.interval).html()


def _bare(number: Number | None, unit: str) -> Column:
    """A number without what stands beside it."""
    return ("number", "", "") if number is None else ("number", _key(number.mean), Cell(number.mean, unit).text)


def _status(row: Choice) -> Column:
    """Return the statuses of a row's runs, and why one failed or was stopped."""
    marks = "".join(
        f'<div class="nowrap"><i class="mark {status}">{mark}</i>{escape(words)}</div>'
        for status, mark in STATUSES.items()
        for words in row.status.split(", ")
        if words.endswith(status)
    )
    reasons = dict.fromkeys(run.reason for run in row.runs if run.reason)
    why = "".join(f'<div class="why">{escape(reason)}</div>' for reason in reasons)
    return "state", row.status, marks + why


def _seeds(row: Choice) -> str:
    return f"{len(row.counted)} of {len(row.runs)}" if len(row.counted) < len(row.runs) else str(len(row.runs))


def _setting(row: Choice, name: str) -> Column:
    if name not in row.settings:
        return "", "", '<span class="quiet">–</span>'
    value = row.settings[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", _key(value), escape(shown(value))
    text = spelled(value)
    return "taken nowrap" if len(text) <= MOST_LETTERS else "taken", "", escape(text)


def _note(board: Leaderboard) -> str:
    """Return what the numbers beside and beneath the values are."""
    rows = board.choices
    lines = []
    if any(number.deviation is not None for row in rows for number in row.numbers.values()):
        lines.append(
            "±: standard deviation over seeds (n − 1). Beneath: 95 % interval of the mean over seeds, Student's t."
        )
    if any(number.n == 1 and number.interval is not None for row in rows for number in row.numbers.values()):
        lines.append("Beneath a number of one seed: its 95 % interval over test images.")
    if any(reference.rival == "pixels" for name in board.rows[0] for reference in references(rows, name)):
        lines.append(
            "Last lines: raw pixels in place of features, and networks before training, from the least to the largest "
            "of the rows; the online kNN is compared with those of the benchmark knn."
        )
    if len(board.sections) > 1:
        lines.append("Rows are ranked within a section: numbers of other images or protocols cannot be compared.")
    if mixed := _mixed_protocols(board):
        lines.append(f"Not all measured by the same settings, and not to be compared: {escape(mixed)}.")
    if any(row.status != "finished" for row in rows):
        lines.append("Numbers of runs that were stopped or still go on are those of the last epoch that they reached.")
    return f'<p class="quiet">{" ".join(lines)}</p>' if lines else ""


def _mixed_protocols(board: Leaderboard) -> str:
    """Return the names of numbers that the runs of a section have by several protocols, with these."""
    texts = {}
    for section in board.sections:
        for name in measured(section.choices, board.facts.objectives):
            found = {run.protocol(name) or DEFAULTS for run in section.entries if name in run.metrics}
            if len(found) > 1:
                texts[name] = f"{name} ({'; '.join(sorted(found))})"
    return ", ".join(texts.values())
