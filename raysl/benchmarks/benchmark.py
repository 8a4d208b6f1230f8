"""The base class of benchmarks, their inputs, and the other names that the file of a benchmark imports."""

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
        labels: labels of each image: exactly `one`, one or several (`any`), or `none`.
        test: whether held-out images are needed.
        own_images: whether the benchmark brings images of its own, which its settings name.

    >>> Needs(labels="none", test=False).labels
    'none'
    """

    labels: Literal["one", "any", "none"] = "one"
    test: bool = True
    own_images: bool = False


@dataclass(frozen=True)
class Labelled:
    """Facts about labelled images that are known before features are extracted.

    Args:
        num_train, num_test: numbers of images.
        classes: names of the classes, or empty without labels; labels are in [0, number of classes).
        counts: number of training images of each class, int64 [K]; None if counting them would take long.
        num_validation: number of published validation images, which are the last training images.
        is_multilabel: whether an image has a label for each class.

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
        """Class with the fewest training images; a number that no image has counts as a class only if multi-label."""
        if self.counts is None:
            return None
        counts = self.counts if self.is_multilabel else np.where(self.counts > 0, self.counts, self.num_train + 1)
        return int(counts.argmin())


@dataclass
class FeatureSet:
    """Features and labels of a split.

    Raises:
        ValueError: if the shapes of features and labels are not those below.

    >>> FeatureSet(torch.randn(4, 8), torch.tensor([0, 1, 0, 1])).features.shape
    torch.Size([4, 8])
    """

    features: Tensor
    """float [N, D]; may be mapped from a disk, so go through it in chunks."""
    labels: Tensor
    """int64 [N], -1 for unlabelled; multi-label: [N, K] of 1 present, 0 absent and -1 ignore."""
    stages: Mapping[str, Tensor] = field(default_factory=dict)
    """float [N, D] of further stages, by the names that `Benchmark.stages` returned; empty for raw pixels."""
    num_validation: int = 0
    """Number of rows at the end that are published validation images; settings may be chosen on them."""

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
        """Refuse features that are not finite, or so large that a row's length in float32 is not."""
        chunks = torch.split(self.features, CHUNK_ROWS)
        if num_bad := sum(int((~chunk.float().norm(dim=1).isfinite()).sum()) for chunk in chunks):
            raise ConfigError(
                f"{num_bad} of {len(self.features)} {split} rows have features that are not finite, or beyond 1e19"
            )


CHUNK_ROWS = 4096


def missing_negatives(labels: np.ndarray, split: str, classes: Sequence[str] = ()) -> str:
    """Find a class that is 1 or -1 (unknown) and never 0: without negative images it cannot be measured.

    In tables that write -1 for absent, such as CelebA's, all classes are like that.

    Args:
        labels: int [N, K] of 1 present, 0 absent and -1 unknown.
        split: name of the images, for the message.
        classes: names of the classes; default: their numbers.

    Returns:
        The reason to refuse the labels; empty if each class that has a 1 and a -1 has a 0 too.

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
    """Inputs of a benchmark.

    Args:
        side: name of the network that is measured.
        network: module in evaluation mode, from normalised images [B, C, H, W] to [B, D]; a `Backbone` except for
            pixels.
        checkpoint: measured checkpoint; `.config` has its run's settings, `.uri` its address.
        data: settings of the images, with size, channels and normalisation.
        images: existing splits, by the names `train` and `test`.
        train, test: features; None unless the benchmark requests some (`Benchmark.stages`).
        num_classes: number of classes; labels are in [0, num_classes).
        seed: seed of all random numbers.
        folder: folder of this benchmark and network, for files that a later start reads.
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
    """Estimated cost of a benchmark.

    Args:
        what: description of the work.
        seconds: estimated seconds on one core.
        cores: largest number of cores that it uses; None for all.
        advice: advice on how to reduce the cost.
    """

    what: str
    seconds: float
    cores: int | None
    advice: str

    def line(self, name: str, num_networks: int, cores: float) -> str:
        """Return a line for the log; empty for less than LEAST_SHOWN_S seconds."""
        used = max(1.0, min(cores, float(self.cores or cores)))
        seconds = self.seconds * num_networks / used
        if seconds < LEAST_SHOWN_S:
            return ""
        each = f" for each of {num_networks} networks" if num_networks > 1 else ""
        on_cores = counted(round(used), "core")
        return f"{name}: {self.what}{each}, about {duration(seconds)} on {on_cores}; {self.advice}"


