"""The rows of a leaderboard as flat objects, and those as CSV, as aligned text and as LaTeX."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.entry import Objective
from raysl.nn.collapse import COLLAPSE
from raysl.report.contents import is_beside
from raysl.report.summary import aligned
from raysl.report.tables import Cell, Table, as_csv

COSTS = ("seconds", "gpu_hours", "step_s", "memory_gb")
"""Costs of a run, as far as they are known."""
ENDS = (*COSTS, *COLLAPSE, "path")
"""Last columns of a row."""
OVER_CLASSES = ("mean_per_class", "macro_f1")
"""Beginnings of the names of means over classes, which stand behind the accuracies over all images."""
BESIDE = (": deviation", ": low", ": high")
"""Ends of the names of columns beside a number, where it has them."""


def measured(rows: Sequence[Choice], objectives: Sequence[Objective]) -> list[str]:
    """Return the names of measured numbers beside the objectives, percentages first, without rivals."""
    units = {name: unit for row in rows for run in row.runs for name, unit in run.units.items()}
    names = {name for row in rows for name in row.numbers if "/" in name and not is_beside(name)}

    def key(name: str) -> tuple[bool, str, int, str, bool, str]:
        group, _, metric = name.rpartition("/")
        benchmark, _, protocol = group.partition("/")
        is_over_classes = metric.startswith(OVER_CLASSES)
        return units.get(name) != "%", benchmark, len(protocol), protocol, is_over_classes, metric

    return sorted(names - {objective.metric for objective in objectives}, key=key)


def varied(rows: Sequence[Choice]) -> list[str]:
    """Return the names of all settings of the rows, in the order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.settings))


def flat_rows(
    sections: Sequence[tuple[str, Sequence[Choice]]], objectives: Sequence[Objective], front: Sequence[Choice]
) -> list[dict[str, Any]]:
    """Return the rows of sections, each with its title, best first, as objects with the same keys; None marks what a
    row lacks.

    Section (of several, in each of which ranks begin at 1), rank, trial (names of the runs, one a seed), status, draws,
    epoch, n (seeds behind the first objective), pareto (of several objectives), each objective with its parts and those
    of the untrained network and of raw pixels, config, settings, measurements with their parts, costs, measures of
    collapse, path (of the first run).
    """
    rows = [row for _, section in sections for row in section]
    ranks = [objective.metric for objective in objectives]
    numbers = [*ranks, *measured(rows, objectives)]
    known = {name for row in rows for name in row.numbers}
    settings, has_config, fronts = varied(rows), any(row.config for row in rows), {id(row) for row in front}
    flat = []
    for title, rank, row in [(title, rank, row) for title, section in sections for rank, row in enumerate(section, 1)]:
        line: dict[str, Any] = {"section": title} if len(sections) > 1 else {}
        line |= {
            "rank": rank,
            "trial": " ".join(run.trial for run in row.runs),
            "status": row.status,
            "draws": row.draws,
            "epoch": row.epoch,
            "n": row.num_seeds(ranks[0]),
        }
        if len(objectives) > 1:
            line["pareto"] = id(row) in fronts
        for name in ranks:
            line |= _cell(row, name).columns(name)
            beside = [f"{name}/{rival}" for rival in ("untrained", "pixels") if f"{name}/{rival}" in known]
            line |= {rival: row.value(rival) for rival in beside}
        line |= {"config": row.config} if has_config else {}
        line |= {name: row.settings.get(name) for name in settings}
        for name in numbers[len(ranks) :]:
            line |= _cell(row, name).columns(name)
        line |= {name: row.value(name) for name in ENDS if name in known and name not in ranks}
        flat.append({**line, "path": row.runs[0].path})
    beside = [key for key in flat[0] if key.endswith(BESIDE)] if flat else []
    empty = {key for key in beside if all(line[key] is None for line in flat)}
    return [{key: value for key, value in line.items() if key not in empty} for line in flat]


