"""The base class of benchmarks, the inputs that they get, and the names that the file of a benchmark needs."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from raysl.benchmarks.metric import Findings as Findings
from raysl.benchmarks.metric import Metric as Metric
from raysl.benchmarks.metric import by_name as by_name
from raysl.benchmarks.metric import mean_of as mean_of
from raysl.benchmarks.metric import metrics_of as metrics_of
from raysl.config.ranges import check_ranges
from raysl.config.schema import BenchmarkConfig as BenchmarkConfig
from raysl.errors import ConfigError as ConfigError
from raysl.hashing import Int64s
from raysl.process.screen import counted, duration

if TYPE_CHECKING:
    from raysl.checkpoint.backbone import Checkpoint
    from raysl.config.schema import DataConfig
    from raysl.data.source import Split
    from raysl.storage.folder import Folder

FEATURES = ""
"""Name of the output of a network's `forward` among its stages."""
PIXELS = "pixels"

Side = Literal["trained", "untrained", "pixels"]
SettingsT = TypeVar("SettingsT")


@dataclass(frozen=True)
class Needs:
    """Images and labels that a benchmark needs.

    Args:
        labels: one of each image; one, or several (`any`); or `none`.
        test: held-out images.
        own_images: whether the benchmark brings images of its own, which its settings name.

    >>> Needs(labels="none", test=False).labels
    'none'
    """

    labels: Literal["one", "any", "none"] = "one"
    test: bool = True
    own_images: bool = False


@dataclass(frozen=True)
class Labelled:
    """Facts on labelled images that are known before features are extracted.

    Args:
        num_train, num_test: images.
        classes: their names; labels lie in [0, number of classes). Empty where there are none.
        counts: training images of each class, int64 [K]; None where counting them would take long.
        num_validation: how many of the training images, the last ones, are the published validation images.
        is_multilabel: whether an image has a label of each class.

    >>> Labelled(num_train=100, num_test=20, classes=("cat", "dog"), counts=None).num_train
    100
    """

    num_train: int
    num_test: int
    classes: tuple[str, ...]
    counts: Int64s | None
    is_multilabel: bool = False
    num_validation: int = 0

    @property
    def rarest(self) -> int | None:
        """Class with the fewest training images; numbers that no image has are no classes where each image has one."""
        if self.counts is None:
            return None
        counts = self.counts if self.is_multilabel else np.where(self.counts > 0, self.counts, self.num_train + 1)
        return int(counts.argmin())


@dataclass
class FeatureSet:
    """Features and labels of a split.

    Raises:
        ValueError: if the shapes are not these.

    >>> FeatureSet(torch.randn(4, 8), torch.tensor([0, 1, 0, 1])).features.shape
    torch.Size([4, 8])
    """

    features: Tensor
    """float [N, D]; maybe on disk and mapped into memory: go through it in chunks."""
    labels: Tensor
    """int64 [N], -1 where unlabelled; [N, K] of 1 present, 0 absent and -1 ignore, of a multi-label dataset."""
    stages: Mapping[str, Tensor] = field(default_factory=dict)
    """float [N, D] of further stages by the names that `Benchmark.stages` returned; empty for raw pixels."""
    num_validation: int = 0
    """Rows at the end that are the dataset's published validation images: settings may be chosen on them."""

    def __post_init__(self) -> None:
        are_rows = self.labels.ndim in (1, 2) and len(self.labels) == len(self.features) > 0
        if self.features.ndim != 2 or not are_rows:
            raise ValueError(
                f"features must be [N, D] and labels [N] or [N, K] with N > 0, "
                f"got {list(self.features.shape)} and {list(self.labels.shape)}"
            )

    @property
    def num_bytes(self) -> int:
        """Bytes of all features, as float32."""
        return 4 * sum(matrix.numel() for matrix in (self.features, *self.stages.values()))

    def to(self, device: torch.device | str) -> "FeatureSet":
        """Return the same features and labels on a device."""
        stages = {stage: matrix.to(device) for stage, matrix in self.stages.items()}
        return FeatureSet(self.features.to(device), self.labels.to(device), stages, self.num_validation)

    def at(self, stage: str) -> "FeatureSet":
        """Return the same images with the features of a stage."""
        if stage == FEATURES:
            return self
        return FeatureSet(self.stages[stage], self.labels, num_validation=self.num_validation)

    def check(self, split: str, num_classes: int) -> None:
        """Refuse features or labels that make every number meaningless.

        Raises:
            ConfigError: if there are several labels a row, a feature is not finite, or a label is outside
                [0, num_classes).
        """
        if self.labels.ndim != 1:
            raise ConfigError(f"the {split} rows have several labels each; this benchmark needs one on every image")
        self.check_finite(split)
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= num_classes:
            raise ConfigError(
                f"the {split} labels range from {low} to {high}, outside 0 to {num_classes - 1}; "
                "a benchmark needs a label on every image"
            )

    def check_finite(self, split: str) -> None:
        """Refuse features that are not finite."""
        chunks = torch.split(self.features, CHUNK_ROWS)
        if num_bad := sum(int((~chunk.isfinite().all(dim=1)).sum()) for chunk in chunks):
            raise ConfigError(f"{num_bad} of {len(self.features)} {split} rows have features that are not finite")


