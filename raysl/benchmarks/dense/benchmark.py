"""The base of detection, segmentation and depth: benchmarks that train on the targets of images of their own.

`TargetMethod` is the base of what they train; a callback measures it on the test images.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from raysl import distributed as dist
from raysl.benchmarks.benchmark import Context, Findings, Labelled, settings_from
from raysl.benchmarks.dense.dataset_files import TargetSource
from raysl.benchmarks.suite.settings import OF_THE_NETWORK
from raysl.benchmarks.training_runs.held_out_scores import HeldOut
from raysl.benchmarks.training_runs.run import TrainingBenchmark, machine_of, named_run, start_of
from raysl.benchmarks.training_runs.trained import held_out_results
from raysl.config.ranges import Count, Interpolation, Within
from raysl.config.schema import (
    BenchmarkConfig,
    CallbackConfig,
    DataConfig,
    MethodConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    limit_workers,
)
from raysl.data.order import rank_share
from raysl.data.stream.targets import TargetRecipe
from raysl.errors import ConfigError
from raysl.methods.method import Method, Setup, Step, StepOutput
from raysl.schedule import Duration
from raysl.train.callbacks.callback import Run
from raysl.transforms.view_recipe import ViewRecipe, evaluation_recipe


class TargetMethod(Method):
    """A method that is trained on the targets of images and measured on those of other images."""

    @classmethod
    @override
    def views(cls, setup: Setup) -> ViewRecipe:
        data = setup.config.data
        return evaluation_recipe(data.image_size, data.eval_resize, data.eval_interpolation)

    @classmethod
    @abstractmethod
    @override
    def targets(cls, setup: Setup) -> TargetRecipe:
        """Return how images with their targets become training batches."""

    @abstractmethod
    def measure(self, split: Any, number: int) -> dict[str, Tensor]:
        """Compare an image of a split with its target, in evaluation mode.

        Returns:
            Tensors [n, ...] on the CPU, which those of other images are appended to.
        """


class HeldOutTargets(HeldOut):
    """Measures a `TargetMethod` on the test images after the last step, and stores the result with the checkpoint.

    Ranks share the images. `held_out.safetensors` has what `TargetMethod.measure` returns, in the order of the images.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """The test images."""

        name: str = "raysl.benchmarks.dense.benchmark:HeldOutTargets"
        data: DataConfig
        """Settings of the dataset."""

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if step.index != step.total:
            return
        method = run.state.method
        assert isinstance(method, TargetMethod)
        was_training = method.training
        method.eval()
        share = rank_share(self.test.num_samples, dist.rank(), dist.world())
        with torch.no_grad():
            local = [method.measure(self.test, number) for number in share]
        method.train(was_training)
        # ranks measure consecutive images, so their lists in rank order have the order of the split
        images = [image for part in dist.gather_objects(local) for image in part]
        self.results = {name: torch.cat([image[name] for image in images]) for name in images[0]}


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
        data = replace(self.data(config), **{name: getattr(context.data, name) for name in OF_THE_NETWORK})
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
