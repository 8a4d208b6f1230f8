"""Means of accuracy and F1 over classes, and a note on test images whose class has no training image."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.benchmarks.metric import RESAMPLES, Metric, percentiles

NAMES = ("mean_per_class", "macro_f1")
RESAMPLES_AT_ONCE = 50
"""Bootstrap samples that are counted at a time; bounds memory, changes no result."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def class_means(labels: Tensor, predicted: Tensor, what: str, suffix: str = "", seed: int = 0) -> list[Metric]:
    """Return `mean_per_class` and `macro_f1` in percent: means over the classes of the test images.

    The first is the mean of the share of each class's images that get it (scikit-learn's balanced accuracy), as suites
    of transfer datasets report (Kornblith et al. 2019, arXiv 1805.08974). The second is the mean of the F1 of each
    class over the classes that test images have, as WILDS reports for iWildCam (Koh et al. 2021, arXiv 2012.07421).
    Intervals are those of a bootstrap over test images.

    Args:
        labels: int64 [N].
        predicted: int64 [N]; -1 for none.
    """
    labels_np, predictions = labels.cpu().numpy(), predicted.cpu().numpy()
    num_classes = int(max(labels_np.max(), predictions.max())) + 1
    # column 0 counts images without a prediction
    cells, counts = np.unique(labels_np * (num_classes + 1) + predictions + 1, return_counts=True)
    wanted, given = cells // (num_classes + 1), cells % (num_classes + 1) - 1
    random = np.random.default_rng(seed)
    drawn: list[Floats] = []
    for first in range(0, RESAMPLES, RESAMPLES_AT_ONCE):
        num = min(RESAMPLES_AT_ONCE, RESAMPLES - first)
        # N images drawn with replacement fall into the cells by a multinomial distribution
        drawn += [
            _scores(wanted, given, row, num_classes)
            for row in random.multinomial(len(labels_np), counts / len(labels_np), num)
        ]
    samples = np.stack(drawn)  # [R, 2]
    values = _scores(wanted, given, counts, num_classes).tolist()
    titles = (f"{what}, mean of the classes' accuracies", f"{what}, macro-F1")
    return [
        Metric(f"{name}{suffix}", value, title=title, is_headline=False, interval=percentiles(samples[:, column]))
        for column, (name, value, title) in enumerate(zip(NAMES, values, titles, strict=True))
    ]


def unseen(train_labels: Tensor, test_labels: Tensor, num_classes: int) -> str:
    """Say how many test images are of classes without a training image; empty where there are none.

    Args:
        train_labels, test_labels: int64 [N] and [M].
    """
    has_none = torch.bincount(train_labels.cpu(), minlength=num_classes) == 0
    labels = test_labels.cpu()
    lost = labels[has_none[labels]]
    if not len(lost):
        return ""
    num = int(torch.bincount(lost).count_nonzero())
    classes = "a class" if num == 1 else f"{num:,} classes"
    verb = "is" if len(lost) == 1 else "are"
    images = f"{len(lost):,} of {len(labels):,} test images {verb}"
    return f"{images} of {classes} without a training image and counted as wrong"


def with_note(metrics: list[Metric], note: str) -> list[Metric]:
    """Return the same metrics with a note."""
    return [replace(metric, note=note) for metric in metrics] if note else metrics


def _scores(wanted: Ints, given: Ints, counts: Ints, num_classes: int) -> Floats:
    """Return the mean accuracy and mean F1 over classes in percent, float64 [2].

    Args:
        wanted, given: class and predicted class of each cell of a confusion matrix [M]; -1 for no prediction.
        counts: images in each cell [M].
    """
    is_right, is_given = wanted == given, given >= 0
    right, all_wanted, predicted = (
        np.bincount(classes, weights=weights, minlength=num_classes)
        for classes, weights in (
            (wanted[is_right], counts[is_right]),
            (wanted, counts),
            (given[is_given], counts[is_given]),
        )
    )
    # a bootstrap sample may lack a class, whose accuracy would be 0 / 0
    is_present = all_wanted > 0
    recall = right[is_present] / all_wanted[is_present]
    # F1 is 2 TP / (2 TP + FP + FN); images of the class and images predicted as it add up to that divisor
    f1 = 2 * right[is_present] / (all_wanted[is_present] + predicted[is_present])
    return np.array([100 * recall.mean(), 100 * f1.mean()])
