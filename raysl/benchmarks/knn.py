"""Weighted k-nearest-neighbour classification (Wu et al. 2018, arXiv 1805.01978, section 3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.benchmark import Benchmark, ConfigError, FeatureSet, Labelled
from raysl.benchmarks.classifiers.classification import CLASS_MEANS, class_means, unseen_note, with_note
from raysl.benchmarks.low_shot import few_label_metrics, fitting_shots
from raysl.benchmarks.metric import Findings, Metric, mean_of
from raysl.benchmarks.neighbours import Backend, Similarity, fitting_ks, nearest_rows
from raysl.config.ranges import Count, NotEmpty, Temperature, Within
from raysl.config.schema import MAY_CHANGE, BenchmarkConfig
from raysl.errors import log

Weights = Literal["exp", "uniform", "inverse"]


class KNN(Benchmark):
    """Accuracy of the vote of the k nearest training images.

    The metrics of k = 20 are `k20/top1` and, with more than five classes, `k20/top5`, `k20/mean_per_class` and
    `k20/macro_f1`; `k20/top1_5_labels` is the mean, with its deviation, over draws of five labelled images of each
    class, which vote alone. Stored predictions are those of the smallest k.
    """

    protocol = (
        "Weighted vote of the k nearest training images by cosine (Wu et al. 2018, arXiv 1805.01978, section 3.4)."
    )
    cost = "seconds on features"
    streams_training = True
    in_names = ("k", "labels")

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the vote."""

        name: str = "knn"
        k: Annotated[tuple[Count, ...], NotEmpty()] = (20,)
        """Neighbours that vote; several values are all measured, each once. The paper has 200, for ImageNet."""
        temperature: Temperature = 0.07
        """Of the weights; the paper's for cosines."""
        chunk_rows: Count = field(default=4096, metadata=MAY_CHANGE)
        """Test rows that are compared at once with four times as many training rows, with faiss four times as many of
        both; bounds memory, changes no result."""
        similarity: Similarity = "cosine"
        """The similarity: the cosine, the dot product of features as they are, or minus their Euclidean distance."""
        weights: Weights = "exp"
        """A neighbour of similarity s votes with exp(s / temperature); with 1 (uniform); or with 1 / distance
        (inverse), of the Euclidean one."""
        backend: Backend = field(default="auto", metadata=MAY_CHANGE)
        """The search: torch, or faiss, whose exact search is faster on CPUs (auto). Both give the same neighbours,
        but for the order of those that are equally near."""
        labels: tuple[Count, ...] = ()
        """Numbers of labelled images of each class that also vote alone, as low-label tables have it (MSN, Assran et
        al. 2022, arXiv 2204.07141)."""
        draws: Annotated[int, Within(1, 100_000)] = 3
        """Random choices of those images; MSN has three."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.weights == "inverse" and config.similarity != "euclidean":
            raise ConfigError(
                f"knn.weights=inverse is of distances, and knn.similarity={config.similarity} gives none; set "
                "knn.similarity=euclidean, or knn.weights=exp"
            )

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """More neighbours than training images cannot vote."""
        labels, lines = fitting_shots(config.labels, images, "labels")
        fitting, more = fitting_ks(config.k, images.num_train)
        return replace(config, labels=labels, k=fitting), [*lines, *more]

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        tops = ("top1", "top5") if num_classes > 5 else ("top1",)
        few = (f"top1_{num}_labels" for num in dict.fromkeys(config.labels))
        return [f"k{k}/{name}" for k, name in product(sorted(set(config.k)), (*tops, *CLASS_MEANS, *few))]

    @override
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> Findings:
        """Only the intervals are random."""
        train.check("train", num_classes)
        test.check("test", num_classes)
        config = self.config
        for k in config.k:
            if k > len(train.labels):
                log.warning("knn: k=%d is more than the %d training images; all of them vote", k, len(train.labels))
        names = ("temperature", "chunk_rows", "backend", "similarity", "weights")
        options: dict[str, Any] = {name: getattr(config, name) for name in names}
        ks = sorted(set(config.k))
        ranked = knn_predict(train, test.features, num_classes, ks, **options)
        note = unseen_note(train.labels, test.labels, num_classes)
        metrics: list[Metric] = []
        for k in ks:
            title = f"kNN, k = {k}"
            accuracies = with_note(_accuracies(ranked[k], test.labels, num_classes, k, seed), note)

            def classify(rows: FeatureSet, queries: Tensor, k: int = k) -> Tensor:
                return knn_predict(rows, queries, num_classes, [k], **options)[k][:, 0]

            few = few_label_metrics(train, test, num_classes, config.labels, config.draws, seed, title, classify)
            metrics += [replace(metric, name=f"k{k}/{metric.name}") for metric in (*accuracies, *few)]
        return Findings(metrics, predicted=ranked[ks[0]][:, 0])


def _accuracies(ranked: Tensor, labels: Tensor, num_classes: int, k: int, seed: int) -> list[Metric]:
    """Return the accuracies of ranked classes [N, min(5, K)] against labels [N]."""
    is_hit = ranked == labels[:, None]  # [N, min(5, K)]
    metrics = [mean_of("top1", is_hit[:, 0], title=f"kNN, top-1, k = {k}", seed=seed)]
    if num_classes > 5:
        title = f"kNN, top-5, k = {k}"
        metrics.append(mean_of("top5", is_hit.any(dim=1), title=title, is_headline=False, seed=seed))
    return [*metrics, *class_means(labels, ranked[:, 0], f"kNN, k = {k}", seed=seed)]


@torch.no_grad()
def knn_predict(
    train: FeatureSet,
    queries: Tensor,
    num_classes: int,
    ks: Sequence[int] = (20,),
    temperature: float = 0.07,
    chunk_rows: int = 4096,
    *,
    backend: Backend = "torch",
    similarity: Similarity = "cosine",
    weights: Weights = "exp",
) -> dict[int, Tensor]:
    """Predict the likeliest classes of each query, best first.

    Args:
        train: labelled features; for cosines they are normalised here, as are the queries.
        queries: float [N, D].
        num_classes: labels lie in [0, num_classes).
        ks: numbers of neighbours; where there are fewer training rows, all vote.
        chunk_rows, backend, similarity: see `nearest_rows`.
        weights: kind of the votes' weights, see `KNN.Config`.

    Returns:
        int64 [N, min(5, num_classes)] for each of `ks`; -1 in places that are left when fewer classes got a vote.

    >>> train = FeatureSet(torch.eye(3), torch.arange(3))
    >>> knn_predict(train, torch.eye(3), num_classes=3, ks=(1,))[1][:, 0]
    tensor([0, 1, 2])
    """
    ranked: dict[int, list[Tensor]] = {k: [] for k in ks}
    for similarities, nearest in nearest_rows(train.features, queries, max(ks), chunk_rows, backend, similarity):
        shares = _weights(similarities, weights, temperature)  # [B, k]
        labels = train.labels[nearest.to(train.labels.device)].to(nearest.device)  # [B, k]
        for k in ranked:
            ranked[k].append(_vote(labels[:, :k], shares[:, :k], num_classes))
    return {k: torch.cat(parts) for k, parts in ranked.items()}


@torch.no_grad()
def knn_probabilities(
    train: FeatureSet,
    queries: Tensor,
    num_classes: int,
    k: int = 20,
    temperature: float = 0.07,
    chunk_rows: int = 4096,
) -> Tensor:
    """Return the share of each class in the vote of the k nearest training rows, float32 [N, num_classes]; see
    `knn_predict`."""
    shares = []
    for cosines, rows in nearest_rows(train.features, queries, k, chunk_rows):
        weights = _weights(cosines, "exp", temperature)
        labels = train.labels[rows.to(train.labels.device)].to(rows.device)
        votes = weights.new_zeros(len(rows), num_classes).scatter_add_(1, labels, weights)
        shares.append(votes / votes.sum(dim=1, keepdim=True))
    return torch.cat(shares)


def _weights(similarities: Tensor, weights: Weights, temperature: float) -> Tensor:
    """Return weights of votes from similarities [B, k], best first; exponential weights are 1 for the nearest, which
    avoids overflow."""
    if weights == "exp":
        return ((similarities - similarities[:, :1]) / temperature).exp()
    return torch.ones_like(similarities) if weights == "uniform" else 1 / similarities.neg().clamp_min(1e-8)


def _vote(labels: Tensor, weights: Tensor, num_classes: int) -> Tensor:
    """Return classes by the sum of their neighbours' weights, int64 [B, min(5, K)]; -1 for classes without a
    neighbour."""
    scores = weights.new_zeros(len(labels), num_classes).scatter_add_(1, labels, weights)
    # a weight can underflow to 0, so a sum of 0 does not show that a class has no neighbour
    has_vote = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, labels, True)
    best, classes = scores.masked_fill(~has_vote, -1.0).topk(min(5, num_classes), dim=1)
    return classes.masked_fill(best < 0, -1)
