"""The rows of a leaderboard as an HTML table; a script sorts and filters it, but it is complete without the script."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from urllib.parse import quote

from raysl.leaderboard.best import Reference, best_runs, references
from raysl.leaderboard.choice import Choice
from raysl.leaderboard.entry import Entry
from raysl.leaderboard.flat import ENDS, measured, varied
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.head import STATUSES
from raysl.leaderboard.page.parallel import setting_text
from raysl.leaderboard.page.rows import short_name
from raysl.report.contents import DEFAULTS
from raysl.report.html import quiet, section
from raysl.report.tables import Cell, link
from raysl.storage.addresses import split_query

TITLES = {"step_s": "s a step", "memory_gb": "memory, GB", "gpu_hours": "GPU hours"}
MORE = "number more"
"""Class of columns that the script hides until the reader asks for them: costs, and measurements after the first ones.
"""
OTHER = "number other"
"""Class of the first measurements beside the objectives; the script hides them only if there is no room."""
MOST_OTHERS = 3
"""Number of columns with the class `OTHER`."""
MOST_LETTERS = 24
"""Most letters of a setting that stay on one line."""
MAX_PLAIN = 25
"""Most rows of a table without a scroll bar of its own."""
HIDDEN = (MORE, OTHER)
Content = tuple[str, str, str]
"""Class, sort key (a number, or text) and HTML of a cell."""
Column = tuple[str, str, Callable[[Choice], Content]]
"""Class and title of a column, and the function that makes a row's cell in it."""


def table_section(board: Leaderboard) -> str:
    """Return the part of the page with the table, its filters, and a note on its intervals."""
    if not board.choices:
        return ""
    columns = _columns(board)
    titles = "".join(
        f'<th scope="col" class="{kind}" aria-sort="{"ascending" if index == 0 else "none"}">{_heading(title)}</th>'
        for index, (kind, title, _) in enumerate(columns)
    )
    body = "".join(_body(part, columns) for part in board.sections)
    configs = {row.config for row in board.choices if row.config} if board.facts.kind == "sweep" else set()
    tools = _filters(board.choices, sorted(configs), any(kind in HIDDEN for kind, *_ in columns))
    tall = " tall" if len(board.choices) > MAX_PLAIN else ""
    table = f'<table class="full board"><thead><tr>{titles}</tr></thead>{body}</table>'
    wide = f'<div class="wide{tall}" tabindex="0" role="region" aria-label="Results">{table}</div>'
    return section("results", "Results", f"{tools}{wide}{quiet(_note(board))}")


def _body(board: Leaderboard, columns: Sequence[Column]) -> str:
    """Return the title of a section, its rows, and the rows of its rivals."""
    lines = ""
    for index, row in enumerate(board.choices, board.first):
        cells = ""
        for head, _, cell in columns:
            kind, key, html = cell(row)
            # a cell has the class of its heading if the column may be hidden, so that both are hidden together
            cells += f'<td class="{head if head in HIDDEN else kind}"{_attribute("by", key)}>{html}</td>'
        settings = "\n".join(f"{key} {setting_text(value)}" for key, value in row.settings.items())
        facts = f'data-row="{index}" data-status="{row.status}" data-config="{escape(row.config)}"'
        lines += f"<tr {facts}{_attribute('settings', settings)}>{cells}</tr>"
    foot = _foot(board, columns)
    if not board.title:
        return f"<tbody>{lines}</tbody>" + (f"<tfoot>{foot}</tfoot>" if foot else "")
    title = f'<th class="group" scope="rowgroup" colspan="{len(columns)}"><span>{escape(board.title)}</span></th>'
    return f'<tbody><tr class="section">{title}</tr>{lines}</tbody>' + (f"<tbody>{foot}</tbody>" if foot else "")


def _attribute(name: str, value: str) -> str:
    """Return a `data-` attribute for the script; empty if the value is empty."""
    return f' data-{name}="{escape(value)}"' if value else ""


def _heading(title: str) -> str:
    """Return a title as HTML that may break after dots and slashes."""
    return re.sub(r"(?<=[./])", "<wbr>", escape(title))


def _filters(rows: Sequence[Choice], configs: list[str], has_more: bool) -> str:
    """Return the fields of the filter, which only the script shows: words, configuration and status."""
    fields = '<label>Filter <input type="search" id="filter" placeholder="words of a row" autocomplete="off"></label>'
    statuses = [status for status in STATUSES if any(run.status == status for row in rows for run in row.runs)]
    for name, values in (("config", configs), ("status", statuses)):
        if len(values) > 1:
            options = "".join(f"<option>{escape(value)}</option>" for value in values)
            fields += f'<label>{name} <select id="{name}"><option value="">all</option>{options}</select></label>'
    if has_more:
        fields += '<label><input type="checkbox" id="more"> costs and all numbers</label>'
    return f'<div class="tools" hidden>{fields}<output id="count"></output></div>'


