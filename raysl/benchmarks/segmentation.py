"""Segmentation by a linear classifier of patches (DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 7.4)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.benchmarks.benchmark import Benchmark, Context, Findings, Labelled, Needs
from raysl.benchmarks.dense.crops import resized_short, slid, training_crop
from raysl.benchmarks.dense.maps import chosen_stages
from raysl.benchmarks.dense.masks import MaskSplit, mask_split
from raysl.benchmarks.dense.overlap import Overlap
from raysl.benchmarks.dense.segmenter import IMAGES, MASK, Segmenter
from raysl.benchmarks.dense.stream import DenseBatches
from raysl.benchmarks.dense.training import Course, forget, trained, version_of
from raysl.config.ranges import Count, Every, Interpolation, Length, Location, Side, Within
from raysl.config.schema import BenchmarkConfig, DataConfig
from raysl.data.batch import Batch
from raysl.data.order import rank_share
from raysl.errors import ConfigError
from raysl.optim.adamw import AdamW
from raysl.plan.plan import TrainPlan
from raysl.schedule import Duration
from raysl.storage.folder import Folder
from raysl.transforms.channels import network_input
from raysl.transforms.functional import resize
from raysl.transforms.random import SampleRandom

if TYPE_CHECKING:
    from raysl.checkpoint.backbone import Checkpoint

Crop = tuple[Tensor, Tensor, Tensor]


class Segmentation(Benchmark):
    """Mean intersection over union of a linear head on the maps of the frozen backbone.

    Metrics `miou`, `pixel_accuracy` and `class_accuracy`, in percent, over all pixels of the test images at the size of
    their labels; the figure `per_class` has the intersection over union of each class.
    """

    protocol = (
        "A 1x1 convolution behind batch normalisation on the frozen backbone's last map, scores resized bilinearly to "
        "the label; windows are slid over test images (DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 7.4)."
    )
    cost = "a training of a head for 40,000 updates of 16 images of 512 px, for a GPU; as much for each rival"
    trains = True

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of DINOv2's linear segmentation."""

        name: str = "segmentation"
        interpolation: Interpolation = "bilinear"
        """How images that are measured are resized; MMSegmentation has bilinear."""
        rivals: tuple[Literal["untrained"], ...] = ("untrained",)
        """What is measured beside the pre-trained backbone: the same one with initial weights."""
        path: Location | None = None
        """Folder or URI of the dataset: `VOCdevkit/VOC2012`, or `ADEChallengeData2016`."""
        layout: Literal["voc", "ade20k"] = "voc"
        """Layout of its folders, and with it the classes: 21 of VOC, or 150 of ADE20K."""
        train_set: str | None = None
        """Training images: a list in `ImageSets/Segmentation`, or a folder in `images`. Default: train, or training.
        `trainaug` are the 10,582 images of VOC with the masks of SBD (Hariharan et al. 2011): the list of that name, or
        else the lists `train` and `aug` that MMSegmentation writes, with the masks in `SegmentationClassAug`."""
        test_set: str | None = None
        """Test images likewise. Default: val, or validation."""
        masks: str | None = None
        """Folder of the masks, also of the test images. Default: SegmentationClass, of trainaug SegmentationClassAug,
        or annotations/{set}."""
        limit: Count | None = None
        """Use only so many images of each set, an even share; default: all."""
        stages: tuple[str, ...] = ()
        """Maps of the backbone that the head sees, side by side. Default: the last one; the paper's "+ms" has the last
        four blocks."""
        batch_norm: bool = True
        """Normalise the channels of the maps over the batch before the convolution, as the paper's code does."""
        short_side: Side = 512
        """Short side of an image in pixels; in training times a random factor from 0.5 to 2."""
        crop: Side | None = None
        """Side in pixels of training crops and of the windows that are slid over test images, two thirds of it from one
        to the next. Default: 512 or short_side, rounded down to a multiple of the patch."""
        max_class_share: Annotated[float, Within(0, 1, above=True)] = 0.75
        """A training crop in which one class has as large a share of the pixels is drawn again, ten times at most;
        `cat_max_ratio` of MMSegmentation. 1 takes every crop."""
        distort: bool = True
        """Change brightness, contrast, saturation and hue of training crops; `PhotoMetricDistortion` of
        MMSegmentation."""
        iterations: Count = 40_000
        """Updates of the head."""
        batch_size: Count = 16
        """Crops of an update."""
        lr: Annotated[float, Within(0, 1e6)] = 1e-3
        """Peak learning rate of AdamW for a batch of 16; it grows linearly with the batch, and falls along a straight
        line after the warm-up."""
        weight_decay: Annotated[float, Within(0, 1000)] = 1e-4
        """Weight decay of AdamW."""
        warmup: Length = field(default=Duration.parse("1500st"))
        """Linear rise of the learning rate."""
        precision: Literal["auto", "fp32", "bf16"] = "auto"
        """Autocast of the forward pass in training; auto is bf16 on GPUs and fp32 on CPUs."""
        workers: Annotated[int, Within(1, 65_536)] | None = None
        """Training processes, which share the batch. Default: as many as the run had."""
        checkpoint_every: Every = field(default=Duration.parse("1000st"))
        """How often a checkpoint is saved, from which an interrupted training goes on."""

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """See `Benchmark.needs`: it has its own images."""
        return Needs(labels="none", test=False, own_images=True)

    @classmethod
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """See `Benchmark.fit_to`; the dataset has to be there, and to fill a batch."""
        if config.crop is not None and config.crop > config.short_side:
            raise ConfigError(
                f"segmentation slides windows of crop={config.crop} over images of short_side={config.short_side}; "
                f"give crop={config.short_side} or less"
            )
        split = _split(config, is_train=True)
        _split(config, is_train=False)
        if len(split) < config.batch_size:
            raise ConfigError(
                f"{len(split)} training images do not fill a batch of {config.batch_size}; set a smaller batch_size"
            )
        if config.workers is not None and config.batch_size < config.workers:
            raise ConfigError(f"batch_size={config.batch_size} leaves some of {config.workers} workers without images")
        return config, []

    @classmethod
    def check(cls, config: Config, checkpoint: "Checkpoint") -> None:
        """See `Benchmark.check`; the stages have to be maps of the backbone."""
        chosen_stages(checkpoint.backbone, config.stages)

    @classmethod
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        """See `Benchmark.metrics`."""
        return ["miou", "pixel_accuracy", "class_accuracy"]

    def measure(self, context: Context) -> Findings:
        """See `Benchmark.measure`. It trains on workers of Ray Train."""
        from raysl.benchmarks.dense.workers import on_workers

        return on_workers(self.measure_on, context, self.config.workers)

    def measure_on(self, context: Context, device: torch.device) -> Findings:
        """Measure in this process, as one of the ranks that are there.

        Args:
            context: what the benchmark was handed.
            device: where to train.

        Raises:
            ConfigError: if a file cannot be read, or the network cannot be trained so.
            NonFiniteLoss: if the loss stops being finite.
        """
        train, test = (_split(self.config, is_train) for is_train in (True, False))
        crop = self._crop(context)
        course = self._course(train)
        make = partial(_crop_of, train, self.config, crop)
        collate = partial(_collate, data=context.data)

        def batches(plan: TrainPlan) -> DenseBatches[Crop]:
            return DenseBatches(plan, len(train), train.fingerprint, make, collate, device)

        method = trained(course, context, device, batches)
        assert isinstance(method, Segmenter)
        overlap = Overlap(len(test.classes))
        for number in rank_share(len(test), dist.rank(), dist.world()):
            image, mask = test.sample(number)
            overlap.add(self._predicted(method, image, mask, crop, context.data, device), mask.to(device))
        overlap.gather()
        forget(course, context)
        ious = dict(zip(test.classes, overlap.ious().tolist(), strict=True))
        shown = {name: value for name, value in ious.items() if value == value}  # a class that is nowhere has none
        return Findings(overlap.metrics(context.seed), figures={"per_class": {"Intersection over union, %": shown}})

    def _crop(self, context: Context) -> int:
        """Side of crops and windows in pixels.

        Raises:
            ConfigError: if the backbone takes no images of that side.
        """
        side: int = self.config.crop or min(512, self.config.short_side)
        backbone = context.checkpoint.backbone
        patch = backbone.patch_size or 1
        if self.config.crop is None:
            side = max(1, side // patch) * patch
        if side % patch:
            near = max(1, side // patch) * patch
            raise ConfigError(f"crop={side} is no multiple of the backbone's patch_size={patch}; try crop={near}")
        type(backbone).check_side(backbone.config, side)
        return side

    def _course(self, train: MaskSplit) -> Course:
        config = self.config
        return Course(
            method=Segmenter,
            settings=Segmenter.Config(stages=config.stages, batch_norm=config.batch_norm),
            optim=AdamW.Config(
                lr=config.lr,
                lr_batch_size=16,
                schedule="linear",
                warmup=config.warmup,
                weight_decay=config.weight_decay,
            ),
            iterations=config.iterations,
            batch_size=config.batch_size,
            precision=config.precision,
            clip_grad=None,
            checkpoint_every=config.checkpoint_every,
            num_samples=len(train),
            num_classes=len(train.classes),
            fingerprint=(
                f"{train.fingerprint}-{config.short_side}-{config.crop}-{config.max_class_share:g}-{config.distort}"
            ),
            version=version_of(self),
        )

    def _predicted(
        self, method: Segmenter, image: Tensor, mask: Tensor, crop: int, data: DataConfig, device: torch.device
    ) -> Tensor:
        """Classes of an image's pixels, int64 [H, W]."""
        height, width = resized_short(image.shape[1], image.shape[2], self.config.short_side)
        small = network_input(
            resize(image, height, width, data.eval_interpolation).to(device), data.mean, data.std, data.channels
        )
        scores = slid(method.scores, small, crop, max(1, 2 * crop // 3))  # [K, h, w]
        full = F.interpolate(scores[None], size=mask.shape, mode="bilinear", align_corners=False)
        return full[0].argmax(dim=0)


def _split(config: Segmentation.Config, is_train: bool) -> MaskSplit:
    """The training or test images of the settings.

    Raises:
        ConfigError: if there is no path, or the dataset is not there.
    """
    if config.path is None:
        raise ConfigError("segmentation needs path=, the folder of a dataset as VOCdevkit/VOC2012 or ADE20K")
    chosen = config.train_set if is_train else config.test_set
    return mask_split(config.layout, Folder(config.path), is_train, chosen, config.masks).part(config.limit)


def _crop_of(split: MaskSplit, config: Segmentation.Config, crop: int, place: int, random: SampleRandom) -> Crop:
    """The training crop of an image, see `training_crop`."""
    image, mask = split.sample(place)
    return training_crop(image, mask, config.short_side, crop, random, config.max_class_share, config.distort)


def _collate(samples: Sequence[Crop], places: Tensor, data: DataConfig) -> Batch:
    """A batch of training crops; beyond an image is what its mean colour is normalised to."""
    images, masks, are_images = (torch.stack(values) for values in zip(*samples, strict=True))
    normal = network_input(images, data.mean, data.std, data.channels) * are_images[:, None]
    return Batch({IMAGES: normal[:, None]}, places, torch.full((len(places),), -1), extras={MASK: masks})
