"""A number of several seeds: their mean, how far they lie apart, and where the mean of all seeds may lie."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95
"""Of intervals."""


@dataclass(frozen=True)
class Number:
    """What the seeds of a choice of settings have of one metric.

    Args:
        mean: over the seeds.
        n: seeds that have the metric.
        deviation: standard deviation over the seeds (n - 1); None of one.
        interval: at 95 %. Of two seeds or more that of Student's t, which holds the mean over all seeds in 95 of 100
            sweeps where seeds are about normal; of one seed what its benchmark measured, over test images, or None.
    """

    mean: float
    n: int
    deviation: float | None = None
    interval: tuple[float, float] | None = None


def number_of(
    values: Sequence[float],
    measured: tuple[float, float] | None = None,
    ends: tuple[float, float] = (-math.inf, math.inf),
) -> Number:
    """The number of some seeds.

    Args:
        values: one a seed, finite; at least one.
        measured: the interval that a benchmark gave, taken where there is one seed alone.
        ends: of all that the number can be, in which intervals end.
    """
    if len(values) == 1:
        return Number(values[0], 1, None, measured)
    mean, deviation = fmean(values), stdev(values)
    reach = _quantile(len(values) - 1) * deviation / math.sqrt(len(values))
    return Number(mean, len(values), deviation, (max(mean - reach, ends[0]), min(mean + reach, ends[1])))


def _quantile(freedom: int) -> float:
    """Of Student's t: what it is below in 97.5 of 100 cases."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
