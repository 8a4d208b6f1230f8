"""Metrics of benchmarks, with everything that a table or a page shows of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Interval = tuple[float, float]

RESAMPLES = 1000
"""Bootstrap samples behind an interval."""
QUANTILE = 1.959964
"""Of the standard normal distribution, at 97.5 %."""


@dataclass(frozen=True)
class Metric:
    """One number of a benchmark.

    Args:
        name: identifier for programs, such as `5_shot`; in the results of a run it is `<benchmark>/<name>`.
        value: number in `unit`.
        deviation: standard deviation of `value` over repeated draws, where there are any.
        unit: such as `%` or `s`; may be empty.
        title: text for people, such as `Low-shot, 5 per class`; default: made of both names.
        is_headline: whether it is among the numbers that open the page; others follow as far as there is room.
        is_lower_better: whether a smaller value is the better one.
        interval: bounds that hold the value of other such images in 95 of 100 cases, see `mean_of`.
        note: a caveat for readers, such as how many images can never be right.
        per_image: float [N], of each test image or query, in the unit of `value`, which is their mean. Where two
            networks have it, their difference is measured image by image, see `interval_of_difference`.

    >>> Metric("top1", 62.5).name
    'top1'
    """

    name: str
    value: float
    deviation: float | None = None
    unit: str = "%"
    title: str = ""
    is_headline: bool = True
    is_lower_better: bool = False
    interval: Interval | None = None
    note: str = ""
    per_image: Tensor | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Findings:
    """All results of a benchmark.

    Args:
        metrics: the numbers, each name once.
        scores: float [N, K] of each class on each test image, the largest of which is predicted; shares that
            add up to 1 where `are_probabilities`. The page draws confusion and reliability from them, and the
            predictions are kept as a Parquet file.
        are_probabilities: see `scores`.
        labels: int64 [N], classes of the test images, of a benchmark that does not get them with features.
        predicted: int64 [N], in place of `scores` where only the best class is known; -1 for none.
        figures: data of further charts, in the types of JSON, by the names that `raysl.report` knows:
            `curves`: {title: {"x": name, "y": name, "lines": {name: [[x, y], ...]}}};
            `retrieved`: {"queries": [index, ...], "found": [[index, ...], ...], "right": [[bool, ...], ...]}, places in
            the test and in the searched split; `per_class`: {title: {class name: number}}.
    """

    metrics: Sequence[Metric]
    scores: Tensor | None = None
    are_probabilities: bool = False
    labels: Tensor | None = None
    predicted: Tensor | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


def metrics_of(measured: "Findings | Sequence[Metric]") -> Sequence[Metric]:
    """Return the metrics."""
    return measured.metrics if isinstance(measured, Findings) else measured


def by_name(metrics: Sequence[Metric]) -> dict[str, Metric]:
    """Return metrics by their names.

    Raises:
        ValueError: if they are something else, or two of one name.

    >>> list(by_name([Metric("top1", 62.5), Metric("top5", 90.0)]))
    ['top1', 'top5']
    """
    if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
        raise ValueError(f"run() gave {metrics!r}; return a list of Metric (raysl.benchmarks.benchmark)")
    named = {metric.name: metric for metric in metrics}
    if len(named) < len(metrics):
        names = [metric.name for metric in metrics]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"run() gave the metric {twice!r} more than once; give each a name of its own")
    return named


def wilson(num_right: int, num: int) -> Interval:
    """Return Wilson's 95 % score interval of a share, in [0, 1].

    Wilson 1927, Probable inference, the law of succession, and statistical inference; recommended by Brown, Cai and
    DasGupta 2001. It has a width at 0 and 1 too, where a bootstrap draws the same value again and again.

    Args:
        num_right: images that are right.
        num: all images, at least one.

    >>> [round(100 * end, 1) for end in wilson(50, 50)]
    [92.9, 100.0]
    """
    square = QUANTILE**2
    middle = (num_right + square / 2) / (num + square)
    reach = QUANTILE / (num + square) * math.sqrt(num_right * (num - num_right) / num + square / 4)
    share = num_right / num
    # rounding must not put a bound on the wrong side of the share
    return min(max(middle - reach, 0.0), share), max(min(middle + reach, 1.0), share)


def bootstrap(values: Tensor, seed: int = 0) -> Interval | None:
    """Return the 2.5th and 97.5th percentile of the mean over 1,000 samples of the values with replacement.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3. The values are those of the test images,
    or of the queries: what is stated is how far the mean would move on other such images, not with another training.

    Args:
        values: [N].

    Returns:
        The bounds; None of fewer than two values, of values that are all the same, or where one is not finite.

    >>> low, high = bootstrap(torch.arange(100.0))
    >>> low < 49.5 < high
    True
    """
    sample = values.detach().cpu().double().numpy()
    if len(sample) < 2 or not np.isfinite(sample).all():
        return None
    random = np.random.default_rng(seed)
    distinct, counts = np.unique(sample, return_counts=True)
    if len(distinct) <= 64:  # few values: how often each is drawn is multinomial, whatever the number of rows
        means = random.multinomial(len(sample), counts / len(sample), RESAMPLES) @ distinct / len(sample)
    else:
        means = np.array([sample[random.integers(0, len(sample), len(sample))].mean() for _ in range(RESAMPLES)])
    return percentiles(means) if len(distinct) > 1 else None


def percentiles(samples: NDArray[np.float64]) -> Interval | None:
    """Return the 2.5th and 97.5th percentile of bootstrap samples; None if they are equal, which says nothing about
    other images."""
    low, high = np.percentile(samples, (2.5, 97.5))
    return (float(low), float(high)) if low < high else None


def mean_of(
    name: str, values: Tensor, *, unit: str = "%", title: str = "", is_headline: bool = True, seed: int = 0
) -> Metric:
    """Return the mean over test images or queries, with its interval.

    A share of images that are right or wrong has Wilson's interval, any other mean that of a bootstrap.

    Args:
        name, unit, title, is_headline: fields of the metric.
        values: [N], bool or number; in percent they are shares in [0, 1], else in the unit.

    >>> mean_of("top1", torch.tensor([1.0, 0.0, 1.0, 1.0])).value
    75.0
    """
    per_image = values.detach().cpu().double() * (100 if unit == "%" else 1)
    value = per_image.mean().item() if len(per_image) else math.nan
    interval: Interval | None
    if unit == "%" and len(per_image) and _are_hits(per_image):
        low, high = wilson(int(per_image.count_nonzero()), len(per_image))
        interval = (100 * low, 100 * high)
    else:
        interval = bootstrap(per_image, seed)
    return Metric(name, value, unit=unit, title=title, is_headline=is_headline, interval=interval, per_image=per_image)


def interval_of_difference(first: Metric, second: Metric) -> Interval | None:
    """Return the 95 % interval of the first metric minus the second, of two networks on the same images.

    Newcombe 1998, Improved confidence intervals for the difference between binomial proportions based on paired data,
    method 10: the distances of both numbers to the ends of their own intervals, added as squares less what the
    correlation of the networks over the images saves. Zou and Donner 2008 show the same for intervals of other kinds.
    The correlation counts as 0, which makes the interval wider, where either has no `per_image`.

    Of numbers without intervals that have deviations over draws, it is that of one draw of each: 1.96 times the root
    of the sum of the squares of both deviations.

    Returns:
        The bounds; None where neither is known of both.

    >>> interval_of_difference(Metric("top1", 60.0, interval=(57.0, 63.0)), Metric("top1", 50.0, interval=(46.0, 54.0)))
    (5.0, 15.0)
    """
    change = first.value - second.value
    if first.interval is not None and second.interval is not None:
        below, above = first.value - first.interval[0], first.interval[1] - first.value
        other_below, other_above = second.value - second.interval[0], second.interval[1] - second.value
        shared = _correlation(first, second)
        # the difference is lowest with the first at its lower end and the second at its upper one
        low = below**2 + other_above**2 - 2 * shared * below * other_above
        high = above**2 + other_below**2 - 2 * shared * above * other_below
    elif first.deviation is not None and second.deviation is not None:
        low = high = QUANTILE**2 * (first.deviation**2 + second.deviation**2)
    else:
        return None
    interval = change - math.sqrt(max(low, 0.0)), change + math.sqrt(max(high, 0.0))
    return interval if math.isfinite(sum(interval)) else None


def _are_hits(values: Tensor) -> bool:
    return bool(((values == 0) | (values == 100)).all())


def _correlation(first: Metric, second: Metric) -> float:
    """Return the correlation of two metrics over images, in [-1, 1]; 0 if it is unknown or one of them is constant.

    That of hits has Newcombe's correction for continuity.
    """
    if first.per_image is None or second.per_image is None or len(first.per_image) != len(second.per_image):
        return 0.0
    pair = torch.stack([first.per_image, second.per_image])  # [2, N]
    deviations = pair.std(dim=1, correction=0)
    if not (deviations > 0).all():
        return 0.0
    shared = (pair - pair.mean(dim=1, keepdim=True)).prod(dim=0).mean().item()
    if shared > 0 and first.unit == second.unit == "%" and _are_hits(pair):
        # Newcombe takes n/2 from ad - bc, which is 1/(2n) of the covariance; hits are 0 or 100 here
        shared = max(shared - 100**2 / (2 * pair.shape[1]), 0.0)
    return float(min(max(shared / deviations.prod().item(), -1.0), 1.0))
