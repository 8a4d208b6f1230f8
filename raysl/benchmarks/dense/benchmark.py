"""The base of detection, segmentation and depth: benchmarks that train on the targets of images of their own."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.benchmark import Context, Findings, Labelled, settings_from
from raysl.benchmarks.dense.method import HeldOutTargets
from raysl.benchmarks.dense.sources import TargetSource
from raysl.benchmarks.training_runs.run import TrainingBenchmark, machine_of, named_run, start_of
from raysl.benchmarks.training_runs.trained import held_out_results
from raysl.config.ranges import Count, Interpolation, Within
from raysl.config.schema import (
    BenchmarkConfig,
    DataConfig,
    MethodConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    limit_workers,
)
from raysl.errors import ConfigError
from raysl.schedule import Duration

SEEN = ("image_size", "eval_resize", "eval_interpolation", "mean", "std", "channels", "value_range")
"""Settings of the images that those of the measured run give."""


@dataclass(frozen=True, kw_only=True)
class TargetConfig(BenchmarkConfig):
    """Settings that they share."""

    interpolation: Interpolation = "bilinear"
    """How images that are measured are resized; Detectron2 and MMSegmentation have bilinear."""
    limit: Count | None = None
    """Number of images of each set that are used, an even share; default: all."""
    batch_size: Count = 16
    """Images of an update."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Autocast of the forward pass in training; auto is bf16 on GPUs and fp32 on CPUs."""
    workers: Annotated[int, Within(1, 65_536)] | None = None
    """Training processes, which share the batch. Default: as many as the run had."""


@dataclass(frozen=True)
class Training:
    """What is trained, and for how long."""

    method: MethodConfig
    optim: OptimConfig
    iterations: int
    checkpoint_every: Duration
    clip_grad: float | None = None


class TargetBenchmark(TrainingBenchmark):
    """A benchmark that trains a method on images with targets, in a run of its own, and measures it on others."""

    own_images = True
    Source: ClassVar[type[TargetSource]]
    trained_on: ClassVar[str] = "training images"
    """Name of the training images in messages."""
    without_path: ClassVar[str]
    """Message where the folder of the dataset is missing."""

    @classmethod
    def data(cls, config: Any) -> DataConfig:
        """Return the settings of the source."""
        if config.path is None:
            raise ConfigError(cls.without_path)
        return settings_from(config, cls.Source.Config)

    @classmethod
    @override
    def fit_to(cls, config: Any, images: Labelled) -> tuple[Any, list[str]]:
        source = cls.Source(cls.data(config))
        num, _ = source.required("train").num_samples, source.required("test")
        if num < config.batch_size:
            raise ConfigError(
                f"{num} {cls.trained_on} do not fill a batch of {config.batch_size}; set a smaller batch_size"
            )
        if config.workers is not None and config.batch_size < config.workers:
            raise ConfigError(f"batch_size={config.batch_size} leaves some of {config.workers} workers without images")
        return config, []

    @override
    def measure(self, context: Context) -> Findings:
        run = self.run_of(context)
        return self.findings(held_out_results(run), self.Source(run.data), context.seed)

    @abstractmethod
    def training(self, context: Context) -> Training:
        """Return what is trained on the network of a context."""

    @abstractmethod
    def findings(self, results: Mapping[str, Tensor], source: TargetSource, seed: int) -> Findings:
        """Compute the numbers from what `TargetMethod.measure` returned for all test images."""

    def run_of(self, context: Context) -> RunConfig:
        """Return the settings of the training run, see `named_run`."""
        config, measured, training = self.config, context.checkpoint.config, self.training(context)
        data = replace(self.data(config), **{name: getattr(context.data, name) for name in SEEN})
        source = self.Source(data)
        images = {name: source.required(name) for name in ("train", "test")}
        if others := sorted(set(images["train"].classes) ^ set(images["test"].classes)):
            raise ConfigError(f"training and test images have other classes: {', '.join(others[:5])}")
        workers = limit_workers(config.workers or measured.train.workers, config.batch_size)
        epoch_len = max(1, images["train"].num_samples // config.batch_size)
        weights, backbone = start_of(context)
        run = RunConfig(
            name=config.name,
            storage=context.folder.uri,
            seed=context.seed,
            method=replace(training.method, weights=weights),
            # the method decides what is frozen here; adapters of the pre-training are merged into the weights
            backbone=replace(backbone, freeze=(), adapters=None),
            data=data,
            optim=training.optim,
            train=TrainConfig(
                # as many epochs as hold all updates; `end` stops inside the last one
                epochs=-(-training.iterations // epoch_len),
                end=Duration(training.iterations, "st"),
                batch_size=config.batch_size,
                workers=workers,
                uneven=True,
                precision=config.precision,
                checkpoint_every=training.checkpoint_every,
                clip_grad=training.clip_grad,
                log_every=Duration(1, "%"),
                **machine_of(measured.train, workers),
            ),
            callbacks={"held_out": HeldOutTargets.Config(data=data)},
        )
        return named_run(context, run, config, images)
