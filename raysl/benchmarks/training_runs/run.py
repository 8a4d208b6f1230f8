"""Runs of benchmarks that train, which begin with a checkpoint's backbone.

It is a run like any other, in the benchmark's folder: one that was interrupted goes on at the next start.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from typing_extensions import override

from raysl.benchmarks.benchmark import Benchmark, ConfigError, Context, Labelled, settings_from
from raysl.benchmarks.suite.digests import code_of, content_of
from raysl.benchmarks.training_runs.held_out_scores import HeldOutScores, Probe
from raysl.components import resolve
from raysl.config.dump import plain
from raysl.config.layers import parse_overrides
from raysl.config.linked import backbone_size_overrides
from raysl.config.load import apply_overrides
from raysl.config.ranges import Amount, Area, Every, Length, Momentum, Share, Within
from raysl.config.schema import (
    BackboneConfig,
    BenchmarkConfig,
    DataConfig,
    RunConfig,
    TrainConfig,
    is_may_change,
    limit_workers,
)
from raysl.data.split import Split
from raysl.optim.sgd import SGD
from raysl.redact import bare_tree
from raysl.schedule import Duration
from raysl.transforms.recipes import Crops

MACHINE = (
    "device", "threads", "cpus_per_worker", "gpus_per_worker", "max_failures", "precision", "fp32_products",
    "channels_last", "deterministic", "parallel", "sync_bn", "recompute",
)  # fmt: skip
"""Settings in `train` that are those of the checkpoint's run: how its machines compute, not what."""
SAVED = Duration.parse("5%")
_OWN = r"(method|backbone|data|train)\.(?!name=|weights=)|optim[.=]"


@dataclass(frozen=True, kw_only=True)
class ProbeViews:
    """Views of training images: random crop, flip and colours. Defaults are those of Chen et al. 2020 (appendix
    B.5)."""

    min_scale: Area = 0.08
    """Smallest area of the random crop as a share of the image."""
    flip: Share = 0.5
    """Probability of a horizontal flip; 0 where left and right differ, as on digits."""
    jitter_p: Share = 0.0
    """Probability of the colour jitter."""
    jitter: tuple[Amount, Amount, Amount, Annotated[float, Within(0, 0.5)]] = (0.4, 0.4, 0.4, 0.1)
    """Colour jitter of brightness, contrast, saturation and hue."""
    grayscale_p: Share = 0.0
    """Probability of dropping the colour."""

    def crops(self, size: int) -> Crops:
        """Return the recipe of one view of `size` pixels."""
        return Crops(size=size, num=1, blur_p=0.0, **{name: getattr(self, name) for name in plain(self)})


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(BenchmarkConfig):
    """Settings of a benchmark that trains. Images, network and machines are those of the run."""

    rivals: tuple[Literal["untrained"], ...] = ()
    """Rivals of the pre-trained backbone: the same one from its initial weights, for as long again."""
    epochs: Annotated[int, Within(1, 1_000_000)] = 90
    """Passes over the training images."""
    batch_size: Annotated[int, Within(2, 10_000_000)] = 256
    """Images in a global batch, over all workers; all images where there are fewer."""
    lr: Annotated[float, Within(0, 1e6)] = 0.1
    """Peak learning rate for 256 images; it grows with the batch."""
    momentum: Momentum = 0.9
    """Momentum of SGD."""
    nesterov: bool = True
    """Take the gradient where the momentum leads, if there is any."""
    weight_decay: Annotated[float, Within(0, 1000)] = 0.0
    """L2 penalty on the weights, those of normalisation and biases apart."""
    decay_biases: bool = False
    """Put the penalty on biases as well, as VISSL's linear evaluation and fine-tuning do (`regularize_bias`). Default:
    not, as SimCLR. Scales and biases of normalisation have none in either case."""
    decay_at: tuple[Length, ...] = ()
    """Points of the run at which the learning rate is divided by ten: [30ep, 60ep]. Default: it goes down to 0 along
    half a cosine."""
    warmup: Length = field(default=Duration.parse("0ep"))
    """Linear rise to the peak."""
    views: ProbeViews = ProbeViews()
    """Views of the training images; held-out ones are always seen by their centre crop."""
    workers: Annotated[int, Within(1, 65_536)] | None = None
    """Training processes. Default: as many as the run had."""
    eval_every: Every = field(default=Duration.parse("1ep"))
    """How often the held-out images are looked at on the way, which changes no result but the best one so far."""
    keep_checkpoints: bool = False
    """Keep the newest checkpoints of the training in the benchmark's folder."""
    settings: tuple[str, ...] = ()
    """Further settings of the training run, over all others: [optim=lars, optim.lr=0.4, train.precision=fp32,
    method.views.affine_p=0.9, "backbone.freeze=[res3]"]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_overrides(self.settings)
        if wrong := [word for word in self.settings if not re.match(_OWN, word)]:
            raise ValueError(
                f"settings: {wrong[0]!r} is not a setting of a part of the training run; those begin with optim, "
                "train., method., backbone. or data., and the method and its weights stay"
            )


class TrainingBenchmark(Benchmark):
    """Base of benchmarks that train."""

    trains = True

    @classmethod
    @override
    def fit_to(cls, config: Any, images: Labelled) -> tuple[Any, list[str]]:
        """A batch has no more images than there are."""
        if images.num_train < 2 or images.num_test < 1:
            raise ConfigError(
                f"it trains on batches of 2 images or more and counts on 1 or more; there are {images.num_train} "
                f"training and {images.num_test} test images"
            )
        if config.batch_size <= images.num_train:
            return config, []
        line = f"batch_size={config.batch_size} is more than the {images.num_train:,} training images, which are one"
        return replace(config, batch_size=images.num_train), [f"{line} batch then"]


def training_run(
    context: Context,
    config: TrainingConfig,
    *,
    data: DataConfig | None = None,
    num_train: int | None = None,
    seed: int | None = None,
    freeze: bool = False,
    layer_decay: float | None = None,
    **method: Any,
) -> RunConfig:
    """Return the settings of the run that trains a classifier on a network.

    Args:
        data: the training images; default: those of the benchmark.
        seed: seed of the order and the first classifier; default: that of the benchmark.
        **method: settings of `Probe`.

    Returns:
        The run. Its name follows from all that its result depends on, so that it is the same one at the next start,
        and another one for other settings, images or weights.
    """
    measured, data = context.checkpoint.config, data or context.data
    batch_size = min(config.batch_size, num_train or context.images["train"].num_samples)
    weights, backbone = start_of(context)
    callback = HeldOutScores.Config(data=context.data, every=config.eval_every)
    run = RunConfig(
        name=config.name,
        storage=context.folder.uri,
        seed=context.seed if seed is None else seed,
        method=Probe.Config(weights=weights, views=config.views.crops(context.data.image_size), **method),
        backbone=replace(backbone, freeze=("all",) if freeze else (), adapters=None),
        # the lanes of the pre-training may be more than this batch has images
        data=replace(data, lanes=None),
        optim=settings_from(
            config,
            SGD.Config,
            nesterov=config.nesterov and config.momentum > 0,
            exclude_bias=False if config.decay_biases else None,
            schedule="steps" if config.decay_at else "cosine",
            layer_decay=layer_decay,
        ),
        train=TrainConfig(
            epochs=config.epochs,
            batch_size=batch_size,
            workers=limit_workers(config.workers or measured.train.workers, batch_size // 2),
            uneven=True,
            checkpoint_every=SAVED,
            **{name: getattr(measured.train, name) for name in MACHINE},
            # classifiers mix images in their step, which cannot be compiled as a whole
            compile=bool(measured.train.compile),
        ),
        callbacks={"held_out": callback},
    )
    run = apply_overrides(run, [*backbone_size_overrides(run), *config.settings])
    if layer_decay is not None and run.optim.layer_decay is None:  # the settings name another optimizer
        run = replace(run, optim=replace(run.optim, layer_decay=layer_decay))
    return named_run(context, run, config, context.images)


def start_of(context: Context) -> tuple[str | None, BackboneConfig]:
    """Return the weights that a training on a context's network begins with, None for random ones, and its settings."""
    backbone = context.checkpoint.config.backbone
    return (context.checkpoint.uri, backbone) if context.side == "trained" else (None, backbone.at_random())


