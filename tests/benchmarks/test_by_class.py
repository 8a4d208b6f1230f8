"""Means over classes, and test images of classes that no training image has."""

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score
from torch import Tensor

from raysl.benchmarks.benchmark import FeatureSet, Findings, by_name
from raysl.benchmarks.classifiers.classification import class_means, unseen_note
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.linear import Linear
from raysl.benchmarks.logistic import Logistic
from tests.benchmarks.test_knn import random_set


def guesses(num: int, num_classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Classes of unequal sizes, of which about the half is recognised."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, num_classes, num) * random.integers(0, 2, num)
    return torch.from_numpy(labels), torch.from_numpy(
        np.where(random.random(num) < 0.5, labels, random.integers(0, num_classes, num))
    )


@pytest.mark.parametrize("num_classes", [2, 7, 40])
def test_means_over_classes_are_scikit_learns(num_classes: int) -> None:
    labels, predicted = guesses(60, num_classes, seed=num_classes)
    found = by_name(class_means(labels, predicted, "Probe"))
    assert found["mean_per_class"].value == pytest.approx(100 * balanced_accuracy_score(labels, predicted))
    own = np.unique(labels)  # WILDS takes the classes that the test images have
    assert found["macro_f1"].value == pytest.approx(100 * f1_score(labels, predicted, labels=own, average="macro"))


@pytest.mark.thorough
def test_intervals_are_those_of_a_slow_bootstrap() -> None:
    labels, predicted = guesses(300, 5, seed=0)
    random = np.random.default_rng(1)
    slow = []
    for _ in range(1000):
        rows = random.integers(0, 300, 300)
        kinds = np.unique(labels[rows])
        f1 = f1_score(labels[rows], predicted[rows], labels=kinds, average="macro")
        recalls = [(predicted[rows][labels[rows] == kind] == kind).double().mean().item() for kind in kinds]
        slow.append([100 * np.mean(recalls), 100 * f1])
    for place, metric in enumerate(class_means(labels, predicted, "Probe")):
        expected = np.percentile(np.array(slow)[:, place], (2.5, 97.5))
        assert metric.interval == pytest.approx(tuple(expected), abs=0.7)


def without_class(rows: FeatureSet, label: int) -> FeatureSet:
    kept = rows.labels != label
    return FeatureSet(rows.features[kept], rows.labels[kept])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "benchmark",
    [KNN(KNN.Config()), Linear(Linear.Config(min_updates=20)), Logistic(Logistic.Config(max_iter=20))],
    ids=lambda own: own.config.name,
)
def test_images_of_classes_without_training_images_are_told_of(benchmark: KNN | Linear | Logistic) -> None:
    train, test = random_set(200, seed=0), random_set(100, seed=1)
    whole, lacking = (benchmark.run(rows, test, num_classes=4, seed=0) for rows in (train, without_class(train, 2)))
    assert isinstance(lacking, Findings)
    assert {metric.note for metric in whole.metrics} == {""}
    num = int((test.labels == 2).sum())
    note = f"{num} of 100 test images are of a class without a training image and counted as wrong"
    assert {metric.note for metric in lacking.metrics} == {note}
    values = {name.rpartition("/")[2]: metric.value for name, metric in by_name(lacking.metrics).items()}
    assert values["top1"] <= 100 - num
    assert values["mean_per_class"] <= 75


def test_several_classes_without_training_images_are_counted() -> None:
    assert unseen_note(torch.tensor([0, 0]), torch.tensor([0, 1, 3, 3]), 5) == (
        "3 of 4 test images are of 2 classes without a training image and counted as wrong"
    )
    assert unseen_note(torch.tensor([0, 1]), torch.tensor([1, 2]), 3).startswith("1 of 2 test images is of a class")
    assert unseen_note(torch.tensor([0, 1]), torch.tensor([1, 1]), 3) == ""
