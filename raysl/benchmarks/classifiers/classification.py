"""The split into training and held-out images, and the metrics, of classifiers on frozen features."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysl.benchmarks.benchmark import FEATURES, ConfigError, FeatureSet, Labelled
from raysl.benchmarks.classifiers.by_class import NAMES, class_means, unseen, with_note
from raysl.benchmarks.metric import Findings, Metric, mean_of
from raysl.hashing import Int64s, hash_rows, hash_words

_HOLD_OUT = 101  # part of random keys

Lines = dict[str, list[list[float]]]
"""Points [x, y] of the lines of a chart, by title."""
Classify = Callable[[FeatureSet, Tensor, str], tuple[Tensor, Lines]]
"""From training rows, features [N, D] of others and the name of the stage to scores of the classes [N, K], and the
results of the settings that were tried."""


def num_held_out(counts: Int64s, share: float) -> Int64s:
    """Return the number of held-out images of each class [K] from its number of images [K]; at least one stays."""
    wanted = np.floor(counts * share + 0.5).astype(np.int64)
    return np.asarray(np.clip(wanted, 0, np.maximum(counts - 1, 0)), dtype=np.int64)


def hold_out(labels: Tensor, num_classes: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Places of the images that are trained on and of those that are held out, a share of each class, in order.

    Which ones is a function of seed, place and labels.

    Args:
        labels: int64 [N].
        share: number in (0, 1), rounded to whole images of each class.
    """
    classes = labels.cpu().numpy()
    counts = np.bincount(classes, minlength=num_classes)
    keys = hash_rows(hash_words(_HOLD_OUT, seed), np.arange(len(classes)))
    # sorted by class, and at random inside each class, of which the first images are held out
    order = np.lexsort((keys, classes))
    rank = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)  # inside the class
    is_held = np.zeros(len(classes), dtype=bool)
    is_held[order] = rank < np.repeat(num_held_out(counts, share), counts)
    if not is_held.any():
        raise ConfigError(
            f"holdout={share:g} of {len(classes)} training rows is not one row of any class; set a larger one"
        )
    return torch.from_numpy(np.flatnonzero(~is_held)), torch.from_numpy(np.flatnonzero(is_held))


def check_hold_out(images: Labelled, share: float, name: str, settings: str) -> None:
    """Refuse images where no class has enough to hold one out, as far as the counts are known."""
    if images.counts is not None and not num_held_out(images.counts, share).any():
        raise ConfigError(
            f"holdout={share:g} of {images.num_train:,} training images of {len(images.classes)} classes is not one "
            f"image of any class; set a larger {name}.holdout, or a single one of {name}.{settings}"
        )


def check_sets(train: FeatureSet, test: FeatureSet, num_classes: int) -> None:
    """Refuse sets that a classifier cannot use, see `FeatureSet.check`; further stages are checked too."""
    for split, rows in (("train", train), ("test", test)):
        for stage in (FEATURES, *rows.stages):
            rows.at(stage).check(split if stage == FEATURES else f"{split} {stage}", num_classes)


def suffix_of(stage: str) -> str:
    """Return the suffix of a stage's metrics."""
    return "" if stage == FEATURES else f"_{stage}"


def names_of_tops(stages: Sequence[str], num_classes: int) -> list[str]:
    """Return the names of the metrics that `top_metrics` makes for each stage."""
    tops = ("top1", "top5") if num_classes > 5 else ("top1",)
    return [f"{name}{suffix_of(stage)}" for stage in dict.fromkeys(stages) for name in (*tops, *NAMES)]


