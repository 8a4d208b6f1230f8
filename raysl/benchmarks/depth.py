"""Depth by a linear layer on frozen features (DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 7.4).

The head is "lin. 1" of table 11. Head and losses are those of DINOv2's `dinov2/eval/depth/`. Crops, areas and scores
are those of the Monocular Depth Estimation Toolbox that it runs in (`configs/_base_/datasets/nyu.py` and `kitti.py`,
`depth/datasets/nyu.py` and `kitti.py`, `depth/core/evaluation/metrics.py`), optimizer and schedule those of the
settings that DINOv2 publishes with its linear head of KITTI.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.benchmark import ConfigError, Context, Findings, Labelled, settings_from
from raysl.benchmarks.dense.benchmark import TargetBenchmark, TargetConfig, Training
from raysl.benchmarks.dense.dataset_files import TargetSource
from raysl.benchmarks.dense.depth_files import PROTOCOLS, DepthImages
from raysl.benchmarks.dense.depth_head import DepthHead, covered
from raysl.benchmarks.dense.depths import SCORE_NAMES, depth_metrics
from raysl.benchmarks.dense.maps import chosen_stages
from raysl.checkpoint.backbone import Checkpoint
from raysl.config.ranges import Amount, Count, Every, Length, Location, Place, Positive, Side, Within
from raysl.optim.adam import AdamW
from raysl.schedule import Duration

CLIPPED = 35.0
"""Largest norm of the gradient, in DINOv2's settings of its depth heads."""


