"""Scores of segmentation against a loop over pixels and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, jaccard_score

from raysl.benchmarks.benchmark import by_name
from raysl.benchmarks.dense.overlap import class_ious, overlap_metrics, pixel_counts


def slow_miou(predicted: list[int], label: list[int], num_classes: int) -> float:
    """Over the classes that are predicted or there, pixel by pixel; labels that are no class do not count."""
    ious = []
    for own in range(num_classes):
        both = either = 0
        for given, wanted in zip(predicted, label, strict=True):
            if 0 <= wanted < num_classes:
                both += given == own and wanted == own
                either += given == own or wanted == own
        if either:
            ious.append(both / either)
    return 100 * sum(ious) / len(ious)


def images(num: int = 5) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    labels = [torch.randint(0, 5, (7, 6 + n), generator=generator).to(torch.uint8) for n in range(num)]
    predicted = [
        torch.where(torch.rand(label.shape, generator=generator) < 0.6, label % 5, 1).long() for label in labels
    ]
    for label in labels:
        label[0] = 255
    return predicted, labels


def counts_of(predicted: list[torch.Tensor], labels: list[torch.Tensor], num_classes: int = 6) -> np.ndarray:
    """Of each image [N, 3, K]."""
    pairs = zip(predicted, labels, strict=True)
    return np.stack([pixel_counts(given, label, num_classes).double().numpy() for given, label in pairs])


def test_scores_are_those_of_a_loop_and_of_scikit_learn() -> None:
    predicted, labels = images()
    counts = counts_of(predicted, labels)
    found = by_name(overlap_metrics(counts))
    given, wanted = torch.cat([p.flatten() for p in predicted]), torch.cat([m.flatten().long() for m in labels])
    assert found["miou"].value == pytest.approx(slow_miou(given.tolist(), wanted.tolist(), 6))
    given, wanted = given[wanted < 6], wanted[wanted < 6]
    assert found["miou"].value == pytest.approx(100 * jaccard_score(wanted, given, average="macro"))
    assert found["pixel_accuracy"].value == pytest.approx(100 * accuracy_score(wanted, given))
    assert found["class_accuracy"].value == pytest.approx(100 * balanced_accuracy_score(wanted, given))
    ious = class_ious(counts)
    assert ious[:5] == pytest.approx(100 * jaccard_score(wanted, given, average=None))
    assert math.isnan(ious[5])


def test_a_perfect_prediction_has_100_and_a_wrong_one_0() -> None:
    _, labels = images()
    right = counts_of([label.long() % 6 for label in labels], labels)
    wrong = counts_of([(label.long() % 5 + 1) % 5 for label in labels], labels)
    assert [metric.value for metric in overlap_metrics(right)] == [100.0] * 3
    assert [metric.value for metric in overlap_metrics(wrong)] == [0.0] * 3


def test_chance_has_the_share_that_chance_has() -> None:
    generator = torch.Generator().manual_seed(0)
    label, given = (torch.randint(0, 4, (300, 300), generator=generator) for _ in range(2))
    found = by_name(overlap_metrics(counts_of([given], [label], 4)))
    assert found["pixel_accuracy"].value == pytest.approx(25, abs=1)
    assert found["miou"].value == pytest.approx(100 / 7, abs=1)  # p^2 of 2p - p^2


def test_intervals_hold_the_value_and_shrink_with_more_images() -> None:
    few, many = (by_name(overlap_metrics(counts_of(*images(num))))["miou"] for num in (5, 80))
    for metric in (few, many):
        assert metric.interval is not None
        assert metric.interval[0] < metric.value < metric.interval[1]
    assert many.interval[1] - many.interval[0] < few.interval[1] - few.interval[0]  # type: ignore[index]
    assert overlap_metrics(counts_of(*images(1)))[0].interval is None


def test_pixels_that_do_not_count_change_nothing() -> None:
    predicted, labels = images()
    changed = [torch.where(label == 255, 3, given) for given, label in zip(predicted, labels, strict=True)]
    assert (counts_of(changed, labels) == counts_of(predicted, labels)).all()
