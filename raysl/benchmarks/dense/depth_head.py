"""A linear layer from frozen features to depths (DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 7.4)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from raysl.benchmarks.dense.depth_crops import Area, depth_crop
from raysl.benchmarks.dense.depth_losses import gradient_loss, sig_loss
from raysl.benchmarks.dense.depth_scores import depth_scores
from raysl.benchmarks.dense.depths import DepthSplit
from raysl.benchmarks.dense.maps import as_map, chosen_stages, resized, side_by_side
from raysl.benchmarks.dense.method import TargetMethod
from raysl.config.schema import DataConfig, MethodConfig
from raysl.data.stream.targets import TargetRecipe
from raysl.losses import at_least_fp32
from raysl.methods.method import Batch, Setup, Step, StepOutput
from raysl.nn.backbones.backbone import Backbone, TokenBackbone
from raysl.nn.backbones.freezing import ALL, freeze
from raysl.transforms import SampleRandom, network_input

IMAGES, DEPTH = "image", "image.depth"
UPSAMPLED = 4
"""Features are resized by it before the layer."""
FLOOR = 0.1
"""Added to the weight of each bin, as in AdaBins (Bhat et al. 2021, arXiv 2011.14141) for linear normalisation."""


class DepthHead(TargetMethod):
    """A 1x1 convolution from the backbone's maps to weights of depths, of which the mean is the prediction.

    Batches have images as the view "image" [B, 1, 3, H, W] and metres as the extra "image.depth" float32 [B, H, W], 0
    where unknown.
    """

    logged = ("abs_rel",)
    depths: Tensor
    """Metres of the bins [K]."""

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """Settings of the head and of its images, see `Depth.Config`."""

        name: str = "raysl.benchmarks.dense.depth_head:DepthHead"
        stages: tuple[str, ...] = ()
        class_token: bool = True
        bins: int = 256
        min_depth: float = 1e-3
        max_depth: float = 10.0
        gradient_weight: float = 0.5
        warm_up: int = 100
        train_area: tuple[int, int, int, int] | None = None
        test_area: tuple[int, int, int, int] | None = None
        crop: tuple[int, int] = (416, 544)
        mirror: bool = True

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        freeze(backbone, (ALL,))
        torch.manual_seed(setup.seed)  # the head begins alike on every backbone, however many numbers that has drawn
        config = self.config
        self.stages = chosen_stages(backbone, config.stages)
        width = sum(stage.width for stage in self.stages) * (2 if self.has_class_token else 1)
        self.classifier = nn.Conv2d(width, config.bins, 1)
        self.register_buffer(
            "depths", torch.linspace(config.min_depth, config.max_depth, config.bins), persistent=False
        )

    @property
    def has_class_token(self) -> bool:
        """Whether each patch sees the class token beside its own."""
        backbone = self.backbone
        return self.config.class_token and isinstance(backbone, TokenBackbone) and backbone.num_prefix_tokens > 0

    @classmethod
    @override
    def targets(cls, setup: Setup) -> "DepthRecipe":
        config = setup.method
        return DepthRecipe(setup.config.data, config.train_area, config.crop)

    def features(self, images: Tensor) -> Tensor:
        """Compute the maps of normalised images [B, 3, H, W], side by side, with class tokens [B, C, h, w]."""
        with torch.no_grad():
            values = self.backbone.stages(images, [stage.name for stage in self.stages])
            maps = []
            for stage in self.stages:
                patches = as_map(self.backbone, values[stage.name], images)
                assert patches is not None
                maps.append(patches)
                if self.has_class_token:
                    maps.append(values[stage.name][:, 0, :, None, None].expand_as(patches))
        return side_by_side(maps)

    def predict(self, images: Tensor) -> Tensor:
        """Predict metres at each pixel, at least fp32 [B, H, W], of normalised images [B, 3, H, W].

        Images that patches do not cover are padded with zeros around them, as in DINOv2's code.
        """
        patch = self.backbone.patch_size or 1
        (top, bottom), (first, last) = (_margins(side, patch) for side in images.shape[-2:])
        padded = F.pad(images, (first, last, top, bottom))
        weights = self.classifier(self.features(padded))  # [B, K, h, w]
        # the layer is linear, so it may come before the resize, which has fewer channels to resize then
        height, width = weights.shape[-2:]
        weights = resized(at_least_fp32(weights), (UPSAMPLED * height, UPSAMPLED * width)).relu() + FLOOR
        # no matrix product, which autocast would compute in half precision
        sums = (weights * self.depths.to(weights)[:, None, None]).sum(dim=1, keepdim=True)
        depth = sums / weights.sum(dim=1, keepdim=True)  # [B, 1, 4h, 4w]
        depth = resized(depth, padded.shape[-2:])[:, 0]
        return depth[:, top : top + images.shape[-2], first : first + images.shape[-1]]

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return `sig_loss`, in the first updates without the variance, and the weighted `gradient_loss`."""
        target = batch.extras[DEPTH]
        predicted = self.predict(batch.views[IMAGES][:, 0])
        loss = sig_loss(predicted, target, has_variance=step.index >= self.config.warm_up)
        if self.config.gradient_weight > 0:
            loss = loss + self.config.gradient_weight * gradient_loss(predicted, target)
        is_known = target > 0
        errors = ((predicted.detach() - target).abs() / target.clamp(min=self.config.min_depth)) * is_known
        return StepOutput(loss, {"abs_rel": errors.sum() / is_known.sum().clamp(min=1)})

    @override
    def measure(self, split: DepthSplit, number: int) -> dict[str, Tensor]:
        image, label = split.sample(number)
        config, data = self.config, self.setup.config.data
        pixels = image.to(self.classifier.weight.device)[None]
        images = network_input(pixels, data.mean, data.std, data.channels)
        predicted = self.predict(images)
        if config.mirror:
            predicted = (predicted + self.predict(images.flip(3)).flip(2)) / 2
        counts = (label > config.min_depth) & (label < config.max_depth)
        if config.test_area is not None:
            is_inside = torch.zeros_like(counts)
            rows, columns = slice(*config.test_area[:2]), slice(*config.test_area[2:])
            is_inside[rows, columns] = True
            counts = counts & is_inside
        return {"scores": depth_scores(predicted[0].cpu()[counts], label[counts])[None]}


@dataclass(frozen=True)
class DepthRecipe(TargetRecipe):
    """Random crops of images and their depths, see `depth_crop`."""

    data: DataConfig
    area: Area | None
    crop: tuple[int, int]

    @override
    def example(self, split: DepthSplit, index: int, random: SampleRandom) -> tuple[Tensor, Tensor]:
        image, depth = split.sample(index)
        return depth_crop(image, depth, self.area, self.crop, random)

    @override
    def collate(self, examples: Sequence[tuple[Tensor, Tensor]], index: Tensor) -> Batch:
        images, depths = (torch.stack(values) for values in zip(*examples, strict=True))
        views = {IMAGES: network_input(images, self.data.mean, self.data.std, self.data.channels)[:, None]}
        return Batch(views, index, torch.full((len(index),), -1), extras={DEPTH: depths})


def covered(side: int, patch: int) -> int:
    """Return the side in pixels of the patches that cover one.

    >>> covered(416, 16), covered(416, 14)
    (416, 420)
    """
    return side + -side % patch


def _margins(side: int, patch: int) -> tuple[int, int]:
    """Return the pixels that are added before and behind so that patches cover a side."""
    missing = covered(side, patch) - side
    return missing // 2, missing - missing // 2
