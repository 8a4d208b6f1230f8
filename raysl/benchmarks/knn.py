"""Weighted k-nearest-neighbour classification (Wu et al. 2018, arXiv 1805.01978, section 3.4)."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.benchmark import Benchmark, FeatureSet, Labelled, Metric
from raysl.config.ranges import Count, NotEmpty, Temperature
from raysl.config.schema import BenchmarkConfig
from raysl.errors import ConfigError

log = logging.getLogger("raysl")


class KNN(Benchmark):
    """Accuracy of the vote of the k nearest training images.

    Metrics `top1` and, with more than five classes, `top5`, for the first k; `top1_k200` and so on for further ones.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the vote."""

        name: str = "knn"
        k: Annotated[tuple[Count, ...], NotEmpty()] = (20,)
        """Neighbours that vote; several values are all measured, each once. The paper has 200, for ImageNet."""
        temperature: Temperature = 0.07
        """A neighbour of cosine s votes with weight exp(s / temperature)."""
        chunk_rows: Count = 4096
        """Test and training rows that are compared at once; bounds memory, changes no result."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.k or min(config.k) < 1 or config.temperature <= 0 or config.chunk_rows < 1:
            raise ConfigError(
                f"knn needs every k and chunk_rows at least 1 and temperature above 0, "
                f"got k={config.k}, chunk_rows={config.chunk_rows}, temperature={config.temperature}"
            )

    @classmethod
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """See `Benchmark.fit_to`; more neighbours than there are training images cannot vote."""
        fitting = tuple(k for k in config.k if k <= images.num_train)
        if not fitting:
            raise ConfigError(
                f"k={min(config.k)} is more than the {images.num_train:,} training images; set a smaller k"
            )
        if fitting == config.k:
            return config, []
        over = ", ".join(str(k) for k in config.k if k not in fitting)
        line = f"k={over} is more than the {images.num_train:,} training images; k={list(fitting)} is measured"
        return replace(config, k=fitting), [line]

    @classmethod
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        """See `Benchmark.metrics`."""
        tops = ("top1", "top5") if num_classes > 5 else ("top1",)
        return [f"{top}{suffix}" for suffix, top in product(_suffixes(config.k).values(), tops)]

    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> list[Metric]:
        """See `Benchmark.run`; nothing is random here."""
        train.check("train", num_classes)
        test.check("test", num_classes)
        for k in self.config.k:
            if k > len(train.labels):
                log.warning("knn: k=%d is more than the %d training images; all of them vote", k, len(train.labels))
        ranked = knn_predict(
            train, test.features, num_classes, self.config.k, self.config.temperature, self.config.chunk_rows
        )
        metrics = []
        for k, suffix in _suffixes(self.config.k).items():
            is_hit = ranked[k] == test.labels[:, None]  # [N, min(5, K)]
            title, is_first = f"kNN, top-1, k = {k}", not suffix
            metrics.append(Metric(f"top1{suffix}", _percent(is_hit[:, 0]), title=title, is_headline=is_first))
            if num_classes > 5:
                title = f"kNN, top-5, k = {k}"
                metrics.append(Metric(f"top5{suffix}", _percent(is_hit.any(dim=1)), title=title, is_headline=False))
        return metrics


def _suffixes(ks: Sequence[int]) -> dict[int, str]:
    """What the names of the metrics of each k end in, each k once."""
    return {k: "" if k == ks[0] else f"_k{k}" for k in ks}


@torch.no_grad()
def knn_predict(
    train: FeatureSet,
    queries: Tensor,
    num_classes: int,
    ks: Sequence[int] = (20,),
    temperature: float = 0.07,
    chunk_rows: int = 4096,
) -> dict[int, Tensor]:
    """The likeliest classes of each query, best first.

    Args:
        train: labelled features; normalised here, as are the queries.
        queries: float [N, D].
        num_classes: labels lie in [0, num_classes).
        ks: numbers of neighbours; where there are fewer training rows, all vote.
        temperature: of the weights.
        chunk_rows: rows compared at once.

    Returns:
        int64 [N, min(5, num_classes)] for each of `ks`; -1 in places that are left when fewer classes got a vote.
    """
    ranked: dict[int, list[Tensor]] = {k: [] for k in ks}
    for cosines, nearest in nearest_rows(train.features, queries, max(ks), chunk_rows):
        weights = ((cosines - cosines[:, :1]) / temperature).exp()  # [B, k], the nearest at 1: no overflow
        labels = train.labels[nearest]  # [B, k]
        for k in ranked:
            ranked[k].append(_vote(labels[:, :k], weights[:, :k], num_classes))
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
    """Share of each class in the vote of the k nearest training rows, float32 [N, num_classes]; see `knn_predict`."""
    shares = []
    for cosines, rows in nearest_rows(train.features, queries, k, chunk_rows):
        weights = ((cosines - cosines[:, :1]) / temperature).exp()
        votes = weights.new_zeros(len(rows), num_classes).scatter_add_(1, train.labels[rows], weights)
        shares.append(votes / votes.sum(dim=1, keepdim=True))
    return torch.cat(shares)


@torch.no_grad()
def nearest_rows(keys: Tensor, queries: Tensor, k: int, chunk_rows: int = 4096) -> Iterator[tuple[Tensor, Tensor]]:
    """Cosines and places of the k keys [N, D] nearest to queries [M, D], nearest first, for a chunk of these at a time:
    [m, min(k, N)] each."""
    normal = F.normalize(keys.float(), dim=1)
    for chunk in torch.split(queries, chunk_rows):
        yield _nearest(F.normalize(chunk.float(), dim=1), normal, k, chunk_rows)


def _nearest(queries: Tensor, keys: Tensor, k: int, chunk_rows: int) -> tuple[Tensor, Tensor]:
    """Cosines and rows of the k nearest keys, nearest first: [B, min(k, N)] each. Never holds more than a chunk."""
    cosines = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for first in range(0, len(keys), chunk_rows):
        found = queries @ keys[first : first + chunk_rows].T  # [B, chunk]
        places = torch.arange(first, first + found.shape[1], device=rows.device).expand_as(found)
        cosines, rows = torch.cat([cosines, found], dim=1), torch.cat([rows, places], dim=1)
        cosines, order = cosines.topk(min(k, cosines.shape[1]), dim=1)
        rows = rows.gather(1, order)
    return cosines, rows


def _vote(labels: Tensor, weights: Tensor, num_classes: int) -> Tensor:
    """Classes by the sum of their neighbours' weights, int64 [B, min(5, K)]; -1 for those that no neighbour is of."""
    scores = weights.new_zeros(len(labels), num_classes).scatter_add_(1, labels, weights)
    has_vote = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, labels, True)
    best, classes = scores.masked_fill(~has_vote, -1.0).topk(min(5, num_classes), dim=1)
    return classes.masked_fill(best < 0, -1)


def _percent(is_hit: Tensor) -> float:
    return 100 * is_hit.double().mean().item()
