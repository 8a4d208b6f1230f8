"""Classifiers trained on a few labelled images of each class, over several random draws."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raysl.benchmarks.benchmark import FeatureSet, Metric
from raysl.benchmarks.low_shot import draw_shots

Classify = Callable[[FeatureSet, Tensor], Tensor]
"""From labelled rows and features [N, D] of others to the classes of these, int64 [N]."""


@torch.no_grad()
def few_label_metrics(
    train: FeatureSet,
    test: FeatureSet,
    num_classes: int,
    labels: Sequence[int],
    draws: int,
    seed: int,
    what: str,
    classify: Classify,
) -> list[Metric]:
    """Return `top1_5_labels` and so on: the mean accuracy over draws of five labelled images of each class, with its
    deviation.

    The draws are those of `low_shot`, nested: the same images for any number of labels, and more.

    Args:
        num_classes: labels lie in [0, num_classes).
        labels: numbers of images of each class; several values are all measured, each once.
        draws: random choices of them.
        what: begins the titles, such as `kNN`.
        classify: learns from some rows.
    """
    if not labels:
        return []
    picks = draw_shots(train.labels, num_classes, max(labels), draws, seed)  # [draws, K, most]
    metrics = []
    for num in dict.fromkeys(labels):
        shares = []
        for rows in picks[:, :, :num].flatten(1):
            few = FeatureSet(train.features[rows.to(train.features.device)], train.labels[rows])
            hits = classify(few, test.features).to(test.labels.device) == test.labels
            shares.append(100 * hits.double().mean())
        accuracy = torch.stack(shares).cpu()
        title = f"{what}, {num} {'label' if num == 1 else 'labels'} per class"
        spread = accuracy.std(correction=0).item() if draws > 1 else None
        metrics.append(Metric(f"top1_{num}_labels", accuracy.mean().item(), spread, title=title, is_headline=False))
    return metrics
