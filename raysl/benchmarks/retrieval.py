"""Image retrieval: of the same class among labelled images."""

import logging
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from raysl.benchmarks.benchmark import Benchmark, FeatureSet, Findings, Labelled, Metric, Needs
from raysl.benchmarks.class_retrieval import pictured, precision_at, recall_at, search_classes
from raysl.benchmarks.metric import mean_of
from raysl.config.ranges import Count, NotEmpty
from raysl.config.schema import BenchmarkConfig
from raysl.errors import ConfigError

log = logging.getLogger("raysl")

NUM_PICTURED = 8
"""Queries that the page shows."""
MOST_FOUND = 10
"""Images that it shows of what each found."""


class Retrieval(Benchmark):
    """Search for images of a query's class, or that share any class with it where images have several.

    Each test image is a query for the training images, by the cosine of features, exactly. `map` is the mean over
    queries of scikit-learn's average precision; `precision_at_k` the share of right ones among the first k; and
    `recall_at_k` the share of queries with a right one among them. Queries of which no training image shares a class
    are left out.
    """

    protocol = (
        "each test image against all training images by cosine, right when they share a class: mean average precision, "
        "precision and recall at k (recall as in Oh Song et al. 2016, arXiv 1511.06452)"
    )
    cost = "seconds on features; grows with test x training images"

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the search."""

        name: str = "retrieval"
        k: Annotated[tuple[Count, ...], NotEmpty()] = (1, 5, 10)
        """Places in the list of what was found at which precision and recall are measured."""
        queries: Count | None = None
        """Test images that are queries, an even share. Default: all."""

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """See `Benchmark.needs`; one label an image or several."""
        return Needs(labels="any")

    @classmethod
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """See `Benchmark.fit_to`; a list is no longer than there are training images."""
        fitting = tuple(k for k in config.k if k <= images.num_train)
        if fitting == config.k:
            return config, []
        over = ", ".join(str(k) for k in config.k if k not in fitting)
        why = f"k={over} is more than the {images.num_train:,} training images that are searched; "
        if not fitting:
            raise ConfigError(f"{why}set a smaller k")
        return replace(config, k=fitting), [f"{why}k={list(fitting)} is measured"]

    @classmethod
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        """See `Benchmark.metrics`."""
        at = [f"{name}_at_{k}" for k in dict.fromkeys(config.k) for name in ("precision", "recall")]
        return ["map", *at]

    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> Findings:
        """See `Benchmark.run`; nothing is random here."""
        for name, images in (("train", train), ("test", test)):
            if images.labels.ndim == 1:
                images.check(name, num_classes)
            images.check_finite(name)
        num = min(self.config.queries or len(test.labels), len(test.labels))
        rows = torch.arange(num) * len(test.labels) // num
        found = search_classes(train, test, rows, max(MOST_FOUND, *self.config.k))
        if not len(found.queries):
            raise ValueError(
                f"none of {num:,} test images shares a class with a training image; give training images of the classes"
            )
        if len(found.queries) < num:
            log.warning(
                "retrieval: %d of %d queries have nothing to find and are left out", num - len(found.queries), num
            )
        metrics = [mean_of("map", found.average_precision, title="Retrieval, mean average precision")]
        for k in dict.fromkeys(self.config.k):
            metrics += [
                _of_query(f"precision_at_{k}", precision_at(found, k), f"Retrieval, precision at {k}"),
                _of_query(f"recall_at_{k}", recall_at(found, k), f"Retrieval, a right one among {k}"),
            ]
        return Findings(metrics, figures={"retrieved": pictured(found, NUM_PICTURED, MOST_FOUND)})


def _of_query(name: str, values: torch.Tensor, title: str) -> Metric:
    return mean_of(name, values, title=title, is_headline=False)
