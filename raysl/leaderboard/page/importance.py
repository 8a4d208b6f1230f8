"""How much each setting matters to the objective, by a random forest."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape

import numpy as np

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.parallel import MIN_AXES, Axis
from raysl.report.html import bar_cell, quiet, section, table

MIN_ROWS = 10
"""Rows with a number below which nothing is said."""
TREES, REPEATS, SEED = 100, 10, 0


@dataclass(frozen=True)
class Importance:
    """What a forest has learned from some rows.

    Args:
        num: rows that it has seen.
        fit: coefficient of determination of its predictions for rows that a tree has not seen (out of bag): 1 where
            they are exact, 0 or less where the mean would do as well.
        settings: each setting with the mean and the standard deviation, over `REPEATS` shuffles, of what R^2 loses
            where the setting's values are shuffled among the rows; the largest first. Empty where `fit` is not above 0.
    """

    num: int
    fit: float
    settings: tuple[tuple[str, float, float], ...] = ()


def importance(rows: Sequence[Choice], scales: Sequence[Axis], metric: str) -> Importance | None:
    """Return the permutation importance (Breiman 2001, Machine Learning 45, section 10) in a forest with a fixed seed.

    None where fewer than `MIN_ROWS` rows have the metric, nothing varies or all have the same number.
    """
    pairs = [(row, value) for row in rows if (value := row.value(metric)) is not None]
    values = tuple(value for _, value in pairs)
    if len(pairs) < MIN_ROWS or not scales or np.ptp(values) == 0:
        return None
    return _of_forest(tuple(tuple(_feature(axis, row) for axis in scales) for row, _ in pairs), values, tuple(scales))


# a page that is written again and again learns only what has changed; each of its sections has a forest
@lru_cache(maxsize=32)
def _of_forest(table: tuple[tuple[float, ...], ...], values: tuple[float, ...], scales: tuple[Axis, ...]) -> Importance:
    """Return what a forest learns from settings [N, settings] and numbers [N]."""
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    categories = [index for index, axis in enumerate(scales) if axis.kind == "category"]
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    forest = RandomForestRegressor(TREES, oob_score=True, random_state=SEED)
    model = make_pipeline(ColumnTransformer([("names", encoder, categories)], remainder="passthrough"), forest)
    model.fit(np.array(table), values)
    fit = float(forest.oob_score_)
    if fit <= 0:
        return Importance(len(table), fit)
    permuted = permutation_importance(model, np.array(table), values, n_repeats=REPEATS, random_state=SEED)
    losses = zip(scales, permuted.importances_mean, permuted.importances_std, strict=True)
    settings = [(axis.key, float(mean), float(deviation)) for axis, mean, deviation in losses]
    return Importance(len(table), fit, tuple(sorted(settings, key=lambda one: -one[1])))


def _feature(axis: Axis, row: Choice) -> float:
    """Return a setting as a tree sees it; below all others where the row lacks it."""
    position = axis.position(row)
    if position is None:
        return -1.0 if axis.kind == "category" else -1e9
    return float(np.log10(position)) if axis.kind == "log" else position


def importance_section(board: Leaderboard, axes: Sequence[Axis], learned: Importance | None) -> str:
    """Return bars of how much each setting matters, or why that cannot be said."""
    if len(axes) < MIN_AXES:
        return ""
    rows, objective = board.choices, board.facts.objectives[0]
    name, title, metric = board.anchor("importance"), board.headed("Importance of settings"), escape(objective.metric)
    if learned is None:
        num = sum(row.value(objective.metric) is not None for row in rows)
        text = f"It takes {MIN_ROWS} rows with different numbers of {metric} to tell; there are {num} rows with one."
        return section(name, title, quiet(text), "importance")
    facts = f"n = {learned.num} rows, out-of-bag R² = {learned.fit:.2f}"
    if not learned.settings:
        text = f"A random forest does not predict {metric} from the settings better than the mean does ({facts})."
        return section(name, title, quiet(f"{text} More rows may help."), "importance")
    largest = max(max(mean for _, mean, _ in learned.settings), 1e-9)
    bars = [
        f'<td class="name"><code>{escape(key)}</code></td><td class="number main">{mean:.3f} '
        f'<span class="spread">± {deviation:.3f}</span></td>{bar_cell(100 * mean / largest)}'
        for key, mean, deviation in learned.settings
    ]
    note = (
        f"What R² of a random forest ({TREES} trees, {facts}) loses where a setting's values are shuffled among the "
        f"rows; mean ± standard deviation of {REPEATS} shuffles, fixed seed. It holds for the ranges searched here; "
        "settings that vary together share their importance."
    )
    return section(name, title, table("", bars) + quiet(note), "importance")
