"""What classifiers on frozen features share: which images are held out, and what is told of the others."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysl.benchmarks.benchmark import FEATURES, FeatureSet, Labelled
from raysl.benchmarks.classifiers.by_class import NAMES, class_means, unseen, with_note
from raysl.benchmarks.meters import top_k_hits
from raysl.benchmarks.metric import Findings, Metric, mean_of
from raysl.errors import ConfigError
from raysl.hashing import Int64s, hash_rows, hash_words

_HOLD_OUT = 101  # what a key is for

Lines = dict[str, list[list[float]]]
"""Points [x, y] of the lines of a drawing, by what is said of them."""


def num_held_out(counts: Int64s, share: float) -> Int64s:
    """Images of each class that are held out [K], of its number of images [K]; at least one of each stays."""
    wanted = np.floor(counts * share + 0.5).astype(np.int64)
    return np.asarray(np.clip(wanted, 0, np.maximum(counts - 1, 0)), dtype=np.int64)


def hold_out(labels: Tensor, num_classes: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Places of the images that are trained on and of those that are held out, a share of each class, in order.

    Which ones is a function of seed, place and labels.

    Args:
        labels: int64 [N].
        num_classes: labels lie in [0, num_classes).
        share: in (0, 1), rounded to whole images of each class.
        seed: of the choice.

    Raises:
        ConfigError: if none is held out.
    """
    classes = labels.cpu().numpy()
    counts = np.bincount(classes, minlength=num_classes)
    keys = hash_rows(hash_words(_HOLD_OUT, seed), np.arange(len(classes)))
    order = np.lexsort((keys, classes))
    place = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)  # inside the class
    is_held = np.zeros(len(classes), dtype=bool)
    is_held[order] = place < np.repeat(num_held_out(counts, share), counts)
    if not is_held.any():
        raise ConfigError(
            f"holdout={share:g} of {len(classes)} training rows is not one row of any class; set a larger one"
        )
    return torch.from_numpy(np.flatnonzero(~is_held)), torch.from_numpy(np.flatnonzero(is_held))


def check_hold_out(images: Labelled, share: float, name: str, settings: str) -> None:
    """Refuse images of which no class has so many that one is held out, as far as that is known.

    Args:
        images: what is known of them.
        share: of each class.
        name: of the benchmark.
        settings: its field of which a single one needs no choice.

    Raises:
        ConfigError: with the numbers.
    """
    if images.counts is not None and not num_held_out(images.counts, share).any():
        raise ConfigError(
            f"holdout={share:g} of {images.num_train:,} training images of {len(images.classes)} classes is not one "
            f"image of any class; set a larger {name}.holdout, or a single one of {name}.{settings}"
        )


def check_sets(train: FeatureSet, test: FeatureSet, num_classes: int) -> None:
    """Refuse sets that have no meaning for a classifier, see `FeatureSet.check`; further stages are looked at, too.

    Raises:
        ConfigError: see there.
    """
    for split, rows in (("train", train), ("test", test)):
        for stage in (FEATURES, *rows.stages):
            rows.at(stage).check(split if stage == FEATURES else f"{split} {stage}", num_classes)


def stages_in(train: FeatureSet, stages: Iterable[str]) -> list[str]:
    """Those of the stages that these features have; raw pixels have none."""
    return [stage for stage in dict.fromkeys(stages) if stage == FEATURES or stage in train.stages]


def suffix_of(stage: str) -> str:
    """What the names of metrics of a stage end in."""
    return "" if stage == FEATURES else f"_{stage}"


def names_of_tops(stages: Sequence[str], num_classes: int) -> list[str]:
    """Names of the metrics that `top_metrics` makes of each stage."""
    tops = ("top1", "top5") if num_classes > 5 else ("top1",)
    return [f"{name}{suffix_of(stage)}" for stage in dict.fromkeys(stages) for name in (*tops, *NAMES)]


def top_metrics(scores: Tensor, labels: Tensor, what: str, stage: str = FEATURES) -> list[Metric]:
    """Share of the test images whose class is the first, and of more than five classes among the first five; and the
    means over classes, see `class_means`.

    Args:
        scores: [N, K].
        labels: int64 [N].
        what: begins the titles, such as `Linear probe`.
        stage: whose features they are of.
    """
    of_stage = f" of {stage}" if stage else ""
    labels, metrics = labels.to(scores.device), []
    for k in (1, 5) if scores.shape[1] > 5 else (1,):
        name, title = f"top{k}{suffix_of(stage)}", f"{what}{of_stage}, top-{k}"
        hits = top_k_hits(scores, labels, k)
        metrics.append(mean_of(name, hits, title=title, is_headline=k == 1 and stage == FEATURES))
    return [*metrics, *class_means(labels, scores.argmax(dim=1), f"{what}{of_stage}", suffix_of(stage))]


def accuracy_by_class(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Percent of the test images of each class that get it, by the class's number; classes without images are out."""
    labels, num_classes = labels.to(scores.device), scores.shape[1]
    hits = top_k_hits(scores, labels, 1)
    total = torch.bincount(labels, minlength=num_classes).tolist()
    right = torch.bincount(labels[hits], minlength=num_classes).tolist()
    return {str(label): 100 * right[label] / total[label] for label in range(num_classes) if total[label]}


def measure_stages(
    train: FeatureSet,
    test: FeatureSet,
    num_classes: int,
    stages: Sequence[str],
    what: str,
    tried: str,
    classify: Callable[[FeatureSet, Tensor, str], tuple[Tensor, Lines]],
) -> Findings:
    """Accuracies of a classifier on the features and on further stages, as far as these images have them.

    Args:
        train, test: the images.
        num_classes: labels lie in [0, num_classes).
        stages: their names.
        what: begins the titles, such as `Linear probe`.
        tried: what was chosen on held-out images, such as `learning rate`.
        classify: from training rows, features [N, D] of test rows and the name of the stage to shares of the classes
            [N, K], and what each of the things that were tried gave.

    Raises:
        ConfigError: if a feature is not finite, or a label is outside of the classes.
    """
    check_sets(train, test, num_classes)
    metrics: list[Metric] = []
    lines: Lines = {}
    by_class: dict[str, dict[str, float]] = {}
    shares: list[Tensor] = []
    for stage in stages_in(train, stages):
        name = stage or "features"
        found, its_lines = classify(train.at(stage), test.at(stage).features, name)
        shares.append(found)
        lines |= its_lines
        metrics += top_metrics(found, test.labels, what, stage)
        by_class[f"{what} of {name}: accuracy (%)"] = accuracy_by_class(found, test.labels)
    figures: dict[str, Any] = {"per_class": by_class}
    if lines:
        figures["curves"] = curves(f"{what}: held-out training images", tried, "top-1 (%)", lines)
    metrics = with_note(metrics, unseen(train.labels, test.labels, num_classes))
    return Findings(metrics, scores=shares[0], are_probabilities=True, figures=figures)


def curves(title: str, x: str, y: str, lines: Lines) -> dict[str, Any]:
    """A drawing of `Findings.figures["curves"]`."""
    return {title: {"x": x, "y": y, "lines": lines}}
