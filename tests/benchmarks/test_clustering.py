from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from raysl.benchmarks import clustering
from raysl.benchmarks.benchmark import FeatureSet, Labelled, by_name
from raysl.benchmarks.clustering import Clustering, match, mean_distance
from raysl.errors import ConfigError
from tests.benchmarks.test_knn import digits, random_set


def blobs(num: int = 90, num_classes: int = 3, seed: int = 0) -> FeatureSet:
    """Classes far apart from each other: whoever finds clusters finds them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % num_classes
    return FeatureSet(10 * torch.eye(num_classes, 5)[labels] + torch.randn(num, 5, generator=generator), labels)


def measured(images: FeatureSet, num_classes: int = 3, **settings: object) -> dict[str, float]:
    found = Clustering(Clustering.Config(**settings)).run(images, images, num_classes, seed=0)
    return {name: metric.value for name, metric in by_name(found.metrics).items()}


def test_the_best_matching_is_that_of_trying_all() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        clusters, labels = generator.integers(0, 4, 40), generator.integers(0, 4, 40)
        tried = [(np.array(order)[clusters] == labels).mean() for order in permutations(range(4))]
        assert (match(clusters, labels, 4, 4)[clusters] == labels).mean() == max(tried)


def test_clusters_beyond_the_classes_are_wrong_and_classes_beyond_the_clusters_too() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    split = np.array([0, 0, 2, 1, 1, 1])
    assert match(split, labels, 3, 2).tolist() == [0, 1, -1]
    one = np.zeros(6, np.int64)
    assert match(one, labels, 1, 2).tolist() in ([0], [1])


@pytest.mark.thorough
@pytest.mark.parametrize("spherical", [True, False])
def test_separated_classes_are_found_whole(spherical: bool) -> None:
    assert measured(blobs(), spherical=spherical) == {"accuracy": 100.0, "nmi": pytest.approx(100), "ari": 100.0}


@pytest.mark.thorough
def test_there_are_as_many_clusters_as_classes_have_images() -> None:
    images = blobs(num_classes=4)
    assert measured(FeatureSet(images.features, images.labels + 1), 5) == measured(images, 4)


def test_features_without_a_relation_to_labels_give_chance() -> None:
    labels = torch.arange(3000) % 10
    features = torch.randn(3000, 8, generator=torch.Generator().manual_seed(1))
    found = measured(FeatureSet(features, labels), num_classes=10, restarts=2, iters=10)
    assert found["accuracy"] == pytest.approx(10, abs=3)
    assert found["nmi"] == pytest.approx(0, abs=2)
    assert found["ari"] == pytest.approx(0, abs=1)


@pytest.mark.thorough
def test_raw_digits_are_clustered_as_well_as_by_scikit_learn() -> None:
    _, test = digits()
    found = measured(test, num_classes=10, restarts=20, spherical=False)
    other = KMeans(10, n_init=20, random_state=0).fit(test.features.numpy()).labels_.astype(np.int64)
    labels = test.labels.numpy()
    assert found["accuracy"] == pytest.approx(100 * (match(other, labels, 10, 10)[other] == labels).mean(), abs=4)
    assert found["nmi"] == pytest.approx(100 * normalized_mutual_info_score(labels, other), abs=4)
    assert found["ari"] == pytest.approx(100 * adjusted_rand_score(labels, other), abs=5)


@pytest.mark.thorough
def test_what_is_predicted_is_the_class_that_a_cluster_was_matched_to() -> None:
    images = random_set(80, seed=3)
    for k in (3, 4, 6):
        found = Clustering(Clustering.Config(k=k)).run(images, images, 4, seed=0)
        assert found.predicted is not None
        assert found.predicted.min() == (-1 if k > 4 else 0)
        hits = (found.predicted == images.labels).double().mean()
        assert 100 * hits.item() == pytest.approx(by_name(found.metrics)["accuracy"].value)
    assert Clustering(Clustering.Config(split="train")).run(images, images, 4, seed=0).predicted is None


def test_the_tightest_of_the_restarts_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    images = blobs()
    good, bad = images.labels, torch.zeros_like(images.labels)
    spread = []

    def both(rows: torch.Tensor, k: int, iters: int, seed: int, spherical: bool, empty: str) -> object:
        clusters = [bad, good, bad][len(spread) % 3]
        spread.append(seed)
        centroids = torch.stack([rows[clusters == n].mean(dim=0).nan_to_num() for n in range(k)])
        return centroids, clusters

    monkeypatch.setattr(clustering, "kmeans", both)
    found = Clustering(Clustering.Config(restarts=3, spherical=False)).run(images, images, 3, seed=0)
    accuracy = by_name(found.metrics)["accuracy"]
    assert accuracy.value == 100
    assert accuracy.deviation == pytest.approx(100 * np.std([1 / 3, 1, 1 / 3]))
    assert len(set(spread)) == 3


def test_distances_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_set(50, seed=0)
    centroids, clusters = images.features[:4], torch.arange(50) % 4
    slow = (images.features - centroids[clusters]).double().square().sum(dim=1).mean().item()
    assert mean_distance(images.features, centroids, clusters, spherical=False) == pytest.approx(slow)
    monkeypatch.setattr(clustering, "CHUNK_ROWS", 7)
    assert mean_distance(images.features, centroids, clusters, spherical=False) == pytest.approx(slow)


@pytest.mark.thorough
def test_the_split_is_the_one_that_was_asked_for() -> None:
    train, test = blobs(), random_set(60, seed=0, num_classes=3)
    benchmark = Clustering(Clustering.Config(split="train"))
    assert by_name(benchmark.run(train, test, 3, seed=0).metrics)["accuracy"].value == 100
    assert not Clustering.needs(benchmark.config).test
    assert Clustering.needs(Clustering.Config()).test


def test_more_clusters_than_images_are_refused_before_anything_is_extracted() -> None:
    images = Labelled(num_train=100, num_test=20, classes=tuple("abc"), counts=None)
    assert Clustering.fit_to(Clustering.Config(), images) == (Clustering.Config(), [])
    with pytest.raises(ConfigError, match="30 clusters cannot be found in 20 test images; set a smaller k"):
        Clustering.fit_to(Clustering.Config(k=30), images)


@pytest.mark.thorough
def test_the_metrics_are_those_that_were_told() -> None:
    assert list(measured(blobs(), k=4)) == Clustering.metrics(Clustering.Config(k=4), 3)
