"""What classifiers say of classes: accuracy and F1 as means over them, and images whose class nobody could learn."""

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


def class_means(labels: Tensor, predicted: Tensor, what: str, suffix: str = "", seed: int = 0) -> list[Metric]:
    """`mean_per_class` and `macro_f1` in percent: means over the classes that the test images have.

    The first is the mean of the share of each class's images that get it (scikit-learn's balanced accuracy), as suites
    of transfer datasets report (Kornblith et al. 2019, arXiv 1805.08974). The second is the mean of the F1 of each
    class over the classes that test images have, as WILDS reports for iWildCam (Koh et al. 2021, arXiv 2012.07421).
    Intervals are those of a bootstrap over test images.

    Args:
        labels: int64 [N].
        predicted: int64 [N]; -1 for none.
        what: begins the titles, such as `Linear probe`.
        suffix: the names end in it.
        seed: of the bootstrap.
    """
    wanted, given = labels.cpu().numpy(), predicted.cpu().numpy()
    num_classes = int(max(wanted.max(), given.max())) + 1
    cells, counts = np.unique(wanted * (num_classes + 1) + given + 1, return_counts=True)  # 0: no class was predicted
    table = _Cells(cells // (num_classes + 1), cells % (num_classes + 1) - 1, num_classes)
    random = np.random.default_rng(seed)
    drawn: list[Floats] = []
    for first in range(0, RESAMPLES, RESAMPLES_AT_ONCE):
        num = min(RESAMPLES_AT_ONCE, RESAMPLES - first)
        drawn += [table.scores(row) for row in random.multinomial(len(wanted), counts / len(wanted), num)]
    samples = np.stack(drawn)  # [R, 2]
    titles = (f"{what}, mean of the classes' accuracies", f"{what}, macro-F1")
    return [
        Metric(f"{name}{suffix}", value, title=title, is_headline=False, interval=percentiles(samples[:, place]))
        for place, (name, value, title) in enumerate(zip(NAMES, table.scores(counts).tolist(), titles, strict=True))
    ]


def unseen(train_labels: Tensor, test_labels: Tensor, num_classes: int) -> str:
    """How many test images are of classes that no training image has, as a sentence; empty where none is.

    Args:
        train_labels, test_labels: int64 [N] and [M].
        num_classes: labels lie in [0, num_classes).
    """
    has_none = torch.bincount(train_labels.cpu(), minlength=num_classes) == 0
    own = test_labels.cpu()
    lost = own[has_none[own]]
    if not len(lost):
        return ""
    num = int(torch.bincount(lost).count_nonzero())
    classes = "a class" if num == 1 else f"{num:,} classes"
    verb = "is" if len(lost) == 1 else "are"
    return (
        f"{len(lost):,} of {len(own):,} test images {verb} of {classes} without a training image and counted as wrong"
    )


def with_note(metrics: list[Metric], note: str) -> list[Metric]:
    """The same numbers with what a reader should know about them."""
    return [replace(metric, note=note) for metric in metrics] if note else metrics


class _Cells:
    """The places (class, predicted class) of a confusion matrix that have images.

    Args:
        wanted, given: [M], of each; -1 for none predicted.
        num_classes: K.
    """

    def __init__(self, wanted: NDArray[np.int64], given: NDArray[np.int64], num_classes: int) -> None:
        self.wanted, self.given, self.num_classes = wanted, given, num_classes
        self.is_right, self.is_given = wanted == given, given >= 0

    def scores(self, counts: NDArray[np.int64]) -> Floats:
        """Mean accuracy and mean F1 of the classes in percent, float64 [2], of the images of each cell [M]."""
        right = self._of_class(self.wanted[self.is_right], counts[self.is_right])
        wanted = self._of_class(self.wanted, counts)
        given = self._of_class(self.given[self.is_given], counts[self.is_given])
        there = wanted > 0
        recall = right[there] / wanted[there]
        f1 = 2 * right[there] / (wanted[there] + given[there])
        return np.array([100 * recall.mean(), 100 * f1.mean()])

    def _of_class(self, classes: NDArray[np.int64], counts: NDArray[np.int64]) -> Floats:
        return np.asarray(np.bincount(classes, weights=counts, minlength=self.num_classes), np.float64)