def named_run(context: Context, run: RunConfig, config: BenchmarkConfig, images: Mapping[str, Split]) -> RunConfig:
    """Return the run of a benchmark under a name that follows from everything that its result depends on: the same one
    at the next start, and another one for other settings, images, weights or code.
    """
    states = [images[split].state() for split in ("train", "test")]
    readers = [reader for split in images.values() for reader in split.readers()]
    callbacks = [resolve("callback", callback.name) for callback in run.callbacks.values()]
    others = (type(context.network), *callbacks, resolve("optimizer", run.optim.name), *readers)
    code = code_of(resolve("benchmark", config.name), *others)
    locations, every = content_of(config), str(getattr(config, "eval_every", ""))
    basis = [_lasting(run), run.train.epochs, every, states, locations, context.checkpoint.digest, code]
    digest = hashlib.sha256(json.dumps(bare_tree(basis), sort_keys=True).encode()).hexdigest()[:8]
    in_folders = re.sub(r"\W+", "-", config.name.rpartition(":")[2])
    return replace(run, name=f"{in_folders}_{digest}")


def machine_of(train: TrainConfig, workers: int | tuple[int, int]) -> dict[str, Any]:
    """Return the settings of a run's machines that change nothing but the last bits of a result on as many of them.

    Args:
        workers: processes of the training; several of them have a GPU each.
    """
    settings = {name: getattr(train, name) for name in ("device", "threads", "cpus_per_worker", "max_failures")}
    return settings | {"gpus_per_worker": train.gpus_per_worker if workers == 1 else 1.0}


def _lasting(node: Any) -> Any:
    """Return plain settings without those that do not change the result."""
    if not dataclasses.is_dataclass(node) or isinstance(node, Duration):
        return plain(node)
    names = [
        setting.name for setting in dataclasses.fields(node) if setting.init and not is_may_change(setting.metadata)
    ]
    return {name: _lasting(getattr(node, name)) for name in names}
