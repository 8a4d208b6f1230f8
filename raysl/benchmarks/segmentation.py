"""Segmentation by a linear classifier of patches (DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 7.4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.benchmark import ConfigError, Context, Findings, Labelled, settings_from
from raysl.benchmarks.dense.benchmark import TargetBenchmark, TargetConfig, Training
from raysl.benchmarks.dense.dataset_files import TargetSource
from raysl.benchmarks.dense.maps import chosen_stages
from raysl.benchmarks.dense.masks import MaskImages
from raysl.benchmarks.dense.overlap import class_ious, overlap_metrics
from raysl.benchmarks.dense.segmenter import Segmenter
from raysl.checkpoint.backbone import Checkpoint
from raysl.config.ranges import Count, Every, Length, Location, Side, Within
from raysl.nn.backbones.backbone import Backbone
from raysl.optim.adam import AdamW
from raysl.schedule import Duration


class Segmentation(TargetBenchmark):
    """Mean intersection over union of a linear head on the maps of the frozen backbone.

    Metrics `miou`, `pixel_accuracy` and `class_accuracy`, in percent, over all pixels of the test images at the size of
    their labels; the figure `per_class` has the intersection over union of each class.
    """

    protocol = (
        "A 1x1 convolution behind batch normalisation on the frozen backbone's last map, scores resized bilinearly to "
        "the label; windows are slid over test images (DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 7.4)."
    )
    cost = "a training of a head for 40,000 updates of 16 images of 512 px, for a GPU; as much for each rival"

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetConfig):
        """Settings of DINOv2's linear segmentation."""

        name: str = "segmentation"
        rivals: tuple[Literal["untrained"], ...] = ("untrained",)
        """Rivals of the pre-trained backbone: the same one with initial weights."""
        path: Location | None = None
        """Folder or URI of the dataset: `VOCdevkit/VOC2012`, `ADEChallengeData2016`, or `cityscapes`."""
        layout: Literal["voc", "ade20k", "cityscapes"] = "voc"
        """Layout of its folders, and with it the classes: 21 of VOC, 150 of ADE20K, or 19 of Cityscapes."""
        train_set: str | None = None
        """Training images: a list in `ImageSets/Segmentation`, or a folder in `images` or `leftImg8bit`. Default:
        train, of ADE20K training. `trainaug` are the 10,582 images of VOC with the masks of SBD (Hariharan et al.
        2011): the list of that name, or else the lists `train` and `aug` that MMSegmentation writes, with the masks in
        `SegmentationClassAug`."""
        test_set: str | None = None
        """Test images likewise. Default: val, of ADE20K validation."""
        masks: str | None = None
        """Folder of the masks, also of the test images. Default: SegmentationClass, of trainaug SegmentationClassAug,
        annotations/{set}, or gtFine."""
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
        lr: Annotated[float, Within(0, 1e6)] = 1e-3
        """Peak learning rate of AdamW for a batch of 16; it grows linearly with the batch, and falls along a straight
        line after the warm-up."""
        weight_decay: Annotated[float, Within(0, 1000)] = 1e-4
        """Weight decay of AdamW."""
        warmup: Length = field(default=Duration.parse("1500st"))
        """Linear rise of the learning rate."""
        checkpoint_every: Every = field(default=Duration.parse("1000st"))
        """How often a checkpoint is saved, from which an interrupted training goes on."""

    Source = MaskImages
    without_path = "segmentation needs path=, the folder of a dataset as VOCdevkit/VOC2012, ADE20K or Cityscapes"

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        if config.crop is not None and config.crop > config.short_side:
            raise ConfigError(
                f"segmentation slides windows of crop={config.crop} over images of short_side={config.short_side}; "
                f"give crop={config.short_side} or less"
            )
        return super().fit_to(config, images)

    @classmethod
    @override
    def check(cls, config: Config, checkpoint: Checkpoint) -> None:
        chosen_stages(checkpoint.backbone, config.stages)
        crop_side(config, checkpoint.backbone)

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return ["miou", "pixel_accuracy", "class_accuracy"]

    @override
    def training(self, context: Context) -> Training:
        config = self.config
        crop = crop_side(config, context.checkpoint.backbone)
        return Training(
            method=settings_from(config, Segmenter.Config, crop=crop),
            optim=settings_from(config, AdamW.Config, lr_batch_size=16, schedule="linear"),
            iterations=config.iterations,
            checkpoint_every=config.checkpoint_every,
        )

    @override
    def findings(self, results: Mapping[str, Tensor], source: TargetSource, seed: int) -> Findings:
        counts = results["counts"].double().numpy()
        ious = zip(source.required("test").classes, class_ious(counts).tolist(), strict=True)
        shown = {name: value for name, value in ious if value == value}  # a class without pixels has none
        return Findings(overlap_metrics(counts, seed), figures={"per_class": {"Intersection over union, %": shown}})


def crop_side(config: Segmentation.Config, backbone: Backbone) -> int:
    """Return the side of crops and windows in pixels.

    Raises:
        ConfigError: if the backbone takes no images of that side.
    """
    side: int = config.crop or min(512, config.short_side)
    patch = backbone.patch_size or 1
    fitting = max(1, side // patch) * patch
    if config.crop is None:
        side = fitting
    if side % patch:
        raise ConfigError(f"crop={side} is not a multiple of the backbone's patch_size={patch}; try crop={fitting}")
    type(backbone).check_side(backbone.config, side)
    return side