def _columns(board: Leaderboard) -> list[Column]:
    rows, ranks = board.choices, [objective.metric for objective in board.facts.objectives]
    known = {name for row in rows for name in row.numbers}
    rivals = [name for metric in ranks if (name := f"{metric}/untrained") in known]
    others = measured(rows, board.facts.objectives)
    kinds = [*[OTHER] * MOST_OTHERS, *[MORE] * len(others)]
    ranking = {
        id(row): (index, index < num_best)
        for part in board.sections
        for num_best in [len(best_runs(part))]
        for index, row in enumerate(part.choices)
    }

    def number(name: str, is_main: bool = False) -> Callable[[Choice], Content]:
        return partial(_number, name=name, unit=board.units.get(name, ""), is_main=is_main)

    def bare(name: str) -> Callable[[Choice], Content]:
        return partial(_bare, name=name, unit=board.units.get(name.removesuffix("/untrained"), ""))

    columns: list[Column] = [
        ("number", "#", lambda row: _rank(row, ranks[0], *ranking[id(row)])),
        ("name", "run", partial(_name, path=board.facts.path)),
    ]
    columns += [("number", name, number(name, name == ranks[0])) for name in ranks]
    columns += [("number", "untrained" if len(rivals) == 1 else name, bare(name)) for name in rivals]
    columns += [("", "status", _status), ("number", "epoch", _epoch)]
    columns += [("number", "seeds", partial(_seeds, metric=ranks[0]))] * any(len(row.runs) > 1 for row in rows)
    columns += [
        ("number" if _are_numbers(rows, name) else "", name, partial(_setting, name=name)) for name in varied(rows)
    ]
    columns += [(kind, name, number(name)) for kind, name in zip(kinds, others, strict=False)]
    return columns + [
        (MORE, TITLES.get(name, name), bare(name)) for name in ENDS if name in known and name not in ranks
    ]


def _foot(board: Leaderboard, columns: Sequence[Column]) -> str:
    """Return a line for raw pixels and one for untrained networks, with the numbers measured for each column."""
    known = {title: {one.rival: one for one in references(board.choices, title)} for _, title, _ in columns}
    lines = []
    for rival, name in (("pixels", "raw pixels"), ("untrained", "untrained")):
        if not any(rival in rivals for rivals in known.values()):
            continue
        cells = []
        for kind, title, _ in columns:
            reference = known[title].get(rival)
            text = "" if reference is None else _range(reference, board.units.get(reference.metric, ""))
            cells.append(f'<td class="{kind}">{name if title == "run" else text}</td>')
        lines.append(f'<tr class="rival">{"".join(cells)}</tr>')
    return "".join(lines)


def _range(reference: Reference, unit: str) -> str:
    """Return the number of a rival, or the least and the largest one if it differs between rows."""
    low, high = (Cell(end, unit).text for end in (reference.low, reference.high))
    return low if low == high else f"{low} to {high}"


def _are_numbers(rows: Sequence[Choice], name: str) -> bool:
    return all(_is_number(row.settings[name]) for row in rows if name in row.settings)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rank(row: Choice, metric: str, index: int, is_best: bool) -> Content:
    rank = f'<span class="badge best{index + 1}">{index + 1}</span>' if is_best else str(index + 1)
    return "number", str(index + 1), rank if row.value(metric) is not None else '<span class="quiet">–</span>'


def _name(row: Choice, path: str) -> Content:
    """Return the cell with the configuration and the runs; finished runs are links to their reports."""
    if row.config and row.config == row.runs[0].trial and len(row.runs) == 1:
        return "name", row.config, f"<b>{_linked(row.runs[0], _breakable(row.config), path)}</b>"
    is_alone = len(row.runs) == 1
    texts = [escape(short_name(run)) if is_alone else f"seed\N{NO-BREAK SPACE}{run.seed}" for run in row.runs]
    runs = " · ".join(_linked(run, text, path) for run, text in zip(row.runs, texts, strict=True))
    if row.config:
        return "name", row.config, f'<b>{_breakable(row.config)}</b><div class="spread">{runs}</div>'
    return "name", "", f"<code>{runs}</code>" if is_alone else f"{escape(short_name(row.runs[0]))}: {runs}"


