"""A linear classifier of pixels on a frozen backbone (DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 7.4)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.benchmarks.dense.maps import chosen_stages, maps_of
from raysl.benchmarks.dense.masks import IGNORE
from raysl.config.schema import MethodConfig
from raysl.data.batch import Batch
from raysl.losses import at_least_fp32
from raysl.methods.method import Method, StepOutput
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.freezing import ALL, freeze
from raysl.plan.setup import Setup
from raysl.schedule import Step

IMAGES, MASK = "image", "image.mask"


class Segmenter(Method):
    """One convolution of 1x1 from the backbone's maps to scores of classes, behind batch normalisation.

    Batches have images as the view "image" [B, 1, 3, S, S] and classes of pixels as the extra "image.mask" uint8
    [B, S, S], IGNORE where they do not count.
    """

    logged = ("pixel_accuracy",)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """Settings of the head."""

        name: str = "raysl.benchmarks.dense.segmenter:Segmenter"
        stages: tuple[str, ...] = ()
        """Maps of the backbone that it sees, side by side; default: the last one."""
        batch_norm: bool = True
        """Normalise the channels of the maps over the batch first."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        freeze(backbone, (ALL,))
        self.stages = chosen_stages(backbone, self.config.stages)
        width = sum(stage.width for stage in self.stages)
        self.norm = nn.BatchNorm2d(width) if self.config.batch_norm else nn.Identity()
        self.classifier = nn.Conv2d(width, setup.data.num_classes, 1)
        nn.init.normal_(self.classifier.weight, std=0.01)

    def scores(self, images: Tensor) -> Tensor:
        """Scores of the classes at each pixel, never below fp32 [B, K, H, W], of normalised images [B, 3, H, W]."""
        with torch.no_grad():
            maps = maps_of(self.backbone, images, self.stages)
        largest = max((values.shape[-2:] for values in maps), key=lambda size: size[0] * size[1])
        seen = torch.cat([_resized(values, largest) for values in maps], dim=1)  # [B, C, h, w]
        return _resized(at_least_fp32(self.classifier(self.norm(seen))), images.shape[-2:])

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Cross entropy, the mean over all pixels of the crops; those that do not count add nothing to it."""
        mask = batch.extras[MASK].long()
        scores = self.scores(batch.views[IMAGES][:, 0])
        loss = F.cross_entropy(scores, mask, ignore_index=IGNORE, reduction="none").mean()
        counts = mask != IGNORE
        hits = (scores.detach().argmax(dim=1) == mask) & counts
        return StepOutput(loss, {"pixel_accuracy": 100 * hits.sum() / counts.sum().clamp(min=1)})


def _resized(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    if maps.shape[-2:] == size:
        return maps
    return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)
