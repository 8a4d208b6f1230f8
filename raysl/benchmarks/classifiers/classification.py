"""Shared parts of classifiers: the split into training and held-out images, accuracies, and means over classes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.benchmarks.benchmark import FEATURES, ConfigError, FeatureSet, Labelled
from raysl.benchmarks.metric import RESAMPLES, Findings, Metric, mean_of, percentiles
from raysl.hashing import Int64s, hash_rows, hash_words

CLASS_MEANS = ("mean_per_class", "macro_f1")
RESAMPLES_AT_ONCE = 50
"""Bootstrap samples that are counted at a time; bounds memory, changes no result."""

Floats = NDArray[np.float64]

_HOLD_OUT = 101  # part of the random keys, so that they differ from those of other purposes

Lines = dict[str, list[list[float]]]
"""Points [x, y] of the lines of a chart, by title."""
Classify = Callable[[FeatureSet, Tensor, str], tuple[Tensor, Lines]]
"""Function of training rows, features [N, D] of other rows and the name of the stage. It returns scores of the classes
[N, K] for the other rows, and the results of the settings that it has tried."""


def num_held_out(counts: Int64s, share: float) -> Int64s:
    """Return the number of images [K] to hold out of each class of `counts` images; at least one image is kept."""
    wanted = np.floor(counts * share + 0.5).astype(np.int64)
    return np.asarray(np.clip(wanted, 0, np.maximum(counts - 1, 0)), dtype=np.int64)


def hold_out(labels: Tensor, num_classes: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the ascending indices of the images to train on, and of those to hold out, a share of each class.

    The choice is a function of seed, index and labels.

    Args:
        labels: int64 [N].
        share: share of each class to hold out, in (0, 1), rounded to whole images.
    """
    classes = labels.cpu().numpy()
    counts = np.bincount(classes, minlength=num_classes)
    keys = hash_rows(hash_words(_HOLD_OUT, seed), np.arange(len(classes)))
    # sorted by class, in random order inside each class; the first images of each class are held out
    order = np.lexsort((keys, classes))
    rank = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)  # index inside the class
    is_held = np.zeros(len(classes), dtype=bool)
    is_held[order] = rank < np.repeat(num_held_out(counts, share), counts)
    if not is_held.any():
        raise ConfigError(f"holdout={share:g} holds out none of the {len(classes)} training rows; set a larger holdout")
    return torch.from_numpy(np.flatnonzero(~is_held)), torch.from_numpy(np.flatnonzero(is_held))


def check_hold_out(images: Labelled, share: float, name: str, settings: str) -> None:
    """Refuse a share that holds out no image of any class, if the counts are known."""
    if images.counts is not None and not num_held_out(images.counts, share).any():
        raise ConfigError(
            f"holdout={share:g} holds out none of the {images.num_train:,} training images of {len(images.classes)} "
            f"classes; set a larger {name}.holdout, or a single value of {name}.{settings}"
        )


def check_sets(train: FeatureSet, test: FeatureSet, num_classes: int) -> None:
    """Refuse features and labels that a classifier cannot use, at any stage; see `FeatureSet.check`."""
    for split, rows in (("train", train), ("test", test)):
        for stage in (FEATURES, *rows.stages):
            rows.at(stage).check(split if stage == FEATURES else f"{split} {stage}", num_classes)


def suffix_of(stage: str) -> str:
    """Return the suffix of a stage's metrics."""
    return "" if stage == FEATURES else f"_{stage}"


def top_names(stages: Sequence[str], num_classes: int) -> list[str]:
    """Return the names of the metrics that `top_metrics` makes for each stage."""
    tops = ("top1", "top5") if num_classes > 5 else ("top1",)
    return [f"{name}{suffix_of(stage)}" for stage in dict.fromkeys(stages) for name in (*tops, *CLASS_MEANS)]


def top_metrics(scores: Tensor, labels: Tensor, what: str, stage: str = FEATURES) -> list[Metric]:
    """Return top-1 accuracy, top-5 accuracy if there are more than five classes, and the means of `class_means`.

    Args:
        scores: [N, K].
        labels: int64 [N].
        what: name of the classifier, for the titles.
    """
    of_stage = f" of {stage}" if stage else ""
    labels, metrics = labels.to(scores.device), []
    for k in (1, 5) if scores.shape[1] > 5 else (1,):
        name, title = f"top{k}{suffix_of(stage)}", f"{what}{of_stage}, top-{k}"
        hits = top_k_hits(scores, labels, k)
        metrics.append(mean_of(name, hits, title=title, is_headline=k == 1 and stage == FEATURES))
    return [*metrics, *class_means(labels, scores.argmax(dim=1), f"{what}{of_stage}", suffix_of(stage))]


