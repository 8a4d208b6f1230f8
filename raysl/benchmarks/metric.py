"""What a benchmark finds: numbers, with all that a table or a page needs to show them, and what they were made of."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

RESAMPLES = 1000
"""Bootstrap samples behind an interval."""


@dataclass(frozen=True)
class Metric:
    """One number of a benchmark.

    Args:
        name: what programs call it, such as `5_shot`; in the results of a run it is `<benchmark>/<name>`.
        value: in `unit`.
        deviation: standard deviation of `value` over repeated draws, where there are any.
        unit: such as `%` or `s`; may be empty.
        title: what people call it, such as `Low-shot, 5 per class`; default: made of both names.
        is_headline: whether it is among the numbers that open the page; others follow as far as there is room.
        is_lower_better: whether a smaller value is the better one.
        interval: bounds that hold the value of other such images in 95 of 100 cases, see `bootstrap`.
    """

    name: str
    value: float
    deviation: float | None = None
    unit: str = "%"
    title: str = ""
    is_headline: bool = True
    is_lower_better: bool = False
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Findings:
    """All that a benchmark gives.

    Args:
        metrics: the numbers, each name once.
        scores: float [N, K], what each class got on each test image, the largest of which is predicted; shares that
            add up to 1 where `are_probabilities`. The page draws confusion and reliability from them, and the
            predictions are kept as a Parquet file.
        are_probabilities: see `scores`.
        predicted: int64 [N], in place of `scores` where only the best class is known; -1 for none.
        figures: what else the page draws, in the types of JSON, by the names that `raysl.report` knows:
            `curves`: {title: {"x": name, "y": name, "lines": {name: [[x, y], ...]}}};
            `retrieved`: {"queries": [index, ...], "found": [[index, ...], ...], "right": [[bool, ...], ...]}, places in
            the test and in the searched split; `per_class`: {title: {class name: number}}.
    """

    metrics: Sequence[Metric]
    scores: Tensor | None = None
    are_probabilities: bool = False
    predicted: Tensor | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


def metrics_of(found: "Findings | Sequence[Metric]") -> Sequence[Metric]:
    """The numbers alone."""
    return found.metrics if isinstance(found, Findings) else found


def by_name(metrics: Sequence[Metric]) -> dict[str, Metric]:
    """The metrics that a benchmark gave, by their names.

    Raises:
        ValueError: if they are something else, or two of one name.
    """
    if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
        raise ValueError(f"run() gave {metrics!r}; return a list of Metric (raysl.benchmarks.benchmark)")
    found = {metric.name: metric for metric in metrics}
    if len(found) < len(metrics):
        names = [metric.name for metric in metrics]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"run() gave the metric {twice!r} more than once; give each a name of its own")
    return found


def bootstrap(values: Tensor, seed: int = 0) -> tuple[float, float] | None:
    """The 2.5th and 97.5th percentile of the mean of values, over 1,000 samples of them with replacement.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3. The values are those of the test images,
    or of the queries: what is stated is how far the mean would move on other such images, not with another training.

    Args:
        values: [N].
        seed: of the samples.

    Returns:
        The bounds; None of fewer than two values, or where one is not finite.
    """
    own = values.detach().cpu().double().numpy()
    if len(own) < 2 or not np.isfinite(own).all():
        return None
    random = np.random.default_rng(seed)
    found, counts = np.unique(own, return_counts=True)
    if len(found) <= 64:  # hits and misses: how often each value is drawn is multinomial, whatever the number of rows
        means = random.multinomial(len(own), counts / len(own), RESAMPLES) @ found / len(own)
    else:
        means = np.array([own[random.integers(0, len(own), len(own))].mean() for _ in range(RESAMPLES)])
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def mean_of(
    name: str, values: Tensor, *, unit: str = "%", title: str = "", is_headline: bool = True, seed: int = 0
) -> Metric:
    """The mean of what each test image, or each query, got, with its interval.

    Args:
        name, unit, title, is_headline: of the metric.
        values: [N], bool or number; in percent they are shares in [0, 1], else in the unit.
        seed: of the interval.
    """
    own = values.double() * (100 if unit == "%" else 1)
    value = own.mean().item() if len(own) else math.nan
    return Metric(name, value, unit=unit, title=title, is_headline=is_headline, interval=bootstrap(own, seed))
