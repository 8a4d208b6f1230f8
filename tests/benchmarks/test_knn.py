import logging
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from raysl.benchmarks.benchmark import FeatureSet, Metric, by_name
from raysl.benchmarks.knn import KNN, knn_predict
from raysl.benchmarks.neighbours import Backend, Similarity, nearest_rows
from raysl.config.build import build_node
from raysl.errors import ConfigError


def random_set(num: int, seed: int, num_classes: int = 4) -> FeatureSet:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (num,), generator=generator)
    return FeatureSet(torch.randn(num, 6, generator=generator) + 0.5 * labels[:, None], labels)


def digits() -> tuple[FeatureSet, FeatureSet]:
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.2, stratify=labels, random_state=0)
    features, held_out, labels, held_out_labels = (torch.from_numpy(np.asarray(part)) for part in parts)
    return FeatureSet(features.float(), labels), FeatureSet(held_out.float(), held_out_labels)


def slow_knn(train: FeatureSet, query: torch.Tensor, num_classes: int, k: int, temperature: float) -> int:
    votes = []
    for feature, label in zip(train.features, train.labels, strict=True):
        votes.append((torch.cosine_similarity(feature, query, dim=0).item(), int(label)))
    scores = [0.0] * num_classes
    for cosine, label in sorted(votes, reverse=True)[:k]:
        scores[label] += math.exp(cosine / temperature)
    return max(range(num_classes), key=scores.__getitem__)


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (5, 0.07), (30, 0.5)])
def test_knn_equals_a_slow_loop(k: int, temperature: float) -> None:
    train, test = random_set(40, seed=0), random_set(20, seed=1)
    predicted = knn_predict(train, test.features, 4, (k,), temperature)[k][:, 0]
    assert predicted.tolist() == [slow_knn(train, query, 4, k, temperature) for query in test.features]


def knn_of(train: FeatureSet, test: FeatureSet, num_classes: int, *ks: int) -> dict[str, float]:
    """Values of the metrics by name."""
    found = by_name(KNN(KNN.Config(k=ks)).run(train, test, num_classes, seed=0).metrics)
    return {name: metric.value for name, metric in found.items()}


def test_knn_equals_sklearn_on_digits() -> None:
    train, test = digits()
    reference = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    score = reference.fit(train.features.numpy(), train.labels).score(test.features.numpy(), test.labels)
    metrics = knn_of(train, test, 10, 20)
    assert metrics["k20/top1"] == pytest.approx(100 * score)
    assert metrics["k20/top1"] == pytest.approx(97.5, abs=0.3)
    assert metrics["k20/top1"] < metrics["k20/top5"] <= 100


def test_chunks_change_no_prediction() -> None:
    train, test = random_set(50, seed=0), random_set(23, seed=1)
    whole = knn_predict(train, test.features, 4, (3, 10))
    parts = knn_predict(train, test.features, 4, (3, 10), chunk_rows=7)
    assert torch.equal(whole[3], parts[3])
    assert torch.equal(whole[10], parts[10])


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_faiss_finds_what_torch_finds_and_what_a_sort_does(similarity: Similarity) -> None:
    keys, queries = random_set(50, seed=0).features, random_set(23, seed=1).features
    found = {}
    for backend in ("torch", "faiss"):
        chunks = list(nearest_rows(keys, queries, 5, 6, backend, similarity))
        found[backend] = torch.cat([best for best, _ in chunks]), torch.cat([rows for _, rows in chunks])
    unit = {"cosine": torch.nn.functional.normalize}.get(similarity, lambda rows: rows)
    slow = -torch.cdist(keys, queries).T if similarity == "euclidean" else unit(queries) @ unit(keys).T
    expected = slow.sort(dim=1, descending=True)
    for best, rows in found.values():
        assert torch.equal(rows, expected.indices[:, :5])
        torch.testing.assert_close(best, expected.values[:, :5])


@pytest.mark.parametrize("backend", ["torch", "faiss"])
def test_neighbours_are_exact_where_all_features_are_far_from_zero(backend: Backend) -> None:
    keys, queries = (100 + 0.1 * random_set(num, seed=num).features for num in (400, 60))
    rows = torch.cat([rows for _, rows in nearest_rows(keys, queries, 20, 6, backend, "euclidean")])
    expected = torch.cdist(queries.double(), keys.double()).topk(20, largest=False).indices
    shared = (rows[:, :, None] == expected[:, None]).any(dim=2).double().mean()
    assert shared > 0.999, "equally near ones may take turns"


@pytest.mark.thorough
def test_votes_may_be_uniform_or_inverse_distances_as_in_sklearn() -> None:
    train, test = digits()
    for weights, reference in (("uniform", "uniform"), ("inverse", "distance")):
        config = KNN.Config(k=(7,), similarity="euclidean", weights=weights)
        score = KNeighborsClassifier(7, weights=reference).fit(train.features.numpy(), train.labels)
        expected = 100 * score.score(test.features.numpy(), test.labels)
        found = by_name(KNN(config).run(train, test, 10, seed=0).metrics)
        assert found["k7/top1"].value == pytest.approx(expected, abs=0.3), "but for draws between classes"
    with pytest.raises(ConfigError, match=r"inverse is of distances.*set knn\.similarity=euclidean"):
        KNN(KNN.Config(weights="inverse"))


