"""The shape of a benchmark on features."""

from abc import ABC, abstractmethod
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
        """Names of the numbers that `run` gives with these settings, without the deviations `*_std`."""

    @abstractmethod
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> dict[str, float]:
        """Measure.

        Args:
            train: what may be learned from.
            test: what is counted, every row once.
            num_classes: labels lie in [0, num_classes).
            seed: of all that is random.

        Returns:
            Percentages, 0 to 100, by name.

        Raises:
            ValueError: if the sets do not allow the measurement; the message says why.
        """
