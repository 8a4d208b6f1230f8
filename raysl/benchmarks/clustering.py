"""K-means clusters of features, compared with the labels (Lloyd 1982)."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from raysl.benchmarks.benchmark import CHUNK_ROWS, Benchmark, Context, FeatureSet, Findings, Labelled, Metric, Needs
from raysl.benchmarks.metric import mean_of
from raysl.config.ranges import Count, Within
from raysl.config.schema import BenchmarkConfig
from raysl.errors import ConfigError
from raysl.hashing import Int64s, hash_words
from raysl.losses.precision import at_least_fp32
from raysl.nn.kmeans import kmeans


class Clustering(Benchmark):
    """Agreement of clusters of features with classes.

    Of all restarts the one whose clusters are tightest counts, which no label has a part in. `accuracy` gives each
    cluster a class of its own so that most images are right (Kuhn 1955); its interval is over images, with the clusters
    as they are, and its deviation over the restarts. `nmi` is the mutual information by the mean of both entropies
    (Strehl and Ghosh 2002), `ari` the adjusted Rand index (Hubert and Arabie 1985), both times 100.
    """

    protocol = (
        "k-means of the test features, as many clusters as classes; accuracy by Hungarian matching, NMI, ARI "
        "(as in Van Gansbeke et al. 2020, arXiv 2005.12320)"
    )
    cost = "seconds to minutes on features: restarts x iters passes over the split"

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the clusters."""

        name: str = "clustering"
        k: Count | None = None
        """Clusters. Those beyond the number of classes are matched to none, and their images are wrong. Default: as
        many as the clustered images have classes."""
        restarts: Annotated[int, Within(1, 10_000)] = 10
        """Times that k-means begins anew, with other images; the tightest clusters count."""
        iters: Annotated[int, Within(1, 10_000)] = 50
        """Rounds of k-means."""
        spherical: bool = True
        """Compare directions: features and centroids are brought to length 1. Else Euclidean distances."""
        split: Literal["test", "train"] = "test"
        """Images that are clustered."""

    @classmethod
    @override
    def needs(cls, config: Config) -> Needs:
        """Test images are needed only if they are clustered."""
        return Needs(test=config.split == "test")

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """There must be at least as many images as clusters."""
        num = images.num_test if config.split == "test" else images.num_train
        if (k := config.k or 1) > num:
            raise ConfigError(f"{k:,} clusters cannot be found in {num:,} {config.split} images; set a smaller k")
        return config, []

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return ["accuracy", "nmi", "ari"]

    @override
    def measure(self, context: Context) -> Findings:
        images = context.test if self.config.split == "test" else context.train
        assert images is not None
        return self._cluster(images, context.num_classes, context.seed)

    @override
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> Findings:
        """One of the splits is ignored."""
        return self._cluster(test if self.config.split == "test" else train, num_classes, seed)

    def _cluster(self, images: FeatureSet, num_classes: int, seed: int) -> Findings:
        config = self.config
        images.check(config.split, num_classes)
        labels = images.labels.cpu().numpy()
        k = config.k or len(np.unique(labels))
        best: tuple[float, Int64s] | None = None
        accuracies = []
        for restart in range(config.restarts):
            start = hash_words(seed, restart) >> 1
            centroids, assigned = kmeans(images.features, k, config.iters, start, config.spherical, empty="split")
            clusters = assigned.cpu().numpy()
            accuracies.append(float((match(clusters, labels, k, num_classes)[clusters] == labels).mean()))
            spread = mean_distance(images.features, centroids, assigned, config.spherical)
            if best is None or spread < best[0]:
                best = spread, clusters
        assert best is not None
        _, clusters = best
        classes = match(clusters, labels, k, num_classes)
        deviation = 100 * float(np.std(accuracies)) if config.restarts > 1 else None
        hits = torch.from_numpy(classes[clusters] == labels)
        nmi, ari = (
            100 * float(score(labels, clusters)) for score in (normalized_mutual_info_score, adjusted_rand_score)
        )
        metrics = [
            replace(mean_of("accuracy", hits, title="Clustering accuracy"), deviation=deviation),
            Metric("nmi", nmi, title="Clustering, normalised mutual information", is_headline=False),
            Metric("ari", ari, title="Clustering, adjusted Rand index", is_headline=False),
        ]
        predicted = torch.from_numpy(classes[clusters]) if config.split == "test" else None
        return Findings(metrics, predicted=predicted)


def match(clusters: Int64s, labels: Int64s, k: int, num_classes: int) -> Int64s:
    """Assign a class to each cluster so that most images are right, each class once; -1 for clusters without one.

    Args:
        clusters, labels: int64 [N].
        k: clusters lie in [0, k).

    Returns:
        int64 [k].
    """
    counts = np.bincount(clusters * num_classes + labels, minlength=k * num_classes).reshape(k, num_classes)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    classes: Int64s = np.full(k, -1, np.int64)
    classes[rows] = columns
    return classes


def mean_distance(features: Tensor, centroids: Tensor, clusters: Tensor, spherical: bool) -> float:
    """Return the mean squared distance of features [N, D] to the centroids [k, D] of their clusters, int64 [N], in
    float64.

    Args:
        features, centroids, clusters: arguments and results of `kmeans`.
        spherical: whether features and centroids have length 1.
    """
    total = torch.zeros((), dtype=torch.float64, device=features.device)
    for part, numbers in zip(torch.split(features, CHUNK_ROWS), torch.split(clusters, CHUNK_ROWS), strict=True):
        rows = at_least_fp32(part)
        rows = F.normalize(rows, dim=1) if spherical else rows
        total += (rows - centroids[numbers]).square().sum(dtype=torch.float64)
    return total.item() / len(features)
