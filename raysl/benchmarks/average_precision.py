"""Average precision of a class's scores by the rules of PASCAL VOC, with labels to ignore.

Everingham et al. 2010, The PASCAL Visual Object Classes (VOC) Challenge, section 4.2: of 2007, the mean of the
precision at eleven recalls; since 2010, the area under the curve of precision over recall. Both make the curve fall:
the precision at a recall is the largest at any recall that is not less. scikit-learn's `average_precision_score` does
not, and is never larger. Images of equal score count as found together: the order of the rows does not matter.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from raysl.benchmarks.metric import RESAMPLES, percentiles

Kind = Literal["all", "11point"]
"""`all`: area under the falling curve, of VOC since 2010 and VISSL; `11point`: of VOC 2007."""
Numbers = NDArray[np.float64]
Labels = NDArray[np.int8]
MOST_VALUES = 1 << 20
"""Scores up to which an interval is made; 1,000 samples of more take minutes."""
RESAMPLES_AT_ONCE = 50


def average_precision(scores: Numbers, labels: Labels, kind: Kind = "all") -> float:
    """Compute the average precision of a class, in [0, 1]; NaN if no image has it, or each does.

    Args:
        scores: [N], larger is likelier.
        labels: [N] of 1 present, 0 absent, and -1 for images that do not count.

    >>> average_precision(np.array([0.9, 0.8, 0.1]), np.array([1, 1, 0]), "all")
    1.0
    """
    counted = labels >= 0
    order, ends = _ranked(scores[counted])
    is_present = labels[counted][order] == 1
    return float(_area(np.cumsum(is_present)[ends], ends + 1, kind))


def average_precisions(scores: Numbers, labels: Labels, kind: Kind = "all") -> Numbers:
    """Compute the average precision of each class [K] from scores and labels [N, K]; see `average_precision`."""
    columns = range(labels.shape[1])
    return np.array([average_precision(scores[:, column], labels[:, column], kind) for column in columns])


def map_interval(scores: Numbers, labels: Labels, kind: Kind = "all", seed: int = 0) -> tuple[float, float] | None:
    """Return the 2.5th and 97.5th percentile of the mean average precision over 1,000 samples of the images with
    replacement.

    Classes that no image of a sample has, or each, are left out of its mean, and samples without any class are left
    out, too. See `raysl.benchmarks.metric.bootstrap`.

    Args:
        scores, labels: [N, K].

    Returns:
        The bounds, in [0, 1]; None where there are more than a million scores, fewer than two images or no class that
        some have and others lack, or where all samples give the same.
    """
    num_rows, num_classes = labels.shape
    has_both = (labels == 1).any(axis=0) & (labels == 0).any(axis=0)
    if num_rows < 2 or labels.size > MOST_VALUES or not has_both.any():
        return None
    random = np.random.default_rng(seed)
    means = []
    for _ in range(RESAMPLES // RESAMPLES_AT_ONCE):
        drawn = random.integers(0, num_rows, (RESAMPLES_AT_ONCE, num_rows))
        # a sample is kept as its number of copies of each image, so scores are sorted once for 50 samples
        times = np.stack([np.bincount(rows, minlength=num_rows) for rows in drawn])  # [R, N]
        areas = [_resampled(scores[:, column], labels[:, column], times, kind) for column in range(num_classes)]
        means.append(_mean_of_known(np.stack(areas)))
    known = np.concatenate(means)
    return percentiles(known[~np.isnan(known)])


def mean_average_precision(areas: Numbers) -> float:
    """Average over the classes that some images have and others lack, which are not NaN; NaN if there are none."""
    return float(_mean_of_known(areas[:, None])[0])


def _mean_of_known(areas: Numbers) -> Numbers:
    """Return means over classes [R] of [K, R], without NaNs."""
    is_known = ~np.isnan(areas)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(is_known, areas, 0).sum(axis=0) / is_known.sum(axis=0))


def _resampled(scores: Numbers, labels: Labels, times: NDArray[np.int64], kind: Kind) -> Numbers:
    """Compute the average precision of a class [R] in samples with the given number of copies of each image [R, N]."""
    counted = labels >= 0
    order, ends = _ranked(scores[counted])
    drawn = times[:, counted][:, order]
    num_right = np.cumsum(drawn * (labels[counted][order] == 1), axis=1)[:, ends]
    return _area(num_right, np.cumsum(drawn, axis=1)[:, ends], kind)


def _ranked(scores: Numbers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of falling scores, and the ranks [T] at which runs of equal scores end."""
    order = np.argsort(-scores, kind="stable")
    is_last = np.append(np.diff(scores[order]) != 0, True) if len(order) else np.zeros(0, dtype=bool)
    return order, np.flatnonzero(is_last)


def _area(num_right: NDArray[np.int64], taken: NDArray[np.int64], kind: Kind) -> Numbers:
    """Compute the average precision [...] from the number of images at each threshold [..., T], and of those with the
    class."""
    if not num_right.shape[-1]:
        return np.full(num_right.shape[:-1], np.nan)
    total = num_right[..., -1:]
    # a sample may hold none of the images that score highest, so nothing is taken at a threshold
    precision = num_right / np.maximum(taken, 1)
    falling = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    if kind == "all":
        gained = np.diff(num_right, axis=-1, prepend=0)
        area = (gained * falling).sum(axis=-1) / np.maximum(total[..., 0], 1)
    else:
        at = [np.where(10 * num_right >= tenth * total, precision, 0).max(axis=-1) for tenth in range(11)]
        area = np.mean(at, axis=0)
    is_defined = (total[..., 0] > 0) & (total[..., 0] < taken[..., -1])
    return np.where(is_defined, area, np.nan)
