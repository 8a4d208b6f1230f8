"""How much each setting matters to the objective: by how much a random forest predicts it worse without it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raysl.leaderboard.choice import Choice
from raysl.leaderboard.page.axes import Axis

MIN_ROWS = 10
"""Rows with a number below which nothing is said."""
TREES, REPEATS, SEED = 100, 10, 0


@dataclass(frozen=True)
class Importance:
    """What a forest has learned of some rows.

    Args:
        num: rows that it has seen.
        fit: coefficient of determination of its predictions for rows that a tree has not seen (out of bag): 1 where
            they are exact, 0 or less where the mean would do as well.
        settings: for each setting the mean and the standard deviation, over `REPEATS` shuffles, of what R^2 loses where
            the setting's values are shuffled among the rows; the largest first. Empty where `fit` is not above 0.
    """

    num: int
    fit: float
    settings: tuple[tuple[str, float, float], ...] = ()


def importance(rows: Sequence[Choice], scales: Sequence[Axis], metric: str) -> Importance | None:
    """Permutation importance (Breiman 2001, Machine Learning 45, section 10) in a forest of `TREES`, always the same.

    Args:
        rows: of the leaderboard; those without the metric are left out.
        scales: the settings that vary.
        metric: that is explained.

    Returns:
        None where there are fewer than `MIN_ROWS` rows, nothing varies or all have the same number.
    """
    told = [(row, value) for row in rows if (value := row.value(metric)) is not None]
    values = np.array([value for _, value in told])
    if len(told) < MIN_ROWS or not scales or np.ptp(values) == 0:
        return None
    return _of_forest([row for row, _ in told], values, scales)


def _of_forest(rows: Sequence[Choice], values: np.ndarray, scales: Sequence[Axis]) -> Importance:
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    table = np.array([[_feature(axis, row) for axis in scales] for row in rows])  # [N, settings]
    categories = [place for place, axis in enumerate(scales) if axis.kind == "category"]
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    forest = RandomForestRegressor(TREES, oob_score=True, random_state=SEED)
    model = make_pipeline(ColumnTransformer([("names", encoder, categories)], remainder="passthrough"), forest)
    model.fit(table, values)
    fit = float(forest.oob_score_)
    if fit <= 0:
        return Importance(len(rows), fit)
    found = permutation_importance(model, table, values, n_repeats=REPEATS, random_state=SEED)
    told = zip(scales, found.importances_mean, found.importances_std, strict=True)
    settings = [(axis.key, float(mean), float(deviation)) for axis, mean, deviation in told]
    return Importance(len(rows), fit, tuple(sorted(settings, key=lambda one: -one[1])))


def _feature(axis: Axis, row: Choice) -> float:
    """A setting as a tree sees it; below all others where the row has it not."""
    place = axis.place(row)
    if place is None:
        return -1.0 if axis.kind == "category" else -1e9
    return float(np.log10(place)) if axis.kind == "log" else place
