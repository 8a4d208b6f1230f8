"""Classifiers of images with several labels each: a score for each class, measured by average precision."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raysl.benchmarks.average_precision import (
    Kind,
    Labels,
    average_precisions,
    map_interval,
    mean_average_precision,
)
from raysl.benchmarks.benchmark import FEATURES, ConfigError, FeatureSet, Metric
from raysl.benchmarks.classifiers.classification import suffix_of
from raysl.benchmarks.classifiers.probes import Probes
from raysl.benchmarks.classifiers.svm_training import one_against_rest
from raysl.hashing import hash_words, permutation

_DRAW = 103  # part of random keys


def binary_labels(rows: FeatureSet, split: str, num_classes: int) -> FeatureSet:
    """Return the same rows with labels [N, K] of 1 present, 0 absent and -1 ignore; one label becomes one 1."""
    rows.check_finite(split)
    labels = torch.from_numpy(one_against_rest(rows, split, num_classes)).to(rows.labels.device)
    return replace(rows, labels=labels)


def draw(num_rows: int, num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return places of the rows that stay, and of `num` that are drawn, each in order.

    >>> stay, drawn = draw(10, 3, seed=0)
    >>> len(stay), len(drawn)
    (7, 3)
    """
    order = permutation(num_rows, hash_words(_DRAW, seed))
    return torch.from_numpy(np.sort(order[num:])), torch.from_numpy(np.sort(order[:num]))


def measure_precision(fitted: Probes, train: FeatureSet, held: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return the mean average precision of each classifier on some rows, float64 [G], and zeros for their losses.

    Args:
        train: rows with labels [N, K].
        held: int64 [M], places of the rows.
    """
    scores = fitted.scores(train.features.index_select(0, held.to(train.features.device))).double().numpy()  # [M, G, K]
    labels = train.labels.cpu().numpy()[held.numpy()]
    means = [mean_average_precision(average_precisions(scores[:, one], labels, kind)) for one in range(scores.shape[1])]
    if np.isnan(means).any():
        raise ConfigError(f"none of the {len(held):,} images that C is chosen on has any class; hold out more")
    # losses that are all 0 make `best_of` choose by the precision alone
    shares = torch.tensor(means, dtype=torch.float64)
    return shares, torch.zeros_like(shares)


def map_metrics(
    scores: Mapping[str, Tensor], labels: Labels, what: str, kind: Kind, classes: Sequence[int] | None = None
) -> tuple[list[Metric], dict[str, dict[str, float]]]:
    """Return the metric `map` of each stage, and charts of the average precision of each class in percent.

    Args:
        scores: [N, K] of each stage.
        labels: [N, K].
        classes: numbers of the K classes; default: from 0 on.
    """
    metrics, by_class = [], {}
    for stage, values in scores.items():
        numbers = values.double().numpy()
        areas = average_precisions(numbers, labels, kind)
        bounds = map_interval(numbers, labels, kind)
        metric = Metric(
            f"map{suffix_of(stage)}",
            100 * mean_average_precision(areas),
            title=f"{what}{f' of {stage}' if stage else ''}, mAP",
            is_headline=stage == FEATURES,
            interval=None if bounds is None else (100 * bounds[0], 100 * bounds[1]),
        )
        metrics.append(metric)
        percents = zip(range(len(areas)) if classes is None else classes, (100 * areas).tolist(), strict=True)
        known = {str(label): percent for label, percent in percents if not np.isnan(percent)}
        by_class[f"{what} of {stage or 'features'}: average precision (%)"] = known
    return metrics, by_class