CHUNK_ROWS = 4096


def missing_negatives(labels: np.ndarray, split: str, classes: Sequence[str] = ()) -> str:
    """Name a class that images have or may have and none lacks, so that nothing can be measured of it.

    Tables that write -1 for absent, such as CelebA's, have only such classes.

    Args:
        labels: int [N, K] of 1 present, 0 absent and -1 unknown.
        split: name of the images, for the message.
        classes: names of the classes; default: their numbers.

    Returns:
        The reason to refuse the labels; empty if each class with a -1 and a 1 has a 0 too.

    >>> missing_negatives(np.array([[1, 1], [-1, 0]]), "test", ("smiling", "male"))[:58]
    "class 'smiling' is 1 or -1 on the test images, and never 0"
    """
    has = {value: (labels == value).any(axis=0) for value in (-1, 0, 1)}
    columns = np.flatnonzero(has[1] & has[-1] & ~has[0]).tolist()
    if not columns:
        return ""
    name = repr(classes[columns[0]]) if classes else f"number {columns[0]}"
    others = f", nor are {len(columns) - 1:,} others" if len(columns) > 1 else ""
    return (
        f"class {name} is 1 or -1 on the {split} images, and never 0{others}; -1 is unknown and does not count: "
        "write 0 where a class is absent (labels[labels == -1] = 0)"
    )


@dataclass(frozen=True)
class Context:
    """Inputs of a benchmark beside features.

    Args:
        side: network that is measured.
        network: module in evaluation mode, from normalised images [B, C, H, W] to [B, D]; a `Backbone` but for pixels.
        checkpoint: measured checkpoint; `.config` are its run's settings, `.uri` is where it lies.
        data: settings of the images; gives size, channels and normalisation.
        images: training and test split by `train` and `test`, as far as there are any.
        train, test: features, of a benchmark that asked for some (`Benchmark.stages`).
        num_classes: labels lie in [0, num_classes).
        seed: seed of all random numbers.
        folder: folder of this benchmark and this side, for files that outlast a start.
    """

    side: Side
    network: nn.Module
    checkpoint: "Checkpoint"
    data: "DataConfig"
    images: Mapping[str, "Split"]
    train: FeatureSet | None
    test: FeatureSet | None
    num_classes: int
    seed: int
    folder: "Folder"


@dataclass(frozen=True)
class Outlook:
    """What a benchmark takes.

    Args:
        what: the work, in words.
        seconds: estimated seconds of one core.
        cores: largest number of cores that it uses; None: all.
        advice: how to take less.
    """

    what: str
    seconds: float
    cores: int | None
    advice: str

    def line(self, name: str, num_networks: int, cores: float) -> str:
        """Return a line for people; empty for less than half a minute."""
        used = max(1.0, min(cores, float(self.cores or cores)))
        seconds = self.seconds * num_networks / used
        if seconds < WORTH_TELLING_S:
            return ""
        each = f" for each of {num_networks} networks" if num_networks > 1 else ""
        on_cores = counted(round(used), "core")
        return f"{name}: {self.what}{each}, about {duration(seconds)} on {on_cores}; {self.advice}"


WORTH_TELLING_S = 30.0


def settings_from(config: Any, kind: type[SettingsT], **others: Any) -> SettingsT:
    """Return settings of another kind, with those of a benchmark that have the same name.

    Args:
        kind: dataclass of the settings.
        others: fields that have other values, or other names.
    """
    own_names = {one.name for one in fields(config)} - {"name", *others}
    names = [one.name for one in fields(kind) if one.name in own_names]  # type: ignore[arg-type]
    return kind(**{name: getattr(config, name) for name in names}, **others)


