"""Scores of depths (Eigen, Puhrsch and Fergus 2014, arXiv 1406.2283)."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from raysl.benchmarks.metric import Metric, mean_of

TITLES = {
    "rmse": ("Depth, RMSE", "m"),
    "abs_rel": ("Depth, absolute relative error", ""),
    "log10": ("Depth, error of log10", ""),
    "delta1": ("Depth within a factor of 1.25", "%"),
    "delta2": ("Depth within 1.25²", "%"),
    "delta3": ("Depth within 1.25³", "%"),
}
NAMES = tuple(TITLES)


def depth_scores(predicted: Tensor, label: Tensor) -> Tensor:
    """Return the scores of an image by NAMES, float64 [6] on the CPU; NaN without a pixel.

    Args:
        predicted: metres, above 0, of the pixels that count [N].
        label: theirs, above 0 [N].

    >>> depth_scores(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]))[3].item()
    0.5
    """
    if not len(label):
        return torch.full((len(NAMES),), math.nan, dtype=torch.float64)
    predicted, label = predicted.double(), label.double()
    factor = torch.maximum(predicted / label, label / predicted)
    scores = [
        (predicted - label).square().mean().sqrt(),
        ((predicted - label).abs() / label).mean(),
        (predicted.log10() - label.log10()).abs().mean(),
        *((factor < 1.25**power).double().mean() for power in (1, 2, 3)),
    ]
    return torch.stack(scores).cpu()


def depth_metrics(scores: Tensor, seed: int = 0) -> list[Metric]:
    """Return the means over images that have a pixel, as the field reports them, with intervals over images.

    Args:
        scores: numbers of each image, see `depth_scores` [N, 6].
    """
    scores = scores[scores.isfinite().all(dim=1)]
    metrics = []
    for (name, (title, unit)), values in zip(TITLES.items(), scores.T, strict=True):
        metric = mean_of(name, values, unit=unit, title=title, is_headline=name == "rmse", seed=seed)
        metrics.append(replace(metric, is_lower_better=unit != "%"))
    return metrics