def top_metrics(scores: Tensor, labels: Tensor, what: str, stage: str = FEATURES) -> list[Metric]:
    """Return top-1 accuracy, top-5 accuracy where there are more than five classes, and the means over classes, see
    `class_means`.

    Args:
        scores: [N, K].
        labels: int64 [N].
    """
    of_stage = f" of {stage}" if stage else ""
    labels, metrics = labels.to(scores.device), []
    for k in (1, 5) if scores.shape[1] > 5 else (1,):
        name, title = f"top{k}{suffix_of(stage)}", f"{what}{of_stage}, top-{k}"
        hits = top_k_hits(scores, labels, k)
        metrics.append(mean_of(name, hits, title=title, is_headline=k == 1 and stage == FEATURES))
    return [*metrics, *class_means(labels, scores.argmax(dim=1), f"{what}{of_stage}", suffix_of(stage))]


def accuracy_by_class(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the accuracy of each class in percent, by the class's number; classes without test images are left out."""
    labels, num_classes = labels.to(scores.device), scores.shape[1]
    hits = top_k_hits(scores, labels, 1)
    total = torch.bincount(labels, minlength=num_classes).tolist()
    right = torch.bincount(labels[hits], minlength=num_classes).tolist()
    return {str(label): 100 * right[label] / total[label] for label in range(num_classes) if total[label]}


def classify_stages(
    train: FeatureSet, test: FeatureSet, stages: Sequence[str], what: str, axes: tuple[str, str], classify: Classify
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the scores [N, K] of the classes at each stage that the images have, and a chart of the settings that were
    tried on held-out images.

    Args:
        axes: names of the axes of the chart: the setting, and its result.
    """
    scores: dict[str, Tensor] = {}
    lines: Lines = {}
    for stage in dict.fromkeys(stages):
        if stage != FEATURES and stage not in train.stages:
            continue  # raw pixels have no stages
        scores[stage], tried = classify(train.at(stage), test.at(stage).features, stage or "features")
        lines |= tried
    return scores, {"curves": curves(f"{what}: held-out training images", *axes, lines)} if lines else {}


def measure_stages(
    train: FeatureSet,
    test: FeatureSet,
    num_classes: int,
    stages: Sequence[str],
    what: str,
    tried: str,
    classify: Classify,
) -> Findings:
    """Measure a classifier on the features and on further stages, as far as the images have them.

    Args:
        tried: the setting that is chosen on held-out images, such as `learning rate`.
        classify: function from training rows, features [N, D] of test rows and the name of the stage to shares of the
            classes [N, K], and the accuracy with each of the settings that were tried.
    """
    check_sets(train, test, num_classes)
    shares, figures = classify_stages(train, test, stages, what, (tried, "top-1 (%)"), classify)
    metrics = [metric for stage in shares for metric in top_metrics(shares[stage], test.labels, what, stage)]
    by_class = {
        f"{what} of {stage or 'features'}: accuracy (%)": accuracy_by_class(shares[stage], test.labels)
        for stage in shares
    }
    metrics = with_note(metrics, unseen(train.labels, test.labels, num_classes))
    figures = {"per_class": by_class, **figures}
    return Findings(metrics, scores=next(iter(shares.values())), are_probabilities=True, figures=figures)


def curves(title: str, x: str, y: str, lines: Lines) -> dict[str, Any]:
    """Return a chart for `Findings.figures["curves"]`."""
    return {title: {"x": x, "y": y, "lines": lines}}


@torch.no_grad()
def top_k_hits(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return whether a class of each image is among its k highest scores, bool [N].

    Args:
        scores: [N, K].
        labels: int64 [N], or [N, K] of 1 present, 0 absent and -1 ignore. An ignored class takes no place among the k;
            an image without a class (-1, or a row without a 1) counts as a miss.
        k: number of scores, all K where there are fewer.

    >>> top_k_hits(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]), k=1)
    tensor([ True, False])
    """
    if labels.ndim == 2:
        scores = scores.masked_fill(labels < 0, -torch.inf)
    ranked = scores.topk(min(k, scores.shape[1]), dim=1).indices  # [N, k]
    hits = ranked == labels[:, None] if labels.ndim == 1 else labels.gather(1, ranked) == 1
    return hits.any(dim=1)
