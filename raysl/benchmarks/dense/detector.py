"""Faster R-CNN and Mask R-CNN on a backbone, all of which is trained.

Ren et al. 2015, arXiv 1506.01497; He et al. 2017, arXiv 1703.06870; the parts are torchvision's.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models.detection.faster_rcnn import FasterRCNN, FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign
from typing_extensions import override

from raysl.benchmarks.dense.average_precision import Detected
from raysl.benchmarks.dense.benchmark import TargetMethod
from raysl.benchmarks.dense.boxes import BoxSplit
from raysl.benchmarks.dense.coco_scores import run_lengths
from raysl.benchmarks.dense.maps import WIDTH, Pyramid
from raysl.benchmarks.dense.pictures import BOXES, IMAGES, LABELS, MASKS, SIZES, DetectorInput
from raysl.methods.method import Backbone, Batch, MethodConfig, Setup, Step, StepOutput
from raysl.nn.backbones.freezing import freeze

STRIDE = 32
"""Sides of batches are multiples of it, as in torchvision."""
ANCHOR = 8
"""Side of an anchor in strides of its map: 32 pixels at stride 4."""


class Detector(TargetMethod):
    """Proposals, boxes and, where asked for, masks of objects.

    Batches have images as the view "image" [B, 1, 3, H, W], filled up with 0 to one size, and as extras "image.size"
    int64 [B, 2], what of each is image; "image.boxes" float [B, M, 4] and "image.labels" int64 [B, M], -1 in places
    that are left; and "image.masks" uint8 [B, M, H, W].
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """Settings of the network and of its images, see `Detection.Config`."""

        name: str = "raysl.benchmarks.dense.detector:Detector"
        norm: Literal["sync", "frozen"] = "sync"
        """Batch normalisation of the backbone: over the whole batch, then in the pyramid too; or as it was
        pre-trained."""
        freeze: tuple[str, ...] = ()
        """Stages of the backbone that stay as they are, with all in front of them."""
        masks: bool = False
        """Have a head for masks."""
        short_sides: tuple[int, ...] = tuple(range(480, 801, 32))
        long_side: int = 1333

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        freeze(backbone, self.config.freeze)
        if self.config.norm == "frozen":
            freeze_norms(backbone)
        torch.manual_seed(setup.seed)  # the heads begin alike on every backbone, however many numbers that has drawn
        self.pyramid = Pyramid(backbone, nn.BatchNorm2d if self.config.norm == "sync" else None)
        parts = self._parts(setup.data.num_classes)
        self.rpn, self.heads = parts.get_submodule("rpn"), parts.get_submodule("roi_heads")

    @classmethod
    @override
    def targets(cls, setup: Setup) -> DetectorInput:
        config, patch = setup.method, setup.backbone.patch_size
        # for a ViT, sides must also fit the map at half the resolution of its patches
        multiple = int(np.lcm(STRIDE, 2 * patch if patch else 1))
        return DetectorInput(setup.config.data, config.short_sides, config.long_side, multiple, config.masks)

    @classmethod
    def logged_by(cls, config: Any) -> tuple[str, ...]:
        """The parts of the loss."""
        names = ("loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg")
        return (*names, "loss_mask") if config.masks else names

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the sum of torchvision's losses, whose parts draw proposals from the step's random numbers. It reads
        numbers from tensors, as torchvision does."""
        images = self._images(batch)
        targets = [self._target(batch, row) for row in range(len(batch))]
        maps = self._maps(images)
        # the heads compute positions in pixels, for which half precision is too coarse
        with torch.autocast(images.tensors.device.type, enabled=False):
            proposals, first = self.rpn(images, maps, targets)
            _, second = self.heads(maps, proposals, images.image_sizes, targets)
        losses: dict[str, Tensor] = {**first, **second}
        return StepOutput(torch.stack(list(losses.values())).sum(), {name: losses[name].detach() for name in losses})

    @override
    def measure(self, split: BoxSplit, number: int) -> dict[str, Tensor]:
        image = split.image(number)
        size = image.shape[1], image.shape[2]
        return self.detect(image).tensors(size)

    def detect(self, image: Tensor) -> Detected:
        """Detect the objects in an image uint8 [3, H, W], in pixels of that image; in evaluation mode."""
        recipe, size = self.targets(self.setup), (image.shape[1], image.shape[2])
        picture = recipe.for_measuring(image)
        device = next(self.parameters()).device
        batch = recipe.collate([picture], torch.zeros(1, dtype=torch.int64)).map(lambda values: values.to(device))
        (objects,) = self.detect_batch(batch)
        boxes = objects["boxes"].float() / objects["boxes"].new_tensor([*picture.scale, *picture.scale])
        boxes[:, 0::2] = boxes[:, 0::2].clamp(0, size[1])
        boxes[:, 1::2] = boxes[:, 1::2].clamp(0, size[0])
        masks = run_lengths(objects["masks"].float().cpu(), boxes.cpu(), size) if "masks" in objects else ()
        return Detected(
            boxes.cpu().numpy(), objects["scores"].float().cpu().numpy(), objects["labels"].cpu().numpy(), masks
        )

    @torch.no_grad()
    def detect_batch(self, batch: Batch) -> list[dict[str, Tensor]]:
        """Detect the objects in each image in evaluation mode, best first: `boxes` [D, 4] in pixels of the batch,
        `scores` [D], `labels` [D] in [0, K) and, with masks, `masks` [D, 1, 28, 28], probabilities inside the box."""
        images = self._images(batch)
        maps = self._maps(images)
        proposals, _ = self.rpn(images, maps)
        results, _ = self.heads(maps, proposals, images.image_sizes)
        return [{**result, "labels": result["labels"] - 1} for result in results]

    def _maps(self, images: ImageList) -> dict[str, Tensor]:
        """Return the pyramid's maps in fp32: boxes take the type of the maps, and bf16 cannot tell adjacent pixels
        apart beyond 256."""
        return {name: values.float() for name, values in self.pyramid(self.backbone, images.tensors).items()}

    def _images(self, batch: Batch) -> ImageList:
        sizes = [(height, width) for height, width in batch.extras[SIZES].tolist()]
        return ImageList(batch.views[IMAGES][:, 0], sizes)

    def _target(self, batch: Batch, row: int) -> dict[str, Tensor]:
        labels = batch.extras[LABELS][row]
        is_object = labels >= 0
        target = {"boxes": batch.extras[BOXES][row][is_object], "labels": labels[is_object] + 1}  # 0 is background
        if self.config.masks:
            target["masks"] = batch.extras[MASKS][row][is_object]
        return target

    def _parts(self, num_classes: int) -> nn.Module:
        """Build torchvision's detector around an empty backbone; only its heads are used."""
        names, strides = self.pyramid.names, self.pyramid.strides
        none = nn.Identity()
        none.out_channels = WIDTH  # type: ignore[assignment]
        parts: dict[str, Any] = {
            "rpn_anchor_generator": AnchorGenerator(
                tuple((ANCHOR * stride,) for stride in strides), ((0.5, 1.0, 2.0),) * len(strides)
            ),
            "box_roi_pool": MultiScaleRoIAlign(names[:-1], output_size=7, sampling_ratio=2),
            "box_head": TwoMLPHead(WIDTH * 7**2, 4 * WIDTH),
            "box_predictor": FastRCNNPredictor(4 * WIDTH, num_classes + 1),
        }
        if self.config.masks:
            parts |= {
                "mask_roi_pool": MultiScaleRoIAlign(names[:-1], output_size=14, sampling_ratio=2),
                "mask_head": MaskRCNNHeads(WIDTH, (WIDTH,) * 4, 1),
                "mask_predictor": MaskRCNNPredictor(WIDTH, WIDTH, num_classes + 1),
            }
        kind = MaskRCNN if self.config.masks else FasterRCNN
        return kind(none, **parts)  # type: ignore[no-any-return]


def freeze_norms(backbone: Backbone) -> None:
    """Freeze batch normalisation in place: scales, shifts and running statistics."""
    norms = {name: module for name, module in backbone.named_modules() if isinstance(module, _BatchNorm)}
    for module in norms.values():
        module.requires_grad_(False)
    backbone.frozen_modules = tuple(sorted({*backbone.frozen_modules, *norms}))
    # train() takes frozen modules out of training mode, which keeps their running statistics
    backbone.train(backbone.training)
