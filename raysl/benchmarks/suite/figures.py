"""Data for charts of predictions, in the types of JSON: confusion and reliability."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOST_CONFUSED = 50
"""Classes up to which the whole table of confusion is kept."""
NUM_BINS = 15
NUM_PAIRS = 20


def confusion(labels: Tensor, predicted: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Count how often each class was predicted as each other class.

    Args:
        labels, predicted: int64 [N]; rows that were taken for none, -1, are left out.

    Returns:
        `classes` and `counts` [K][K], a row for each true class, of up to 50 classes; `pairs`, the mistakes that are
        made most often, as [true, predicted, count].
    """
    num = len(classes)
    labels, predicted = labels[predicted >= 0], predicted[predicted >= 0]
    counts = torch.bincount(labels * num + predicted, minlength=num * num).view(num, num)
    wrong = counts.clone().fill_diagonal_(0)
    best = wrong.flatten().topk(min(NUM_PAIRS, num * num))
    pairs = [
        [classes[cell // num], classes[cell % num], count]
        for count, cell in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        if count
    ]
    table = {"classes": list(classes), "counts": counts.tolist()} if num <= MOST_CONFUSED else {}
    return {**table, "pairs": pairs}


def reliability(labels: Tensor, probabilities: Tensor) -> dict[str, Any]:
    """Compute the accuracy of predictions at each confidence (Guo et al. 2017, arXiv 1706.04599, section 2).

    Args:
        labels: int64 [N].
        probabilities: [N, K], rows add up to 1.

    Returns:
        `bins`: [mean confidence, share that is right, number of images] of 15 bins of equal width, as far as there are
        images; `ece`: the expected calibration error in percent (equation 3).
    """
    confidence, predicted = probabilities.max(dim=1)
    is_hit = (predicted == labels).double().numpy()
    values = confidence.double().numpy()
    bin_of = np.minimum((values * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    bins, error = [], 0.0
    for number in range(NUM_BINS):
        is_inside = bin_of == number
        if num := int(is_inside.sum()):
            mean, share = float(values[is_inside].mean()), float(is_hit[is_inside].mean())
            bins.append([mean, share, num])
            error += num / len(values) * abs(mean - share)
    return {"bins": bins, "ece": 100 * error}