class Benchmark(ABC):
    """A measurement of a backbone; keeps no state between calls.

    A subclass nests a frozen `Config` and takes it as its only argument. One on features overrides `run`; one that
    needs the network itself, because it trains or looks at images in its own way, overrides `measure`.
    """

    Config: ClassVar[type[BenchmarkConfig]]
    protocol: ClassVar[str] = ""
    """The protocol in a line, and its paper."""
    cost: ClassVar[str] = ""
    """The cost in a line, such as `seconds on features` or `a training of 100 epochs`."""
    trains: ClassVar[bool] = False
    """Whether it starts workers of its own (Ray Train, actors): it then runs on the driver, not inside a task."""

    own_images: ClassVar[bool] = False
    """Whether it always brings images of its own, which its settings name."""
    in_names: ClassVar[tuple[str, ...]] = ()
    """Settings that the names of the metrics carry, such as the k of `k20/top1`: numbers of other values of these have
    other names, so that all other settings alone tell whether two numbers of one name can be compared."""
    takes_stages: ClassVar[bool] = False
    """Whether its setting `stages` names stages that are measured beside the features."""
    streams_training: ClassVar[bool] = False
    """Whether `run` goes through training features in chunks, so that they may be on the CPU while the test features
    are on a GPU. Others get both on one device."""

    def __init__(self, config: Any) -> None:
        check_ranges(config)
        self.config = config

    @classmethod
    def needs(cls, config: Any) -> Needs:
        """Return the images and labels that it needs. Default: training and test images with one label each, or none of
        a benchmark with `own_images`."""
        return Needs(labels="none", test=False, own_images=True) if cls.own_images else Needs()

    @classmethod
    def stages(cls, config: Any) -> tuple[str, ...]:
        """Return the features that `run` gets: `FEATURES` for the output of the network's `forward`, and names of
        stages, each of which is pooled to its mean over all places. Default: `FEATURES` alone; none of one that trains
        or has images of its own, for `measure` then looks at images anew."""
        if cls.trains or cls.needs(config).own_images:
            return ()
        return (FEATURES, *dict.fromkeys(config.stages if cls.takes_stages else ()))

    @classmethod
    def fit_to(cls, config: Any, images: Labelled) -> tuple[Any, list[str]]:
        """Fit the settings to the images, on the driver before anything is trained.

        Returns:
            The settings without the parts that are impossible, and a line on each of those with the number that is in
            the way. Default: all is possible.

        Raises:
            ConfigError: if nothing would be left; the message names the number and the next step.
        """
        return config, []

    @classmethod  # noqa: B027 - most allow all
    def check(cls, config: Any, checkpoint: "Checkpoint") -> None:
        """Refuse settings that a checkpoint does not allow, before anything is measured. Default: all are allowed,
        apart from `stages` that are not there, which are refused for every benchmark.

        Raises:
            ConfigError: with the allowed values.
        """

    @classmethod
    def metrics(cls, config: Any, num_classes: int) -> list[str]:
        """Return the names of the metrics for these settings."""
        raise NotImplementedError(f"{cls.__name__} does not tell the names of its metrics; override metrics()")

    @classmethod
    def outlook(cls, config: Any, num_rows: int, width: int, num_classes: int) -> "Outlook | None":
        """Return what it takes to measure one network, where that is long enough to be told before it begins.

        Args:
            num_rows: number of training images.
            width: number of features of each, at all of its `stages` together.
            num_classes: number of classes.
        """
        return None

    def measure(self, context: Context) -> Findings | Sequence[Metric]:
        """Measure one network; see `run`. Default: `run` on the features."""
        train, test = context.train, context.test
        assert train is not None
        assert test is not None
        if not self.streams_training and train.features.device != test.features.device:
            train, test = train.to("cpu"), test.to("cpu")
        return self.run(train, test, context.num_classes, context.seed)

    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> Findings | Sequence[Metric]:
        """Measure features.

        Args:
            train: features to learn from.
            test: features to measure on, every row once.
            num_classes: labels lie in [0, num_classes).
            seed: seed of all random numbers.

        Returns:
            The numbers, each name once; accuracies in percent, 0 to 100. With more for the page as `Findings`.

        Raises:
            ValueError: if the sets do not allow the measurement; the message says why.
        """
        raise NotImplementedError(f"{type(self).__name__} measures nothing; override run() or measure()")