def test_lengths_of_features_do_not_matter_and_small_temperatures_do_not_overflow() -> None:
    train, test = random_set(50, seed=0), random_set(23, seed=1)
    longer = FeatureSet(train.features * torch.linspace(0.1, 1e4, 50)[:, None], train.labels)
    assert torch.equal(knn_predict(train, test.features, 4)[20], knn_predict(longer, 3 * test.features, 4)[20])
    nearest = knn_predict(train, test.features, 4, (1,))[1][:, 0]
    assert torch.equal(knn_predict(train, test.features, 4, (20,), temperature=1e-4)[20][:, 0], nearest)


@pytest.mark.thorough
def test_several_k_are_measured_each_as_if_alone() -> None:
    train, test = random_set(60, seed=0, num_classes=7), random_set(40, seed=1, num_classes=7)
    both, alone = knn_of(train, test, 7, 20, 1), knn_of(train, test, 7, 1)
    names = ("top1", "top5", "mean_per_class", "macro_f1")
    assert list(both) == [f"k{k}/{name}" for k in (1, 20) for name in names]
    assert {name: both[name] for name in alone} == alone
    assert list(knn_of(train, test, 7, 1, 20).items()) == list(both.items()), "in whatever order they are given"


@pytest.mark.thorough
def test_few_labels_vote_for_every_k_under_its_name() -> None:
    train, test = random_set(60, seed=0), random_set(40, seed=1)

    def few(*ks: int) -> dict[str, float]:
        config = KNN.Config(k=ks, labels=(3,))
        metrics = KNN(config).run(train, test, 4, seed=0).metrics
        assert [metric.name for metric in metrics] == KNN.metrics(config, 4)
        return {metric.name: metric.value for metric in metrics if "labels" in metric.name}

    assert few(9, 1) == few(1) | few(9)
    assert set(few(9, 1)) == {"k1/top1_3_labels", "k9/top1_3_labels"}


def test_titles_and_names_tell_the_k_and_every_top1_leads() -> None:
    train, test = random_set(60, seed=0, num_classes=7), random_set(40, seed=1, num_classes=7)
    metrics = KNN(KNN.Config(k=(20, 1))).run(train, test, 7, seed=0).metrics
    assert [(metric.name, metric.title, metric.unit, metric.is_headline) for metric in metrics] == [
        (f"k{k}/{name}", title, "%", is_headline)
        for k in (1, 20)
        for name, title, is_headline in (
            ("top1", f"kNN, top-1, k = {k}", True),
            ("top5", f"kNN, top-5, k = {k}", False),
            ("mean_per_class", f"kNN, k = {k}, mean of the classes' accuracies", False),
            ("macro_f1", f"kNN, k = {k}, macro-F1", False),
        )
    ]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"top1": 5.0}, r"gave \{'top1': 5.0\}; return a list of Metric"),
        ([5.0], "return a list of Metric"),
        ([Metric("map", 1.0), Metric("map", 2.0)], "'map' more than once"),
    ],
)
def test_what_is_no_list_of_metrics_is_refused(metrics: list[Metric], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        by_name(metrics)


def test_a_class_without_a_vote_is_no_hit() -> None:
    train, test = random_set(60, seed=0, num_classes=7), random_set(40, seed=1, num_classes=7)
    ranked = knn_predict(train, test.features, 7, (1,))[1]
    assert torch.equal(ranked[:, 1:], torch.full((40, 4), -1))
    metrics = knn_of(train, test, 7, 1)
    assert metrics["k1/top5"] == metrics["k1/top1"]


def test_top5_needs_more_than_five_classes() -> None:
    train, test = random_set(40, seed=0), random_set(20, seed=1)
    assert set(knn_of(train, test, 4, 20)) == {"k20/top1", "k20/mean_per_class", "k20/macro_f1"}


def test_more_neighbours_than_images_is_said(caplog: pytest.LogCaptureFixture) -> None:
    train, test = random_set(8, seed=0), random_set(5, seed=1)
    with caplog.at_level(logging.WARNING):
        metrics = knn_of(train, test, 4, 20)
    assert "k=20 is more than the 8 training images" in caplog.text
    assert list(metrics.values()) == list(knn_of(train, test, 4, 8).values())


@pytest.mark.parametrize("fields", [{"k": []}, {"k": [0]}, {"temperature": 0.0}])
def test_impossible_settings_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"is out of range|is empty"):
        build_node(KNN.Config, fields, "knn")


def test_unlabelled_images_and_broken_features_are_refused() -> None:
    train, test = random_set(8, seed=0), random_set(5, seed=1)
    with pytest.raises(ValueError, match="train labels range from -1 to"):
        KNN(KNN.Config()).run(FeatureSet(train.features, train.labels - train.labels.min() - 1), test, 4, seed=0)
    broken = test.features.clone()
    broken[2, 1] = torch.nan
    with pytest.raises(ValueError, match="1 of 5 test rows have features that are not finite"):
        KNN(KNN.Config()).run(train, FeatureSet(broken, test.labels), 4, seed=0)
    with pytest.raises(ValueError, match="5 of 5 test rows have features that are not finite, or beyond 1e19"):
        KNN(KNN.Config()).run(train, FeatureSet(test.features * 1e20, test.labels), 4, seed=0)
    with pytest.raises(ValueError, match=r"must be \[N, D\]"):
        FeatureSet(train.features, test.labels)
