"""A linear classifier of pixels on a frozen backbone (DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 7.4)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from raysl.benchmarks.dense.benchmark import TargetMethod
from raysl.benchmarks.dense.crops import resized_short, slid, training_crop
from raysl.benchmarks.dense.maps import chosen_stages, maps_of, resized, side_by_side
from raysl.benchmarks.dense.masks import IGNORE, MaskSplit
from raysl.benchmarks.dense.overlap import pixel_counts
from raysl.config.schema import DataConfig, MethodConfig
from raysl.data.stream.targets import TargetRecipe
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Batch, Setup, Step, StepOutput
from raysl.nn.backbones.freezing import ALL, freeze
from raysl.transforms import SampleRandom, network_input
from raysl.transforms.functional import resize

IMAGES, MASK = "image", "image.mask"

Crop = tuple[Tensor, Tensor, Tensor]


class Segmenter(TargetMethod):
    """A 1x1 convolution from the backbone's maps to scores of classes, behind batch normalisation.

    Batches have images as the view "image" [B, 1, 3, S, S] and classes of pixels as the extra "image.mask" uint8
    [B, S, S], IGNORE where they do not count.
    """

    logged = ("pixel_accuracy",)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """Settings of the head and of its images, see `Segmentation.Config`."""

        name: str = "raysl.benchmarks.dense.segmenter:Segmenter"
        stages: tuple[str, ...] = ()
        """Maps of the backbone that it sees, side by side; default: the last one."""
        batch_norm: bool = True
        """Normalise the channels of the maps over the batch first."""
        short_side: int = 512
        crop: int = 512
        max_class_share: float = 0.75
        distort: bool = True

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        freeze(backbone, (ALL,))
        torch.manual_seed(setup.seed)  # the head begins alike on every backbone, however many numbers that has drawn
        self.stages = chosen_stages(backbone, self.config.stages)
        width = sum(stage.width for stage in self.stages)
        self.norm = nn.BatchNorm2d(width) if self.config.batch_norm else nn.Identity()
        self.classifier = nn.Conv2d(width, setup.data.num_classes, 1)
        nn.init.normal_(self.classifier.weight, std=0.01)

    @classmethod
    @override
    def targets(cls, setup: Setup) -> "CropRecipe":
        return CropRecipe(setup.method, setup.config.data)

    def scores(self, images: Tensor) -> Tensor:
        """Compute scores of the classes at each pixel, at least fp32 [B, K, H, W], of normalised images [B, 3, H,
        W]."""
        with torch.no_grad():
            maps = maps_of(self.backbone, images, self.stages)
        seen = self.norm(side_by_side(maps))  # [B, C, h, w]
        return resized(at_least_fp32(self.classifier(seen)), images.shape[-2:])

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the mean cross entropy over all pixels of the crops, to which ignored ones add 0."""
        mask = batch.extras[MASK].long()
        scores = self.scores(batch.views[IMAGES][:, 0])
        loss = F.cross_entropy(scores, mask, ignore_index=IGNORE, reduction="none").mean()
        counts = mask != IGNORE
        hits = (scores.detach().argmax(dim=1) == mask) & counts
        return StepOutput(loss, {"pixel_accuracy": 100 * hits.sum() / counts.sum().clamp(min=1)})

    @override
    def measure(self, split: MaskSplit, number: int) -> dict[str, Tensor]:
        image, mask = split.sample(number)
        mask = mask.to(self.classifier.weight.device)
        return {"counts": pixel_counts(self.predict(image, mask.shape), mask, len(split.classes))[None]}

    def predict(self, image: Tensor, size: tuple[int, ...]) -> Tensor:
        """Predict the classes of an image's pixels by windows that are slid over it, int64 [H, W].

        Args:
            image: uint8 [3, h, w].
        """
        data, config = self.setup.config.data, self.config
        height, width = resized_short(image.shape[1], image.shape[2], config.short_side)
        pixels = resize(image, height, width, data.eval_interpolation).to(self.classifier.weight.device)
        normalised = network_input(pixels, data.mean, data.std, data.channels)
        scores = slid(self.scores, normalised, config.crop, max(1, 2 * config.crop // 3))  # [K, h, w]
        return F.interpolate(scores[None], size=size, mode="bilinear", align_corners=False)[0].argmax(dim=0)


@dataclass(frozen=True)
class CropRecipe(TargetRecipe):
    """Random crops of images and their masks, see `training_crop`."""

    config: Segmenter.Config
    data: DataConfig

    @override
    def example(self, split: MaskSplit, index: int, random: SampleRandom) -> Crop:
        image, mask = split.sample(index)
        config = self.config
        return training_crop(
            image, mask, config.short_side, config.crop, random, config.max_class_share, config.distort
        )

    @override
    def collate(self, examples: Sequence[Crop], index: Tensor) -> Batch:
        images, masks, are_images = (torch.stack(values) for values in zip(*examples, strict=True))
        normalised = network_input(images, self.data.mean, self.data.std, self.data.channels)
        # beyond an image is the mean colour, which is normalised to 0
        views = {IMAGES: (normalised * are_images[:, None])[:, None]}
        return Batch(views, index, torch.full((len(index),), -1), extras={MASK: masks})
