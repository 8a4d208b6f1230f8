import logging

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from raysl.benchmarks import class_retrieval
from raysl.benchmarks.benchmark import FeatureSet, Labelled, by_name
from raysl.benchmarks.class_retrieval import average_precision, search_classes
from raysl.benchmarks.retrieval import Retrieval
from raysl.errors import ConfigError
from tests.benchmarks.test_knn import digits, random_set


def measured(train: FeatureSet, test: FeatureSet, num_classes: int = 4, **settings: object) -> dict[str, float]:
    found = Retrieval(Retrieval.Config(**settings)).run(train, test, num_classes, seed=0)
    return {name: metric.value for name, metric in by_name(found.metrics).items()}


def slow_retrieval(train: FeatureSet, test: FeatureSet, is_right: np.ndarray, k: int) -> dict[str, float]:
    """One query after another, by scikit-learn's average precision."""
    precisions, at, any_right = [], [], []
    for feature, right in zip(test.features, is_right, strict=True):
        if not right.any():
            continue
        cosines = torch.cosine_similarity(feature[None], train.features).numpy()
        first = right[np.argsort(-cosines, kind="stable")[:k]]
        precisions.append(100 * average_precision_score(right, cosines))
        at.append(100 * first.mean())
        any_right.append(100 * first.any())
    return {"map": np.mean(precisions), f"precision_at_{k}": np.mean(at), f"recall_at_{k}": np.mean(any_right)}


@pytest.mark.parametrize("k", [1, 5])
def test_it_equals_a_slow_loop(k: int) -> None:
    train, test = random_set(60, seed=0), random_set(30, seed=1)
    is_right = (test.labels[:, None] == train.labels).numpy()
    assert measured(train, test, k=(k,)) == pytest.approx(slow_retrieval(train, test, is_right, k))


def test_equal_scores_have_one_place_as_in_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        scores, is_right = generator.integers(0, 5, 20) / 4, generator.random(20) < 0.3
        if is_right.any():
            found = average_precision(torch.from_numpy(scores), torch.from_numpy(is_right)).item()
            assert found == pytest.approx(average_precision_score(is_right, scores))
    assert average_precision(torch.ones(3), torch.zeros(3).bool()) == 0


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = random_set(60, seed=0), random_set(30, seed=1)
    whole = measured(train, test)
    monkeypatch.setattr(class_retrieval, "SCORES_AT_ONCE", 200)
    monkeypatch.setattr(class_retrieval, "CHUNK_ROWS", 7)
    assert measured(train, test) == pytest.approx(whole)


def classes_apart(num: int) -> FeatureSet:
    labels = torch.arange(num) % 4
    return FeatureSet(torch.eye(4)[labels], labels)


def test_perfect_features_give_everything() -> None:
    assert set(measured(classes_apart(48), classes_apart(20)).values()) == {100.0}


@pytest.mark.thorough
def test_features_without_a_relation_to_labels_give_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    train, test = (FeatureSet(torch.randn(1000, 16, generator=generator), torch.arange(1000) % 4) for _ in range(2))
    found = measured(train, test)
    assert found["map"] == pytest.approx(25, abs=1)
    assert found["precision_at_1"] == pytest.approx(25, abs=4)
    assert found["recall_at_10"] == pytest.approx(100 * (1 - 0.75**10), abs=3)


def test_collapsed_features_give_chance_whatever_the_order() -> None:
    labels = torch.arange(40).sort().values % 4
    same = FeatureSet(torch.ones(40, 3), labels.sort().values)
    assert measured(same, same)["map"] == pytest.approx(25)


def several(num: int, seed: int) -> FeatureSet:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 2, (num, 3), generator=generator)
    return FeatureSet(torch.randn(num, 5, generator=generator) + labels.sum(dim=1, keepdim=True), labels)


def test_any_class_that_is_shared_counts_and_what_is_to_be_ignored_is_none() -> None:
    train, test = several(40, 0), several(20, 1)
    is_right = np.array([[bool(((a == 1) & (b == 1)).any()) for b in train.labels] for a in test.labels])
    assert not is_right.any(axis=1).all()  # some queries have nothing to find
    assert measured(train, test, 3, k=(5,)) == pytest.approx(slow_retrieval(train, test, is_right, 5))


def test_queries_with_nothing_to_find_are_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    train, test = classes_apart(48), classes_apart(20)
    without = FeatureSet(train.features[train.labels > 0], train.labels[train.labels > 0])
    with caplog.at_level(logging.WARNING, logger="raysl"):
        assert measured(without, test)["map"] == 100
    assert "5 of 20 queries have nothing to find, left out" in caplog.text
    nothing = FeatureSet(test.features[:5], torch.zeros(5, dtype=torch.int64))
    with pytest.raises(ValueError, match="none of 5 test images shares a class with a training image"):
        measured(without, nothing)


def test_the_page_gets_queries_with_what_they_found() -> None:
    train, test = digits()
    found = Retrieval(Retrieval.Config(k=(1, 20))).run(train, test, 10, seed=0)
    shown = found.figures["retrieved"]
    assert len(shown["queries"]) == 8
    assert all(len(row) == 10 for row in shown["found"])
    for query, row, right in zip(shown["queries"], shown["found"], shown["right"], strict=True):
        assert right == [bool(train.labels[place] == test.labels[query]) for place in row]
        cosines = torch.cosine_similarity(test.features[query][None], train.features)
        assert cosines[row[0]] == cosines.max()


def test_fewer_queries_are_an_even_share() -> None:
    train, test = random_set(60, seed=0), random_set(30, seed=1)
    rows = torch.tensor([0, 10, 20])
    few = FeatureSet(test.features[rows], test.labels[rows])
    assert measured(train, test, queries=3) == pytest.approx(measured(train, few))
    assert torch.equal(search_classes(train, test, rows, 5).queries, rows)


def test_each_number_has_an_interval_and_its_name_was_told() -> None:
    train, test = random_set(60, seed=0), random_set(30, seed=1)
    config = Retrieval.Config(k=(1, 5, 1))
    metrics = by_name(Retrieval(config).run(train, test, 4, seed=0).metrics)
    assert list(metrics) == Retrieval.metrics(config, 4)
    assert all(metric.interval is not None for metric in metrics.values())
    assert [name for name, metric in metrics.items() if metric.is_headline] == ["map"]


def test_lists_longer_than_the_training_images_are_left_out() -> None:
    images = Labelled(num_train=4, num_test=20, classes=tuple("ab"), counts=None)
    config, lines = Retrieval.fit_to(Retrieval.Config(), images)
    assert config.k == (1,)
    assert lines == ["k=5, 10 is more than the 4 training images; k=[1] is measured"]
    with pytest.raises(ConfigError, match="k=10 is more than the 4 training images; set a smaller k"):
        Retrieval.fit_to(Retrieval.Config(k=(10,)), images)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(bad: float) -> None:
    train = several(40, 0)
    broken: Tensor = train.features.clone()
    broken[3, 2] = bad
    with pytest.raises(ConfigError, match="1 of 40 train rows have features that are not finite"):
        measured(FeatureSet(broken, train.labels), train, 3)
