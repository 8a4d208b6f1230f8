import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from raysl.benchmarks.average_precision import average_precisions
from raysl.benchmarks.benchmark import FeatureSet, Findings, Labelled, by_name
from raysl.benchmarks.classifiers.logistic_fit import fit_logistic
from raysl.benchmarks.classifiers.scaling import Scaling
from raysl.benchmarks.classifiers.several_labels import draw
from raysl.benchmarks.logistic import Logistic
from raysl.errors import ConfigError


def several(num: int, seed: int, num_ignored: int = 0) -> FeatureSet:
    """Features whose signs decide three labels, noisily."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(num, 6, generator=generator)
    labels = (features[:, :3] + 0.5 * torch.randn(num, 3, generator=generator) > 0.4).long()
    labels[:num_ignored, 0] = -1
    return FeatureSet(features, labels)


def logistic(train: FeatureSet, test: FeatureSet, num_classes: int = 3, **settings: object) -> Findings:
    return Logistic(Logistic.Config(loss="sigmoid", normalize="none", **settings)).run(train, test, num_classes, seed=0)


def of_scikit_learn(rows: FeatureSet, cost: float, index: torch.Tensor, column: int) -> LogisticRegression:
    index = index[rows.labels[index, column] >= 0]
    other = LogisticRegression(C=cost, tol=1e-10, max_iter=5000)
    return other.fit(rows.features[index].double().numpy(), rows.labels[index, column].numpy())


@pytest.mark.thorough
def test_each_class_is_a_binary_regression_of_scikit_learn_without_ignored_images() -> None:
    rows, costs, index = several(80, seed=0, num_ignored=9), (0.01, 1.0, 100.0), torch.arange(4, 80)
    found, is_done = fit_logistic(
        rows.features.double(), rows.labels, index, 3, costs, Scaling("none"), tolerance=1e-9, max_iter=2000
    )
    assert is_done.all()
    for place, cost in enumerate(costs):
        for column in range(3):
            other = of_scikit_learn(rows, cost, index, column)
            np.testing.assert_allclose(found.weight[3 * place + column], other.coef_[0], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(found.bias[3 * place + column], other.intercept_[0], rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_map_is_that_of_scikit_learns_scores() -> None:
    train, test = several(80, seed=0), several(60, seed=1)
    found = logistic(train, test, costs=(0.5,), ap="11point", tolerance=1e-7, max_iter=2000)
    every = torch.arange(80)
    scores = np.stack(
        [of_scikit_learn(train, 0.5, every, column).decision_function(test.features.numpy()) for column in range(3)],
        axis=1,
    )
    expected = average_precisions(scores, test.labels.numpy().astype(np.int8), "11point")
    assert by_name(found.metrics)["map"].value == pytest.approx(100 * expected.mean(), abs=1e-6)


@pytest.mark.thorough
def test_c_is_chosen_on_the_published_validation_images() -> None:
    train, test = several(80, seed=0), several(60, seed=1)
    train.num_validation = 30
    costs = (1e-4, 0.1, 1000.0)
    found = logistic(train, test, costs=costs)
    kept, held = torch.arange(50), torch.arange(50, 80)
    means = []
    for cost in costs:
        scores = [
            of_scikit_learn(train, cost, kept, column).decision_function(train.features[held].numpy())
            for column in range(3)
        ]
        labels = train.labels[held].numpy().astype(np.int8)
        means.append(100 * average_precisions(np.stack(scores, axis=1), labels, "all").mean())
    (curve,) = found.figures["curves"].values()
    assert curve["lines"]["features"] == [pytest.approx(pair, rel=1e-4) for pair in zip(costs, means, strict=True)]


@pytest.mark.thorough
def test_c_of_one_label_an_image_is_chosen_on_published_or_drawn_images_too() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    train = FeatureSet(torch.randn(90, 5, generator=generator) + labels[:, None], labels)
    costs = (1e-4, 10.0)
    for settings, num, kept, held in (
        ({}, 40, torch.arange(50), torch.arange(50, 90)),
        ({"holdout_images": 25}, 0, *draw(90, 25, seed=0)),
    ):
        train.num_validation = num
        found = Logistic(Logistic.Config(normalize="none", costs=costs, **settings)).run(train, train, 3, seed=0)
        shares = [
            100
            * LogisticRegression(C=cost, max_iter=1000)
            .fit(train.features[kept].numpy(), labels[kept])
            .score(train.features[held].numpy(), labels[held])
            for cost in costs
        ]
        (curve,) = found.figures["curves"].values()
        assert curve["lines"]["features"] == [pytest.approx(pair) for pair in zip(costs, shares, strict=True)]


def test_more_held_out_images_than_there_are_are_refused() -> None:
    images = Labelled(100, 10, ("a", "b"), np.array([50, 50]))
    with pytest.raises(ConfigError, match="leaves none to learn from"):
        Logistic.fit_to(Logistic.Config(holdout_images=100), images)


def test_few_labels_of_several_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave it out of loss=sigmoid"):
        Logistic.fit_to(Logistic.Config(loss="sigmoid", labels=(5,)), Labelled(100, 10, ("a", "b"), None, True))
