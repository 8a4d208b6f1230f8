"""Classifiers of a few labelled images of each class."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch.nn import functional as F

from raysl.benchmarks.benchmark import Labelled, by_name
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.logistic import Logistic
from raysl.benchmarks.low_shot import draw_shots
from raysl.errors import ConfigError
from tests.benchmarks.test_knn import random_set

UNEVEN = Labelled(20, 10, ("cat", "dog"), np.array([16, 4], dtype=np.int64))


@pytest.mark.parametrize("num", [1, 5])
def test_knn_of_few_labels_is_scikit_learns_on_the_same_draws(num: int) -> None:
    train, test = random_set(80, seed=0), random_set(50, seed=1)
    config = KNN.Config(k=(3,), weights="uniform", similarity="euclidean", labels=(1, 5), draws=4)
    found = by_name(KNN(config).run(train, test, 4, seed=7).metrics)
    assert list(found) == KNN.metrics(config, 4)
    expected = []
    for rows in draw_shots(train.labels, 4, 5, 4, seed=7)[:, :, :num].flatten(1):
        neighbours = KNeighborsClassifier(min(3, len(rows))).fit(train.features[rows], train.labels[rows])
        expected.append(100 * neighbours.score(test.features, test.labels))
    metric = found[f"k3/top1_{num}_labels"]
    if num == 5:  # of one label a class equal votes are common, and each has its own order of them
        assert metric.value == pytest.approx(np.mean(expected), abs=4)
    nearest = by_name(KNN(KNN.Config(k=(1,), labels=(num,), draws=4)).run(train, test, 4, seed=7).metrics)
    unit = F.normalize(train.features, dim=1), F.normalize(test.features, dim=1)
    slow = []
    for rows in draw_shots(train.labels, 4, num, 4, seed=7).flatten(1):
        best = (unit[1] @ unit[0][rows].T).argmax(dim=1)
        slow.append(100 * (train.labels[rows][best] == test.labels).double().mean().item())
    own = nearest[f"k1/top1_{num}_labels"]
    assert (own.value, own.deviation) == (pytest.approx(np.mean(slow)), pytest.approx(np.std(slow)))


@pytest.mark.thorough
def test_logistic_of_few_labels_is_scikit_learns_on_the_same_draws() -> None:
    train, test = random_set(80, seed=0), random_set(50, seed=1)
    config = Logistic.Config(labels=(2, 6), draws=3, max_iter=1000, tolerance=1e-7, costs=(1.0,))
    found = by_name(Logistic(config).run(train, test, 4, seed=7).metrics)
    assert list(found) == Logistic.metrics(config, 4)
    unit = F.normalize(train.features, dim=1), F.normalize(test.features, dim=1)
    for num in (2, 6):
        scores = []
        for rows in draw_shots(train.labels, 4, 6, 3, seed=7)[:, :, :num].flatten(1):
            theirs = LogisticRegression(C=400, max_iter=5000, tol=1e-8).fit(unit[0][rows], train.labels[rows])
            scores.append(100 * theirs.score(unit[1], test.labels))
        metric = found[f"top1_{num}_labels"]
        assert (metric.value, metric.deviation) == (pytest.approx(np.mean(scores)), pytest.approx(np.std(scores)))


def test_none_are_asked_for_by_default_and_a_single_draw_has_no_deviation() -> None:
    train, test = random_set(80, seed=0), random_set(50, seed=1)
    assert not [name for name in KNN.metrics(KNN.Config(), 4) if "labels" in name]
    found = by_name(KNN(KNN.Config(labels=(3,), draws=1)).run(train, test, 4, seed=0).metrics)
    assert found["k20/top1_3_labels"].deviation is None


@pytest.mark.parametrize("kind", [KNN, Logistic])
def test_labels_that_a_class_has_no_images_for_are_left_out(kind: type[KNN] | type[Logistic]) -> None:
    config, lines = kind.fit_to(kind.Config(labels=(2, 8)), UNEVEN)
    assert config.labels == (2,)
    assert lines == ["labels=8 needs as many training images of each class, and 'dog' has 4; labels=[2] is measured"]
    with pytest.raises(ConfigError, match="'dog' has 4; set fewer labels"):
        kind.fit_to(kind.Config(labels=(8,)), UNEVEN)


def test_draws_are_random() -> None:
    train, test = random_set(80, seed=0), random_set(50, seed=1)
    metric = by_name(KNN(KNN.Config(labels=(1,), draws=20)).run(train, test, 4, seed=0).metrics)["k20/top1_1_labels"]
    assert metric.deviation is not None
    assert metric.deviation > 1
    assert torch.isfinite(torch.tensor(metric.value))
