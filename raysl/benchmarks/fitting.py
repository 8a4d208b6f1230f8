"""What can be measured on the images that are there: found on the driver, before anything is trained."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from raysl.benchmarks.benchmark import Benchmark, Labelled
from raysl.components import resolve
from raysl.config.schema import BenchmarkConfig, DataConfig
from raysl.data.source import Split
from raysl.errors import ConfigError

MOST_COUNTED = 200_000
"""Images whose labels are read beforehand where the dataset cannot be read in any order, as on a remote storage."""


@dataclass(frozen=True)
class Fitting:
    """Benchmarks as the images allow them.

    Args:
        settings: of those that can be measured, by their names.
        left_out: a line on each benchmark, or part of one, that cannot be, with the reason.
    """

    settings: dict[str, BenchmarkConfig]
    left_out: list[str]

    def metrics(self, num_classes: int) -> set[str]:
        """Names of the numbers that a report will have: `knn/top1`, `knn/top1/untrained` and so on."""
        names = {f"{key}/{metric}" for key, metric in self._metrics(num_classes)}
        sides = ("", "/untrained", "/pixels", "/deviation")
        return {f"{name}{side}" for name, side in product(names, sides)}

    def _metrics(self, num_classes: int) -> Iterator[tuple[str, str]]:
        for key, config in self.settings.items():
            for metric in _benchmark(config).metrics(config, num_classes):
                yield key, metric


class MeasuredImages:
    """The images of a dataset, and whether they have what benchmarks need.

    Args:
        data: settings of the dataset.
        train: its training images.
        test: its held-out images, or None.
    """

    def __init__(self, data: DataConfig, train: Split, test: Split | None) -> None:
        self.data = data
        self.train = train
        self.test = test

    @cached_property
    def missing(self) -> str:
        """Why nothing that needs labels can be measured; empty where it can."""
        name, test = self.data.name, self.test
        if not self.train.classes:
            return f"the images of {name!r} have no labels"
        if self.train.is_multilabel:
            return f"the images of {name!r} have several labels each, which no benchmark measures yet"
        if test is None:
            return f"the dataset {name!r} has no test images (data.test= names some)"
        if len(self.train.classes) == 1:
            return f"all images of {name!r} are of one class, {self.train.classes[0]!r}"
        for words, labels in (("training", self._train_labels), ("test", self._labels(test))):
            if labels is not None and (num := int((labels < 0).sum())):
                return f"{num:,} of the {len(labels):,} {words} images of {name!r} have no label"
        return ""

    @cached_property
    def labelled(self) -> Labelled:
        """What is known of the labels, where nothing is missing."""
        assert self.test is not None
        labels = self._train_labels
        counts = None if labels is None else np.bincount(labels, minlength=len(self.train.classes))
        return Labelled(self.train.num_samples, self.test.num_samples, self.train.classes, counts)

    @cached_property
    def _train_labels(self) -> np.ndarray | None:
        return self._labels(self.train)

    def _labels(self, split: Split) -> np.ndarray | None:
        is_quick = split.is_random_access or split.num_samples <= MOST_COUNTED
        return split.labels_of(np.arange(split.num_samples)) if is_quick else None

    def fit(self, wanted: Mapping[str, BenchmarkConfig]) -> Fitting:
        """Benchmarks as these images allow them.

        Raises:
            ConfigError: a line for each benchmark that is required and cannot be measured at all, or whose settings
                are wrong.
        """
        settings: dict[str, BenchmarkConfig] = {}
        left_out: list[str] = []
        refused: list[str] = []
        for key, config in wanted.items():
            kind = _benchmark(config)
            kind(config)  # refuses settings that are wrong whatever the images
            try:
                if self.missing:
                    raise ConfigError(self.missing)
                settings[key], lines = kind.fit_to(config, self.labelled)
                left_out += [f"{key}: {line}{self._chosen}" for line in lines]
            except ConfigError as error:
                reason = str(error) if self.missing else f"{error}{self._chosen}"
                if config.required:
                    others = ", ".join(other for other in wanted if other != key)
                    refused.append(f"benchmarks.{key}: {reason}; benchmarks=[{others}] leaves it out")
                else:
                    left_out.append(f"{key} is left out: {reason}")
        if refused:
            raise ConfigError("\n".join(refused))
        return Fitting(settings, left_out)

    @property
    def _chosen(self) -> str:
        """What the settings took away, for the messages."""
        given = [(name, getattr(self.data, name)) for name in ("limit", "skip", "subset")]
        named = ", ".join(f"data.{name}={value}" for name, value in given if value is not None)
        return f" (under {named})" if named else ""


def _benchmark(config: BenchmarkConfig) -> type[Benchmark]:
    kind: type[Benchmark] = resolve("benchmark", config.name)
    return kind