def _breakable(config: str) -> str:
    """Return the name of a configuration as HTML that may break after slashes."""
    return escape(config).replace("/", "/<wbr>")


def _linked(run: Entry, text: str, path: str) -> str:
    """Return HTML as a link to the report of a run if the run is finished, else unchanged."""
    target = link(_report(run, path)) if run.status == "finished" and run.path else ""
    return f'<a href="{escape(target)}">{text}</a>' if target else text


def _report(run: Entry, path: str) -> str:
    """Return the address of a run's report, relative to the leaderboard if it lies below it."""
    (base, query), (above, query_above) = split_query(run.path), split_query(path)
    is_below = base.startswith(f"{above}/") and query == query_above
    return f"{quote(base.removeprefix(f'{above}/')) if is_below else run.path}/report.html"


def _number(row: Choice, name: str, unit: str, is_main: bool) -> Content:
    """Return the cell of a number, with its deviation beside it and its interval below."""
    kind, number = "number main" if is_main else "number", row.numbers.get(name)
    if number is None:
        return kind, "", ""
    if number.deviation == 0:
        return kind, repr(float(number.mean)), Cell(number.mean, unit).text
    return kind, repr(float(number.mean)), Cell(number.mean, unit, number.deviation, number.interval).html()


def _bare(row: Choice, name: str, unit: str) -> Content:
    """Return the cell of a number without deviation and interval."""
    value = row.value(name)
    return ("number", "", "") if value is None else ("number", repr(float(value)), Cell(value, unit).text)


def _status(row: Choice) -> Content:
    """Return the cell with the statuses of a row's runs, and the reasons of those that failed or were stopped."""
    marks = "".join(
        f'<div class="nowrap"><i class="mark {status}">{mark}</i>{escape(count)}</div>'
        for status, mark in STATUSES.items()
        for count in row.status.split(", ")
        if count.endswith(status)
    )
    reasons = dict.fromkeys(run.reason for run in row.runs if run.reason)
    return "state", row.status, marks + "".join(f'<div class="why">{escape(reason)}</div>' for reason in reasons)


def _epoch(row: Choice) -> Content:
    return ("number", "", "") if row.epoch is None else ("number", repr(float(row.epoch)), f"{row.epoch:.4g}")


def _seeds(row: Choice, metric: str) -> Content:
    counted, num = row.num_seeds(metric), len({run.seed for run in row.runs})
    return "number", str(counted), f"{counted} of {num}" if counted < num else str(num)


def _setting(row: Choice, name: str) -> Content:
    if name not in row.settings:
        return "", "", '<span class="quiet">–</span>'
    value, text = row.settings[name], setting_text(row.settings[name])
    if _is_number(value):
        return "number", repr(float(value)), escape(text)
    return "taken nowrap" if len(text) <= MOST_LETTERS else "taken", "", escape(text)


def _note(board: Leaderboard) -> str:
    """Return the note that explains deviations, intervals and the lines of rivals."""
    rows = board.choices
    lines = []
    if any(number.deviation is not None for row in rows for number in row.numbers.values()):
        lines.append(
            "±: standard deviation over seeds (n − 1). Below it: 95 % interval of the mean over seeds, Student's t."
        )
    if any(number.n == 1 and number.interval is not None for row in rows for number in row.numbers.values()):
        lines.append("Below a number of one seed: its 95 % interval over test images.")
    if any(reference.rival == "pixels" for name in board.rows[0] for reference in references(rows, name)):
        lines.append(
            "Last lines: raw pixels in place of features, and networks before training, with the least and the largest "
            "number of the rows; for the online kNN they have the numbers of the benchmark knn."
        )
    if len(board.sections) > 1:
        lines.append("Rows are ranked within a section: numbers of other images or protocols cannot be compared.")
    if mixed := _mixed_protocols(board):
        lines.append(f"Measured by different protocols, and not to be compared: {escape(mixed)}.")
    if any(row.status != "finished" for row in rows):
        lines.append("Numbers of runs that were stopped, failed or still run are those of their last epoch.")
    return " ".join(lines)


def _mixed_protocols(board: Leaderboard) -> str:
    """Return the names of numbers that runs of one section measured by several protocols, and these protocols."""
    texts = {}
    for part in board.sections:
        for name in measured(part.choices, board.facts.objectives):
            protocols = {run.protocol(name) or DEFAULTS for run in part.entries if name in run.metrics}
            if len(protocols) > 1:
                texts[name] = f"{name} ({'; '.join(sorted(protocols))})"
    return ", ".join(texts.values())
