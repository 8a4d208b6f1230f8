"""Scores of segmentation by intersection over union (Everingham et al., IJCV 2010, section 4.3)."""

import math

import numpy as np
import torch
from torch import Tensor

from raysl.benchmarks.metric import RESAMPLES, Metric, percentiles


def pixel_counts(predicted: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """Count the right, labelled and predicted pixels of each class in an image, int64 [3, K] on the CPU.

    Args:
        predicted: class of each pixel, an integer in [0, K) [H, W].
        label: class of each pixel, of any integer type [H, W]; pixels of one outside [0, K) are ignored.

    >>> pixel_counts(torch.tensor([[0, 1]]), torch.tensor([[0, 0]]), num_classes=2).tolist()
    [[1, 0], [2, 0], [1, 1]]
    """
    label = label.long()
    is_counted = (label >= 0) & (label < num_classes)
    label, predicted = label[is_counted], predicted.long()[is_counted]
    parts = (label[label == predicted], label, predicted)
    return torch.stack([torch.bincount(part, minlength=num_classes) for part in parts]).cpu()


def class_ious(counts: np.ndarray) -> np.ndarray:
    """Compute the intersection over union of each class over all images, in percent [K]; NaN for a class without
    pixels.

    Args:
        counts: numbers of each image, see `pixel_counts` [N, 3, K].
    """
    return 100 * _ious(counts.sum(axis=0))


def overlap_metrics(counts: np.ndarray, seed: int = 0) -> list[Metric]:
    """Return `miou` over the classes that have pixels, `pixel_accuracy`, and `class_accuracy`, the mean over classes of
    the share of their pixels that is right: in percent, with intervals from a bootstrap over images.

    Args:
        counts: numbers of each image, see `pixel_counts`, float64 [N, 3, K].
    """
    random = np.random.default_rng(seed)
    # how often each bootstrap sample holds each image; one product then sums the counts of all samples
    draws = random.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), RESAMPLES)  # [R, N]
    resampled = _scores(np.einsum("rn,nck->rck", draws, counts, optimize=True))
    titles = {"miou": "Segmentation, mIoU", "pixel_accuracy": "Pixel accuracy", "class_accuracy": "Class accuracy"}
    scores = _scores(counts.sum(axis=0)[None])
    return [
        Metric(
            name,
            float(scores[name][0]),
            title=title,
            is_headline=name == "miou",
            interval=percentiles(resampled[name]) if len(counts) > 1 else None,
        )
        for name, title in titles.items()
    ]


def _scores(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the scores of counts [R, 3, K], each [R] in percent; NaN where no pixel is counted."""
    hits, wanted = counts[:, 0], counts[:, 1]
    return {
        "miou": 100 * _mean(_ious(counts)),
        "pixel_accuracy": 100 * _share(hits.sum(axis=1), wanted.sum(axis=1)),
        "class_accuracy": 100 * _mean(_share(hits, wanted)),
    }


def _ious(counts: np.ndarray) -> np.ndarray:
    hits, wanted, predicted = (counts[..., number, :] for number in range(3))
    return _share(hits, wanted + predicted - hits)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    shares: np.ndarray = np.divide(part, whole, out=np.full(part.shape, math.nan), where=whole > 0)
    return shares


def _mean(values: np.ndarray) -> np.ndarray:
    are_known = ~np.isnan(values)
    return _share(np.where(are_known, values, 0).sum(axis=-1), are_known.sum(axis=-1).astype(float))
