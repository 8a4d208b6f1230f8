"""A leaderboard as LaTeX, as a paper prints it."""

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.flat import measured, shown, varied
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.report.tables import latex_table, latex_text


def latex(board: Leaderboard) -> str:
    """A `tabular` of booktabs, the best row first: what varies, then objectives and measurements.

    The best number of each objective is bold. Beside a number stands small its deviation over seeds, or of one seed
    alone its 95 % interval.
    """
    rows, objectives = board.choices, board.facts.objectives
    settings = varied(rows)
    numbers = [*(objective.metric for objective in objectives), *measured(rows, objectives)]
    has_config = any(row.config for row in rows)
    has_seeds = any(len(row.counted) > 1 for row in rows)
    best = {
        objective.metric: min((objective.key(row.value(objective.metric)) for row in rows), default=(True, 0.0))
        for objective in objectives
    }
    body = []
    for row in rows:
        cells = [latex_text(row.config)] if has_config else []
        cells += [latex_text(shown(row.settings.get(name))) for name in settings]
        cells += [str(len(row.counted))] if has_seeds else []
        for name in numbers:
            is_best = any(
                objective.metric == name and objective.key(row.value(name)) == best[name] for objective in objectives
            )
            cells.append(_cell(row, name, is_best))
        body.append(cells or [latex_text(row.runs[0].trial)])
    head = ["config"] if has_config else []
    head += [*map(latex_text, settings), *(["seeds"] if has_seeds else []), *map(latex_text, numbers)]
    return latex_table(head, [body])


def _cell(row: Choice, name: str, is_best: bool) -> str:
    number = row.numbers.get(name)
    if number is None:
        return ""
    value = f"\\textbf{{{shown(number.mean)}}}" if is_best else shown(number.mean)
    spread = ""
    if number.deviation is not None:
        spread = f"$\\pm$ {shown(number.deviation, 2)}"
    elif number.interval is not None:
        spread = f"{shown(number.interval[0])} to {shown(number.interval[1])}"
    return f"{value} {{\\scriptsize {spread}}}" if spread else value
