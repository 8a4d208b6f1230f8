"""A linear layer from frozen features to depths (DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 7.4).

The losses are of the logarithm of depths, over all pixels of the batch that have one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from raysl import distributed as dist
from raysl.benchmarks.dense.benchmark import TargetMethod
from raysl.benchmarks.dense.depth_files import Area, DepthSplit
from raysl.benchmarks.dense.depths import depth_crop, depth_scores
from raysl.benchmarks.dense.maps import as_map, chosen_stages, resized, side_by_side
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
        brightness: tuple[float, float] = (0.75, 1.25)
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
        return DepthRecipe(setup.config.data, config.train_area, config.crop, config.brightness)

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
    brightness: tuple[float, float]

    @override
    def example(self, split: DepthSplit, index: int, random: SampleRandom) -> tuple[Tensor, Tensor]:
        image, depth = split.sample(index)
        return depth_crop(image, depth, self.area, self.crop, random, self.brightness)

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


EPSILON = 1e-3
"""Metres added before the logarithm, against steep gradients."""
STEPS = (1, 2, 4, 6)
"""Pixels from one to the next at the scales of `gradient_loss`, as in DINOv2's `gradientloss.py`."""


def sig_loss(predicted: Tensor, target: Tensor, has_variance: bool = True) -> Tensor:
    """Return the root of var(g) + 0.15 mean(g)^2, where g is the logarithm of the prediction less that of the target.

    The scale-invariant loss of Eigen et al. 2014 (arXiv 1406.2283, equation 4) as DINOv2's `sigloss.py` has it.

    Args:
        predicted: metres [B, H, W].
        target: metres [B, H, W], 0 where unknown.
        has_variance: whether the variance counts, as it does after the first updates.

    >>> target = torch.tensor([[[1.0, 2.0, 4.0]]])
    >>> round(sig_loss(target * 2, target).item() / 0.15**0.5, 3)  # log 2, whatever the target
    0.693
    """
    errors, is_known = _errors(predicted, target)
    # sums go over all ranks, so that mean and variance are those of the whole batch
    num = dist.all_sum(is_known.sum().to(errors.dtype))
    mean = dist.all_sum(errors.sum()) / num.clamp(min=1)
    square = 0.15 * mean**2
    if has_variance:
        spread = torch.where(is_known, errors - mean, 0)
        # divided by num - 1, as by torch.var in DINOv2's code
        square = square + dist.all_sum((spread**2).sum()) / (num - 1).clamp(min=1)
    return square.clamp(min=1e-12).sqrt()  # a root has no gradient at 0


def gradient_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Return how much the errors differ from those two pixels on, down and across, summed over four scales.

    Li and Snavely 2018, MegaDepth, arXiv 1804.00607; the sums of a scale are divided by its known pixels.
    Arguments are those of `sig_loss`.

    >>> target = torch.tensor([[[1.0, 2.0, 4.0]]])
    >>> gradient_loss(target * 2, target).item() < 1e-2  # a wrong scale costs nothing
    True
    """
    sums, counts = [], []
    for step in STEPS:
        errors, is_known = _errors(predicted[:, ::step, ::step], target[:, ::step, ::step])
        total = errors.new_zeros(())
        for axis in (1, 2):
            # transposed, the same two lines take the differences across the columns
            values, known = errors.transpose(1, axis), is_known.transpose(1, axis)
            is_pair = known[:, 2:] & known[:, :-2]
            total = total + ((values[:, 2:] - values[:, :-2]).abs() * is_pair).sum()
        sums.append(total)
        counts.append(is_known.sum().to(errors.dtype))
    return (dist.all_sum(torch.stack(sums)) / dist.all_sum(torch.stack(counts)).clamp(min=1)).sum()


def _errors(predicted: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return differences of logarithms, 0 where the target is unknown, and where it is known."""
    is_known = target > 0
    predicted, target = at_least_fp32(predicted), at_least_fp32(target)
    return torch.where(is_known, (predicted + EPSILON).log() - (target + EPSILON).log(), 0), is_known
