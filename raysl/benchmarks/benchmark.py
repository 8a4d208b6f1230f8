"""The shape of a benchmark on features."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from raysl.config.schema import BenchmarkConfig
from raysl.errors import ConfigError
from raysl.hashing import Int64s


@dataclass(frozen=True)
class Labelled:
    """What is known of labelled images before a feature is extracted.

    Args:
        num_train, num_test: images.
        classes: their names; labels lie in [0, number of classes).
        counts: training images of each class, int64 [K]; None where counting them would take long.
    """

    num_train: int
    num_test: int
    classes: tuple[str, ...]
    counts: Int64s | None


@dataclass
class FeatureSet:
    """Features of a split, by a frozen backbone.

    Raises:
        ValueError: if the shapes are not these.
    """

    features: Tensor
    """float32 [N, D]."""
    labels: Tensor
    """int64 [N]; [N, K] of 1 present, 0 absent and -1 ignore, of a multi-label dataset."""

    def __post_init__(self) -> None:
        are_rows = self.labels.ndim in (1, 2) and len(self.labels) == len(self.features) > 0
        if self.features.ndim != 2 or not are_rows:
            raise ValueError(
                f"features must be [N, D] and labels [N] or [N, K] with N > 0, "
                f"got {list(self.features.shape)} and {list(self.labels.shape)}"
            )

    def check(self, split: str, num_classes: int) -> None:
        """Refuse what would give a number that means nothing.

        Raises:
            ConfigError: if there are several labels a row, a feature is not finite, or a label is outside
                [0, num_classes).
        """
        if self.labels.ndim != 1:
            raise ConfigError(f"the {split} rows have several labels each; this benchmark needs one on every image")
        num_bad = int((~self.features.isfinite().all(dim=1)).sum())
        if num_bad:
            raise ConfigError(f"{num_bad} of {len(self.features)} {split} rows have features that are not finite")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= num_classes:
            raise ConfigError(
                f"the {split} labels range from {low} to {high}, outside 0 to {num_classes - 1}; "
                "a benchmark needs a label on every image"
            )


@dataclass(frozen=True)
class Metric:
    """One number of a benchmark, and all that a table or a page needs to show it.

    Args:
        name: what programs call it, such as `5_shot`; in the results of a run it is `<benchmark>/<name>`.
        value: in `unit`.
        deviation: standard deviation of `value` over repeated draws, where there are any.
        unit: such as `%` or `s`; may be empty.
        title: what people call it, such as `Low-shot, 5 per class`; default: made of both names.
        is_headline: whether it is among the numbers that open the page; others follow as far as there is room.
        is_lower_better: whether a smaller value is the better one.
    """

    name: str
    value: float
    deviation: float | None = None
    unit: str = "%"
    title: str = ""
    is_headline: bool = True
    is_lower_better: bool = False


def by_name(metrics: Sequence[Metric]) -> dict[str, Metric]:
    """The metrics that a benchmark gave, by their names.

    Raises:
        ValueError: if they are something else, or two of one name.
    """
    if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
        raise ValueError(f"run() gave {metrics!r}; return a list of Metric (raysl.benchmarks.benchmark)")
    found = {metric.name: metric for metric in metrics}
    if len(found) < len(metrics):
        names = [metric.name for metric in metrics]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"run() gave the metric {twice!r} more than once; give each a name of its own")
    return found


class Benchmark(ABC):
    """A measure of features: a function of two labelled sets, with nothing kept between calls.

    A subclass nests a frozen `Config` and takes it as its only argument.
    """

    Config: ClassVar[type[BenchmarkConfig]]

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    def fit_to(cls, config: Any, images: Labelled) -> tuple[Any, list[str]]:
        """What can be measured on these images, asked on the driver before anything is trained.

        Args:
            config: settings as they were given.
            images: what they would be measured on.

        Returns:
            The settings without the parts that are impossible, and a line on each of those with the number that is in
            the way. Default: all is possible.

        Raises:
            ConfigError: if nothing would be left; the message names the number and the next step.
        """
        return config, []

    @classmethod
    @abstractmethod
    def metrics(cls, config: Any, num_classes: int) -> list[str]:
        """Names of the numbers that `run` gives with these settings."""

    @abstractmethod
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> list[Metric]:
        """Measure.

        Args:
            train: what may be learned from.
            test: what is counted, every row once.
            num_classes: labels lie in [0, num_classes).
            seed: of all that is random.

        Returns:
            The numbers, each name once; accuracies in percent, 0 to 100.

        Raises:
            ValueError: if the sets do not allow the measurement; the message says why.
        """
