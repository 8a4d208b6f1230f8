"""Scores of masks: intersection over union (Everingham et al., IJCV 2010, section 4.3), and accuracy of contours.

Region similarity J and contour accuracy F are those of Perazzi et al., CVPR 2016, section 5.1, with the numbers and the
treatment of borders of the repository davis2017-evaluation: masks without a pixel have J of 1, contours lie half a
pixel towards the origin, and points of two contours match within 0.8 % of the diagonal.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt
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


BOUND = 0.008
"""Largest distance of points that match, as a share of the diagonal, rounded up to whole pixels."""

Mask = NDArray[np.bool_]


def region_similarity(predicted: Mask, label: Mask) -> float:
    """Return the intersection over union of two masks [H, W], in [0, 1]; 1 where both are empty.

    >>> region_similarity(np.array([[True, True]]), np.array([[True, False]]))
    0.5
    """
    union = int((predicted | label).sum())
    return int((predicted & label).sum()) / union if union else 1.0


def contour_accuracy(predicted: Mask, label: Mask) -> float:
    """Return the F-measure of the contours of two masks [H, W], in [0, 1]: the harmonic mean of the share of predicted
    points that lie near the other contour and the share of labelled points that do.

    >>> square = np.zeros((20, 20), bool)
    >>> square[5:15, 5:15] = True
    >>> contour_accuracy(square, square)
    1.0
    """
    bound = math.ceil(BOUND * math.hypot(*label.shape))
    drawn, wanted = contour(predicted), contour(label)
    if not drawn.any() or not wanted.any():
        # one of precision and recall is 0, unless both are empty
        return float(drawn.any() == wanted.any())
    # all points lie in this rectangle: distances stay the same, and fewer pixels need one
    around = _around(drawn | wanted)
    drawn, wanted = drawn[around], wanted[around]
    precision, recall = _share_near(drawn, wanted, bound), _share_near(wanted, drawn, bound)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def contour(mask: Mask) -> Mask:
    """Return the pixels that differ from the one on the right, below, or both [H, W]; beyond the image a mask goes on
    as at its border.

    >>> contour(np.array([[False, True, True]]))
    array([[ True, False, False]])
    """
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    differs: Mask = (mask != padded[:-1, 1:]) | (mask != padded[1:, :-1]) | (mask != padded[1:, 1:])
    return differs


def _share_near(points: Mask, others: Mask, bound: int) -> float:
    """Return the share of points that have another one within a distance in pixels."""
    is_near = distance_transform_edt(~others) <= bound
    return int((points & is_near).sum()) / int(points.sum())


def _around(points: Mask) -> tuple[slice, slice]:
    """Return the rows and columns of the smallest rectangle with all points."""
    rows, columns = np.flatnonzero(points.any(axis=1)), np.flatnonzero(points.any(axis=0))
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