def _cell(row: Choice, name: str, unit: str = "") -> Cell:
    number = row.numbers.get(name)
    return Cell(unit=unit) if number is None else Cell(number.mean, unit, number.deviation, number.interval)


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return flat rows as CSV; empty without rows."""
    if not rows:
        return ""
    return as_csv(list(rows[0]), [list(row.values()) for row in rows])


def text_table(rows: Sequence[Choice], flat: Sequence[dict[str, Any]]) -> str:
    """Return the cells of `readable_cells` as aligned text."""
    if not rows:
        return "no trial yet"
    cells = readable_cells(rows, flat)
    return "\n".join(aligned(cells, len(cells[0])))


def brief(
    rows: Sequence[Choice], flat: Sequence[dict[str, Any]], objectives: Sequence[Objective]
) -> list[dict[str, Any]]:
    """Return flat rows without other measurements than the objectives, costs and measures of collapse."""
    ranks = {objective.metric for objective in objectives}
    others = {*measured(rows, objectives), *COSTS, *COLLAPSE} - ranks
    return [{name: value for name, value in line.items() if name.partition(": ")[0] not in others} for line in flat]


def readable_cells(rows: Sequence[Choice], flat: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return titles and cells for people: deviations beside numbers, no paths, no column that says nothing."""
    dull = {"path"} | {name for name in flat[0] if name.endswith(BESIDE)}
    dull |= {name for name in ("draws", "n") if all(row[name] in (0, 1) for row in flat)}
    names = [name for name in flat[0] if name not in dull]
    return [
        names,
        *([_readable(row, name, line[name]) for name in names] for row, line in zip(rows, flat, strict=True)),
    ]


def _readable(row: Choice, name: str, value: Any) -> str:
    if name == "trial":
        return row.runs[0].trial + (f" +{len(row.runs) - 1}" if len(row.runs) > 1 else "")
    number = None if name in row.settings else row.numbers.get(name)
    if number is not None and number.deviation is not None and name not in ENDS:
        return f"{shown(number.mean)} ± {shown(number.deviation, 2)}"
    return shown(value)


def latex(sections: Sequence[tuple[str, Sequence[Choice]]], objectives: Sequence[Objective]) -> str:
    """Return a `tabular` of booktabs, the best row first: what varies, then objectives and measurements.

    The best number of each objective in a section is bold, and sections are set apart. Beside a number stands small its
    deviation over seeds, or of one seed alone its 95 % interval.
    """
    rows = [row for _, section in sections for row in section]
    settings = varied(rows)
    numbers = [*(objective.metric for objective in objectives), *measured(rows, objectives)]
    units = {name: unit for row in rows for run in row.runs for name, unit in run.units.items()}
    has_config = any(row.config for row in rows)
    has_seeds = any(row.num_seeds(numbers[0]) > 1 for row in rows)
    keys = {objective.metric: objective.key for objective in objectives}
    groups: dict[str, list[list[str | Cell]]] = {}
    for title, section in sections:
        best = {name: min((key(row.value(name)) for row in section), default=(True, 0.0)) for name, key in keys.items()}
        for row in section:
            cells: list[str | Cell] = [row.config] if has_config else []
            cells += [shown(row.settings.get(name)) for name in settings]
            cells += [str(row.num_seeds(numbers[0]))] if has_seeds else []
            for name in numbers:
                is_best = name in keys and keys[name](row.value(name)) == best[name]
                cell = _cell(row, name, units.get(name, ""))
                interval = cell.interval if cell.deviation is None else None
                cells.append(replace(cell, interval=interval, is_best=is_best and cell.value is not None))
            groups.setdefault(title, []).append(cells or [row.runs[0].trial])
    head = ["config"] if has_config else []
    return Table([*head, *settings, *(["seeds"] if has_seeds else []), *numbers], groups).latex()


def shown(value: Any, digits: int = 4) -> str:
    """Return a value as text: a float with this number of digits, nothing for None."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return "" if value is None else str(value)
