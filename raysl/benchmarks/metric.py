"""What a benchmark finds: numbers, with all that a table or a page needs to show them, and what they were made of."""

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
        name: what programs call it, such as `5_shot`; in the results of a run it is `<benchmark>/<name>`.
        value: in `unit`.
        deviation: standard deviation of `value` over repeated draws, where there are any.
        unit: such as `%` or `s`; may be empty.
        title: what people call it, such as `Low-shot, 5 per class`; default: made of both names.
        is_headline: whether it is among the numbers that open the page; others follow as far as there is room.
        is_lower_better: whether a smaller value is the better one.
        interval: bounds that hold the value of other such images in 95 of 100 cases, see `mean_of`.
        note: what a reader should know about the number, such as how many images can never be right.
        per_image: float [N], what each test image or query got, in the unit of `value`, which is their mean. Where two
            networks have it, their difference is measured image by image, see `interval_of_difference`.
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


def wilson(num_right: int, num: int) -> Interval:
    """Wilson's score interval of a share, at 95 %, in [0, 1].

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
    return min(max(middle - reach, 0.0), share), max(min(middle + reach, 1.0), share)


def bootstrap(values: Tensor, seed: int = 0) -> Interval | None:
    """The 2.5th and 97.5th percentile of the mean of values, over 1,000 samples of them with replacement.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3. The values are those of the test images,
    or of the queries: what is stated is how far the mean would move on other such images, not with another training.

    Args:
        values: [N].
        seed: of the samples.

    Returns:
        The bounds; None of fewer than two values, of values that are all the same, or where one is not finite.
    """
    own = values.detach().cpu().double().numpy()
    if len(own) < 2 or not np.isfinite(own).all():
        return None
    random = np.random.default_rng(seed)
    found, counts = np.unique(own, return_counts=True)
    if len(found) <= 64:  # few values: how often each is drawn is multinomial, whatever the number of rows
        means = random.multinomial(len(own), counts / len(own), RESAMPLES) @ found / len(own)
    else:
        means = np.array([own[random.integers(0, len(own), len(own))].mean() for _ in range(RESAMPLES)])
    return percentiles(means) if len(found) > 1 else None


def percentiles(samples: NDArray[np.float64]) -> Interval | None:
    """The 2.5th and 97.5th percentile of what bootstrap samples gave; None where they are the same, which says nothing
    about other images."""
    low, high = np.percentile(samples, (2.5, 97.5))
    return (float(low), float(high)) if low < high else None


def mean_of(
    name: str, values: Tensor, *, unit: str = "%", title: str = "", is_headline: bool = True, seed: int = 0
) -> Metric:
    """The mean of what each test image, or each query, got, with its interval.

    A share of images that are right or wrong has Wilson's interval, any other mean that of a bootstrap.

    Args:
        name, unit, title, is_headline: of the metric.
        values: [N], bool or number; in percent they are shares in [0, 1], else in the unit.
        seed: of the bootstrap.
    """
    own = values.detach().cpu().double() * (100 if unit == "%" else 1)
    value = own.mean().item() if len(own) else math.nan
    interval: Interval | None
    if unit == "%" and len(own) and _are_hits(own):
        low, high = wilson(int(own.count_nonzero()), len(own))
        interval = (100 * low, 100 * high)
    else:
        interval = bootstrap(own, seed)
    return Metric(name, value, unit=unit, title=title, is_headline=is_headline, interval=interval, per_image=own)


def interval_of_difference(one: Metric, other: Metric) -> Interval | None:
    """The 95 % interval of one network's number minus that of another, measured on the same images.

    Newcombe 1998, Improved confidence intervals for the difference between binomial proportions based on paired data,
    method 10: the distances of both numbers to the ends of their own intervals, added as squares less what the
    correlation of the networks over the images saves. Zou and Donner 2008 show the same for intervals of other kinds.
    The correlation counts as 0, which makes the interval wider, where either has no `per_image`.

    Of numbers without intervals that have deviations over draws, it is that of one draw of each: 1.96 times the root
    of the sum of the squares of both deviations.

    Returns:
        The bounds; None where neither is known of both.
    """
    change = one.value - other.value
    if one.interval is not None and other.interval is not None:
        below, above = one.value - one.interval[0], one.interval[1] - one.value
        other_below, other_above = other.value - other.interval[0], other.interval[1] - other.value
        shared = _correlation(one, other)
        low = below**2 + other_above**2 - 2 * shared * below * other_above
        high = above**2 + other_below**2 - 2 * shared * above * other_below
    elif one.deviation is not None and other.deviation is not None:
        low = high = QUANTILE**2 * (one.deviation**2 + other.deviation**2)
    else:
        return None
    found = change - math.sqrt(max(low, 0.0)), change + math.sqrt(max(high, 0.0))
    return found if math.isfinite(sum(found)) else None


def _are_hits(values: Tensor) -> bool:
    """Whether images got all or nothing, in percent."""
    return bool(((values == 0) | (values == 100)).all())


def _correlation(one: Metric, other: Metric) -> float:
    """Of what two networks got on each image, in [-1, 1]; 0 where it is not known or one of them got the same on all.

    That of hits has Newcombe's correction for continuity.
    """
    if one.per_image is None or other.per_image is None or len(one.per_image) != len(other.per_image):
        return 0.0
    pair = torch.stack([one.per_image, other.per_image])  # [2, N]
    deviations = pair.std(dim=1, correction=0)
    if not (deviations > 0).all():
        return 0.0
    shared = (pair - pair.mean(dim=1, keepdim=True)).prod(dim=0).mean().item()
    if shared > 0 and one.unit == other.unit == "%" and _are_hits(pair):
        shared = max(shared - 100**2 / (2 * pair.shape[1]), 0.0)
    return float(min(max(shared / deviations.prod().item(), -1.0), 1.0))