LEAST_SHOWN_S = 30.0


def settings_from(config: Any, kind: type[SettingsT], **others: Any) -> SettingsT:
    """Make settings of another dataclass; fields that the benchmark's settings also have are copied.

    Args:
        kind: dataclass of the new settings.
        others: values of further fields, or of fields that are not copied.
    """
    own_names = {one.name for one in fields(config)} - {"name", *others}
    names = [one.name for one in fields(kind) if one.name in own_names]  # type: ignore[arg-type]
    return kind(**{name: getattr(config, name) for name in names}, **others)


class Benchmark(ABC):
    """A measurement of a backbone; keeps no state between calls.

    A subclass nests a frozen `Config` and takes it as its only argument. A benchmark on features overrides `run`. A
    benchmark that needs the network itself, because it trains or reads images in its own way, overrides `measure`.
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
    """Settings that are part of the metrics' names, such as the k of `k20/top1`. All other settings are the protocol:
    numbers of the same name can be compared if they have the same protocol."""
    takes_stages: ClassVar[bool] = False
    """Whether it has a setting `stages`, which names stages to measure beside the features."""
    streams_training: ClassVar[bool] = False
    """Whether `run` reads training features in chunks, so that these may stay on the CPU while others are on a GPU.
    Other benchmarks get both on one device."""

    def __init__(self, config: Any) -> None:
        check_ranges(config)
        self.config = config

    @classmethod
    def needs(cls, config: Any) -> Needs:
        """Return the images and labels that it needs. Default: training and test images with one label each, but
        nothing for a benchmark with `own_images`."""
        return Needs(labels="none", test=False, own_images=True) if cls.own_images else Needs()

    @classmethod
    def stages(cls, config: Any) -> tuple[str, ...]:
        """Return the features that `run` gets: `FEATURES` for the output of the network's `forward`, and names of
        stages, each averaged over its positions. Default: `FEATURES` and the setting `stages`, but nothing for a
        benchmark that trains or brings images of its own, since its `measure` reads images itself."""
        if cls.trains or cls.needs(config).own_images:
            return ()
        return (FEATURES, *dict.fromkeys(config.stages if cls.takes_stages else ()))

    @classmethod
    def fit_to(cls, config: Any, images: Labelled) -> tuple[Any, list[str]]:
        """Fit the settings to the images, on the driver before anything is trained.

        Returns:
            The settings without impossible parts, and for each of these parts a line with the number that prevents it.
            Default: all settings are possible.

        Raises:
            ConfigError: if no part is possible; the message has the number and the next step.
        """
        return config, []

    @classmethod  # noqa: B027 - most allow all
    def check(cls, config: Any, checkpoint: "Checkpoint") -> None:
        """Refuse settings that a checkpoint does not allow, before anything is measured. Default: all are allowed.
        Unknown `stages` are refused for every benchmark, without this method.

        Raises:
            ConfigError: with the allowed values.
        """

    @classmethod
    def metrics(cls, config: Any, num_classes: int) -> list[str]:
        """Return the names of the metrics for these settings."""
        raise NotImplementedError(f"{cls.__name__} has no names of its metrics; override metrics()")

    @classmethod
    def outlook(cls, config: Any, num_rows: int, width: int, num_classes: int) -> "Outlook | None":
        """Return the estimated cost of measuring one network, or None for a benchmark that is always quick.

        Args:
            num_rows: number of training images.
            width: number of features of an image, in all of its `stages` together.
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
            train: features of the training images.
            test: features of the test images, one row for each.
            num_classes: number of classes; labels are in [0, num_classes).
            seed: seed of all random numbers.

        Returns:
            The metrics, with different names and accuracies in percent; or `Findings`, which add content for the page.

        Raises:
            ValueError: if these features and labels do not allow the measurement; the message says why.
        """
        raise NotImplementedError(f"{type(self).__name__} measures nothing; override run() or measure()")