class Depth(TargetBenchmark):
    """Errors of depths that a linear layer predicts from the maps of the frozen backbone.

    Metrics are means over test images, each over its pixels with a depth: `rmse` in metres, the relative error
    `abs_rel`, the error of the decimal logarithm `log10`, and the share of pixels within a factor of 1.25, 1.25 squared
    and cubed, `delta1` to `delta3`, in percent. Of the first three smaller is better.
    """

    protocol = (
        "A 1x1 convolution from the frozen backbone's last patch and class tokens to 256 bins of depth, whose mean is "
        "the prediction, on NYU Depth v2 or KITTI (DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 7.4)."
    )
    cost = "a training of a head for 38,400 updates of 16 images of 416x544 px, for a GPU; as much for each rival"

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetConfig):
        """Settings of DINOv2's linear depth."""

        name: str = "depth"
        rivals: tuple[Literal["untrained"], ...] = ("untrained",)
        """Rivals of the pre-trained backbone: the same one with initial weights."""
        path: Location | None = None
        """Folder or URI of the dataset, NYU Depth v2 in the layout of BTS, or KITTI. Required."""
        layout: Literal["nyu", "kitti"] = "nyu"
        """Layout of its folders, and with it the numbers that the field has for the dataset."""
        train_set: str | None = None
        """Training images: a folder in it, with a folder for each scene; or a list that ends in .txt. Default: sync, or
        kitti_eigen_train.txt."""
        test_set: str | None = None
        """Test images likewise. Default: official_splits/test, or kitti_eigen_test.txt."""
        stages: tuple[str, ...] = ()
        """Maps of the backbone that the head sees, side by side. Default: the last one; the paper's "lin. 4" has four
        blocks."""
        class_token: bool = True
        """Each patch sees the class token too; of networks without one the map is all."""
        bins: Annotated[int, Within(2, 65_536)] = 256
        """Depths from min_depth to max_depth, at equal distances."""
        min_depth: Positive = 1e-3
        """Smallest depth in metres."""
        max_depth: Positive | None = None
        """Largest depth in metres; test pixels beyond it do not count. Default: 10, or 80 of KITTI."""
        gradient_weight: Amount = 0.5
        """Weight of the gradient loss beside the scale-invariant one."""
        warm_up: Place = 100
        """First updates, in which the scale-invariant loss has no variance."""
        train_area: tuple[Place, Place, Place, Place] | Literal["all"] | None = None
        """Part of a training image that crops come from: first row, row after the last, and columns likewise; or all of
        it. Default: [45, 472, 43, 608] of NYU, which leaves out a white border, and all of KITTI's 352 lowest rows and
        1216 middle columns, which the field cuts out first."""
        test_area: tuple[Place, Place, Place, Place] | Literal["all"] | None = None
        """Part of a test image that is measured, or all. Default: [45, 471, 41, 601] of NYU, as Eigen et al. do, and
        [143, 349, 43, 1172] of what is cut out of KITTI, as Garg et al. do."""
        crop_height: Side | None = None
        """Height of training crops in pixels. Default: 416, or 352 of KITTI."""
        crop_width: Side | None = None
        """Their width. Default: 544, or 704 of KITTI."""
        mirror: bool = True
        """Test images are predicted mirrored too, and the mean counts."""
        iterations: Count = 38_400
        """Updates of the head."""
        lr: Annotated[float, Within(0, 1e6)] = 1e-4
        """Peak learning rate of AdamW for a batch of 16; it grows linearly with the batch, and falls along a cosine
        after the warm-up."""
        weight_decay: Annotated[float, Within(0, 1000)] = 0.01
        """Weight decay of AdamW."""
        warmup: Length = field(default=Duration.parse("12800st"))
        """Linear rise of the learning rate."""
        checkpoint_every: Every = field(default=Duration.parse("1000st"))
        """How often a checkpoint is saved, from which an interrupted training goes on."""

    Source = DepthImages
    without_path = "depth needs path=, the folder of NYU Depth v2 in the layout of BTS, with sync/ in it, or of KITTI"

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        head = head_settings(config)
        if head.min_depth >= head.max_depth:
            raise ConfigError(
                f"depth has min_depth={head.min_depth} and max_depth={head.max_depth}; give a larger max_depth"
            )
        areas = {"train": head.train_area, "test": head.test_area}
        for name, area in areas.items():
            if area is not None and (area[0] >= area[1] or area[2] >= area[3]):
                raise ConfigError(
                    f"depth: {name}_area={list(area)} is empty; give first row, row after the last, first column, "
                    "column after the last, as [45, 471, 41, 601]"
                )
        fitted = super().fit_to(config, images)
        source = DepthImages(cls.data(config))
        for name, area in areas.items():
            height, width = source.split(name).sample(0)[1].shape
            if area is not None and (height < area[1] or width < area[3]):
                raise ConfigError(
                    f"depth: {name}_area={list(area)} goes beyond the first {name} image, of {height}x{width} pixels; "
                    f"give an area inside it, or {name}_area=all for all of each image"
                )
        return fitted

    @classmethod
    @override
    def check(cls, config: Config, checkpoint: Checkpoint) -> None:
        backbone = checkpoint.backbone
        chosen_stages(backbone, config.stages)
        for side in head_settings(config).crop:
            type(backbone).check_side(backbone.config, covered(side, backbone.patch_size or 1))

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return list(SCORE_NAMES)

    @override
    def training(self, context: Context) -> Training:
        config = self.config
        return Training(
            method=head_settings(config),
            optim=settings_from(config, AdamW.Config, lr_batch_size=16),
            iterations=config.iterations,
            checkpoint_every=config.checkpoint_every,
            clip_grad=CLIPPED,
        )

    @override
    def findings(self, results: Mapping[str, Tensor], source: TargetSource, seed: int) -> Findings:
        return Findings(depth_metrics(results["scores"], seed))


def head_settings(config: Depth.Config) -> DepthHead.Config:
    """Return the settings of the head, with those of the layout where the user gives none."""
    protocol = PROTOCOLS[config.layout]
    areas = {
        name: None if area == "all" else area or default
        for name, area, default in (
            ("train_area", config.train_area, protocol.train_area),
            ("test_area", config.test_area, protocol.test_area),
        )
    }
    height, width = protocol.crop
    return settings_from(
        config,
        DepthHead.Config,
        max_depth=config.max_depth or protocol.max_depth,
        crop=(config.crop_height or height, config.crop_width or width),
        brightness=protocol.brightness,
        **areas,
    )