def accuracy_by_class(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the accuracy of each class in percent, by its number; classes without test images are left out."""
    labels, num_classes = labels.to(scores.device), scores.shape[1]
    hits = top_k_hits(scores, labels, 1)
    total = torch.bincount(labels, minlength=num_classes).tolist()
    right = torch.bincount(labels[hits], minlength=num_classes).tolist()
    return {str(label): 100 * right[label] / total[label] for label in range(num_classes) if total[label]}


def classify_stages(
    train: FeatureSet, test: FeatureSet, stages: Sequence[str], what: str, axes: tuple[str, str], classify: Classify
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the scores [N, K] at each existing stage, and a chart of the settings tried on held-out images.

    Args:
        what: name of the classifier, for titles.
        axes: titles of the axes of the chart: the setting, and its result.
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
    """Measure a classifier on the features and on further stages; raw pixels have no stages.

    Args:
        what: name of the classifier, for titles.
        tried: setting that is chosen on held-out images, such as `learning rate`.
        classify: classifier whose scores are probabilities and whose results are accuracies, see `Classify`.
    """
    check_sets(train, test, num_classes)
    shares, figures = classify_stages(train, test, stages, what, (tried, "top-1 (%)"), classify)
    metrics = [metric for stage in shares for metric in top_metrics(shares[stage], test.labels, what, stage)]
    by_class = {
        f"{what} of {stage or 'features'}: accuracy (%)": accuracy_by_class(shares[stage], test.labels)
        for stage in shares
    }
    metrics = with_note(metrics, unseen_note(train.labels, test.labels, num_classes))
    figures = {"per_class": by_class, **figures}
    return Findings(metrics, scores=next(iter(shares.values())), are_probabilities=True, figures=figures)


def curves(title: str, x: str, y: str, lines: Lines) -> dict[str, Any]:
    """Return a chart for `Findings.figures["curves"]`."""
    return {title: {"x": x, "y": y, "lines": lines}}


@torch.no_grad()
def top_k_hits(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return for each image whether one of its classes is among the k highest scores, bool [N].

    Args:
        scores: [N, K].
        labels: int64 [N], or [N, K] of 1 present, 0 absent and -1 ignore. Ignored classes are never among the k; an
            image without a class (-1, or a row without a 1) counts as a miss.
        k: number of highest scores, at most K.

    >>> top_k_hits(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]), k=1)
    tensor([ True, False])
    """
    if labels.ndim == 2:
        scores = scores.masked_fill(labels < 0, -torch.inf)
    ranked = scores.topk(min(k, scores.shape[1]), dim=1).indices  # [N, k]
    hits = ranked == labels[:, None] if labels.ndim == 1 else labels.gather(1, ranked) == 1
    return hits.any(dim=1)


def class_means(labels: Tensor, predicted: Tensor, what: str, suffix: str = "", seed: int = 0) -> list[Metric]:
    """Return `mean_per_class` and `macro_f1` in percent: means over the classes of the test images.

    `mean_per_class` is the mean accuracy of the classes (scikit-learn's balanced accuracy), as suites of transfer
    datasets report it (Kornblith et al. 2019, arXiv 1805.08974). `macro_f1` is the mean of the classes' F1, as WILDS
    reports it for iWildCam (Koh et al. 2021, arXiv 2012.07421). Both have intervals of a bootstrap over test images.

    Args:
        labels: int64 [N].
        predicted: int64 [N]; -1 for none.
    """
    labels_np, predictions = labels.cpu().numpy(), predicted.cpu().numpy()
    num_classes = int(max(labels_np.max(), predictions.max())) + 1
    # column 0 counts images without a prediction
    cells, counts = np.unique(labels_np * (num_classes + 1) + predictions + 1, return_counts=True)
    cell_labels, cell_predictions = cells // (num_classes + 1), cells % (num_classes + 1) - 1
    random = np.random.default_rng(seed)
    drawn: list[Floats] = []
    for first in range(0, RESAMPLES, RESAMPLES_AT_ONCE):
        num = min(RESAMPLES_AT_ONCE, RESAMPLES - first)
        # N images drawn with replacement are distributed over the cells by a multinomial distribution
        drawn += [
            _scores(cell_labels, cell_predictions, row, num_classes)
            for row in random.multinomial(len(labels_np), counts / len(labels_np), num)
        ]
    samples = np.stack(drawn)  # [R, 2]
    values = _scores(cell_labels, cell_predictions, counts, num_classes).tolist()
    titles = (f"{what}, mean of the classes' accuracies", f"{what}, macro-F1")
    return [
        Metric(f"{name}{suffix}", value, title=title, is_headline=False, interval=percentiles(samples[:, column]))
        for column, (name, value, title) in enumerate(zip(CLASS_MEANS, values, titles, strict=True))
    ]


def unseen_note(train_labels: Tensor, test_labels: Tensor, num_classes: int) -> str:
    """Return a note on test images whose classes have no training image; empty if there are none.

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


def _scores(labels: Int64s, predictions: Int64s, counts: Int64s, num_classes: int) -> Floats:
    """Return the mean accuracy and mean F1 over classes in percent, float64 [2].

    Args:
        labels, predictions: class and predicted class of each cell of a confusion matrix [M]; -1 for no prediction.
        counts: number of images in each cell [M].
    """
    is_right, is_predicted = labels == predictions, predictions >= 0
    right, labelled, predicted = (
        np.bincount(classes, weights=weights, minlength=num_classes)
        for classes, weights in (
            (labels[is_right], counts[is_right]),
            (labels, counts),
            (predictions[is_predicted], counts[is_predicted]),
        )
    )
    # a bootstrap sample may lack a class, whose accuracy would be 0 / 0
    is_present = labelled > 0
    recall = right[is_present] / labelled[is_present]
    # F1 = 2 TP / (2 TP + FP + FN); the divisor is the images of the class plus the images predicted as that class
    f1 = 2 * right[is_present] / (labelled[is_present] + predicted[is_present])
    return np.array([100 * recall.mean(), 100 * f1.mean()])
