"""How well pixels are named: intersection over union (Everingham et al., IJCV 2010, section 4.3)."""

import math

import numpy as np
import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.benchmarks.metric import RESAMPLES, Metric, percentiles


class Overlap:
    """Counts of pixels, image by image.

    Args:
        num_classes: K; pixels of a label outside [0, K) do not count.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.rows: list[Tensor] = []

    def add(self, predicted: Tensor, label: Tensor) -> None:
        """Count an image.

        Args:
            predicted: class of each pixel, an integer in [0, K) [H, W].
            label: of each pixel, of any integer type [H, W].
        """
        wanted = label.long()
        counts = (wanted >= 0) & (wanted < self.num_classes)
        wanted, given = wanted[counts], predicted.long()[counts]
        hits = _count(wanted[wanted == given], self.num_classes)
        self.rows.append(torch.stack([hits, _count(wanted, self.num_classes), _count(given, self.num_classes)]).cpu())

    def gather(self) -> None:
        """Have the images that all ranks counted, those of the first rank first; every rank calls it."""
        self.rows = [row for rows in dist.gather_objects(self.rows) for row in rows]

    @property
    def counts(self) -> np.ndarray:
        """Pixels of each class in each image that are right, that are of it, and that are said to be: [N, 3, K]."""
        return torch.stack(self.rows).double().numpy()

    def ious(self) -> np.ndarray:
        """Intersection over union of each class over all images, in percent [K]; NaN of one that is nowhere."""
        return 100 * _ious(self.counts.sum(axis=0))

    def metrics(self, seed: int = 0) -> list[Metric]:
        """`miou`, over the classes that are somewhere; `pixel_accuracy`; `class_accuracy`, the mean over classes of the
        share of their pixels that is right. In percent, with intervals from a bootstrap over images."""
        counts = self.counts
        random = np.random.default_rng(seed)
        draws = random.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), RESAMPLES)  # [R, N]
        resampled = np.einsum("rn,nck->rck", draws, counts, optimize=True)
        titles = {"miou": "Segmentation, mIoU", "pixel_accuracy": "Pixel accuracy", "class_accuracy": "Class accuracy"}
        own = _scores(counts.sum(axis=0)[None])
        again = _scores(resampled)
        return [
            Metric(
                name,
                float(own[name][0]),
                title=title,
                is_headline=name == "miou",
                interval=percentiles(again[name]) if len(counts) > 1 else None,
            )
            for name, title in titles.items()
        ]


def _scores(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Of counts [R, 3, K], each [R] in percent; NaN where no pixel counts."""
    hits, wanted = counts[:, 0], counts[:, 1]
    return {
        "miou": 100 * _mean(_ious(counts)),
        "pixel_accuracy": 100 * _share(hits.sum(axis=1), wanted.sum(axis=1)),
        "class_accuracy": 100 * _mean(_share(hits, wanted)),
    }


def _ious(counts: np.ndarray) -> np.ndarray:
    hits, wanted, given = (counts[..., number, :] for number in range(3))
    return _share(hits, wanted + given - hits)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    shares: np.ndarray = np.divide(part, whole, out=np.full(part.shape, math.nan), where=whole > 0)
    return shares


def _mean(values: np.ndarray) -> np.ndarray:
    """Over the last dimension, of those that are numbers."""
    are_there = ~np.isnan(values)
    return _share(np.where(are_there, values, 0).sum(axis=-1), are_there.sum(axis=-1).astype(float))


def _count(classes: Tensor, num_classes: int) -> Tensor:
    return torch.bincount(classes, minlength=num_classes)
