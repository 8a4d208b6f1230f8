"""Image retrieval: images of the same class among labelled images, or of the same object in datasets for that."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.benchmark import (
    Benchmark,
    Context,
    FeatureSet,
    Findings,
    Labelled,
    Metric,
    Needs,
    missing_negatives,
    settings_from,
)
from raysl.benchmarks.class_retrieval import pictured, precision_at, recall_at, search_classes
from raysl.benchmarks.instance_retrieval.datasets import REVISITED, Dataset
from raysl.benchmarks.instance_retrieval.descriptors import Pooling
from raysl.benchmarks.instance_retrieval.search import Search, Similarity
from raysl.benchmarks.metric import mean_of
from raysl.benchmarks.neighbours import fitting_ks
from raysl.config.ranges import Count, Location, NotEmpty, Side, Width, Within
from raysl.config.schema import BenchmarkConfig
from raysl.data.sources.sample import even_index
from raysl.errors import ConfigError, log

NUM_PICTURED = 8
"""Queries that the page shows."""
MOST_FOUND = 10
"""Results that are shown for each query."""
HEADLINES = ("map", "map_medium", "map_hard", "map_strong")

Scale = Annotated[float, Within(0.01, 16)]
Power = Annotated[float, Within(0.01, 1000)]
Overlap = Annotated[float, Within(0, 1, below=True)]
Levels = Annotated[int, Within(1, 32)]


class Retrieval(Benchmark):
    """Search for images of a query's class, or with the object that it shows.

    Without `dataset` each test image is a query for the training images, by the cosine of features, exactly; what
    shares a class with it is right. `map` is the mean over queries of scikit-learn's average precision;
    `precision_at_k` the share of right ones among the first k; and `recall_at_k` the share of queries with a right one
    among them. Queries of which no training image shares a class are left out.

    With `dataset` the images in `path` are described by the maps of a stage and searched for those of the queries.
    Revisited Oxford and Paris give `map_easy`, `map_medium`, `map_hard` and `precision_at_1_easy` and so on; Oxford
    Buildings and Paris `map`; INSTRE `map` and, of a tenth of the queries, `map_validation`; Copydays `map_strong`, one
    for each of `query_splits`. Average precision is then the area of trapezoids, as these datasets have it. Images are
    read one at a time in their own shapes.
    """

    protocol = (
        "each test image against all training images by cosine, right when they share a class (recall as in Oh Song et "
        "al. 2016, arXiv 1511.06452); or Revisited Oxford/Paris (Radenovic et al. 2018, arXiv 1803.11285), Oxford "
        "Buildings, Paris, INSTRE, Copydays by R-MAC (Tolias et al. 2016, arXiv 1511.05879) or GeM (arXiv 1711.02512)"
    )
    cost = "seconds on features; a forward pass an image of 1,024 px and scale for instance retrieval"
    in_names = ("k",)

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the search."""

        name: str = "retrieval"
        k: Annotated[tuple[Count, ...], NotEmpty()] = (1, 5, 10)
        """Ranks at which precision and recall are measured."""
        queries: Count | None = None
        """Test images that are queries, an even share, without a dataset. Default: all."""
        dataset: Dataset | None = None
        """Images made for instance retrieval. Default: the labelled images of the run."""
        path: Location | None = None
        """Folder or URI of that dataset, in its authors' layout; all below is of instance retrieval alone."""
        query_splits: Annotated[tuple[str, ...], NotEmpty()] = ("strong",)
        """Folders of Copydays whose images are queries, such as strong, crops/50 or jpegqual."""
        distractors: Location | None = None
        """Folder of further images that are searched and right for no query, such as the million of the revisited
        benchmark. Default: none."""
        stage: str | None = None
        """Stage of the network whose map is pooled. Default: the last that has places, as res5."""
        pooling: Pooling = "rmac"
        """Maxima of regions, added up (rmac); generalised means (gem), means or maxima of all places; the class token
        of a ViT, alone or beside gem."""
        rmac_levels: Levels = 3
        """Sizes of R-MAC's regions."""
        rmac_overlap: Overlap = 0.4
        """Wanted overlap of its largest regions."""
        gem_p: Power = 4.0
        """Power of the generalised mean, from 1, the mean, up to the maximum; 3 in its paper, 4 in VISSL."""
        gem_bias: bool = False
        """Add a channel of ones to GeM's vector before it is brought to length 1, as VISSL does."""
        size: Side = 1024
        """Longer side of an image in pixels."""
        scales: Annotated[tuple[Scale, ...], NotEmpty()] = (1.0,)
        """Times that, for each of which the network is run; R-MAC adds up all regions, the others take the mean."""
        crop_queries: bool = True
        """Search for the box of a query alone, where it has one, as the protocols say; VISSL takes the whole image."""
        similarity: Similarity = "dot"
        """Products of descriptors, which are cosines where these have length 1, or Euclidean distances (l2)."""
        whiten_on: Location | None = None
        """Folder of other images, all below, that a PCA whitening is learned on. Default: no whitening."""
        whiten_dim: Width | None = None
        """Principal components that are kept. Default: all."""
        whiten_images: Count | None = None
        """Images that it is learned on at most, an even share. Default: all."""
        whiten_norm: bool = True
        """Bring descriptors to length 1 again behind the whitening, but for R-MAC, where it is always so; VISSL does
        not."""

    @classmethod
    @override
    def needs(cls, config: Config) -> Needs:
        """Each image needs one label or several; none with a dataset."""
        if config.dataset is not None:
            return Needs(labels="none", test=False, own_images=True)
        return Needs(labels="any")

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """A list has at most as many results as training images, and a dataset must be complete."""
        if config.dataset is not None:
            _search(config).check()
            return config, []
        fitting, lines = fitting_ks(config.k, images.num_train)
        return replace(config, k=fitting), lines

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        ks = tuple(dict.fromkeys(config.k))
        if config.dataset is None:
            return ["map", *(f"{name}_at_{k}" for k in ks for name in ("precision", "recall"))]
        at = ks if config.dataset in REVISITED else ()
        kinds = ("map", *(f"precision_at_{k}" for k in at))
        return [_named(kind, task) for task in _search(config).names() for kind in kinds]

    @override
    def measure(self, context: Context) -> Findings:
        if self.config.dataset is None:
            assert context.train is not None
            assert context.test is not None
            return self.run(context.train, context.test, context.num_classes, context.seed)
        at = tuple(dict.fromkeys(self.config.k)) if self.config.dataset in REVISITED else ()
        metrics = []
        for task, scored in _search(self.config).run(context, at).items():
            title = f"{self.config.dataset}{f', {task}' if task else ''}"
            name = _named("map", task)
            shown = f"Retrieval, {title}, mean average precision"
            metrics.append(mean_of(name, scored.average_precision, title=shown, is_headline=name in HEADLINES))
            for k, values in scored.precision.items():
                metrics.append(_of_query(_named(f"precision_at_{k}", task), values, f"{title}, precision at {k}"))
        return Findings(metrics)

    @override
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> Findings:
        """Nothing is random here."""
        for name, images in (("train", train), ("test", test)):
            if images.labels.ndim == 1:
                images.check(name, num_classes)
            elif reason := missing_negatives(images.labels.cpu().numpy(), name):
                raise ConfigError(reason)
            images.check_finite(name)
        rows = torch.from_numpy(even_index(len(test.labels), self.config.queries or len(test.labels)))
        num = len(rows)
        results = search_classes(train, test, rows, max(MOST_FOUND, *self.config.k))
        if not len(results.queries):
            raise ValueError(
                f"none of {num:,} test images shares a class with a training image; give training images of the classes"
            )
        if len(results.queries) < num:
            log.warning("retrieval: %d of %d queries have nothing to find, left out", num - len(results.queries), num)
        metrics = [mean_of("map", results.average_precision, title="Retrieval, mean average precision")]
        for k in dict.fromkeys(self.config.k):
            metrics += [
                _of_query(f"precision_at_{k}", precision_at(results, k), f"precision at {k}"),
                _of_query(f"recall_at_{k}", recall_at(results, k), f"a right one among {k}"),
            ]
        return Findings(metrics, figures={"retrieved": pictured(results, NUM_PICTURED, MOST_FOUND)})


def _of_query(name: str, values: Tensor, title: str) -> Metric:
    return mean_of(name, values, title=f"Retrieval, {title}", is_headline=False)


def _named(metric: str, task: str) -> str:
    return f"{metric}_{task}" if task else metric


def _search(config: Retrieval.Config) -> Search:
    assert config.dataset is not None
    return settings_from(config, Search)
