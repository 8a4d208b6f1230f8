"""Feature maps: the stages of a backbone that have a position for each part of the image, and pyramids of them.

Feature pyramids (Lin et al. 2016, arXiv 1612.03144) over the stages of a convolutional network, and the simple one of
ViTDet (Li et al. 2022, arXiv 2203.16527, section 3) from the last map of a plain ViT.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.convnext import LayerNorm2d
from torchvision.ops import FeaturePyramidNetwork

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone, TokenBackbone
from raysl.nn.backbones.maps import as_map as as_map


@dataclass(frozen=True)
class MapStage:
    """A stage of a backbone that is a feature map.

    Args:
        width: channels.
        stride: pixels of the image to a place of the map.
    """

    name: str
    width: int
    stride: int


@torch.no_grad()
def map_stages(backbone: nn.Module) -> list[MapStage]:
    """Find the stages that are maps, in order, by a pass over an empty image."""
    stages = []
    if isinstance(backbone, Backbone) and backbone.stage_widths:
        # in evaluation mode the empty image does not enter the running statistics
        was_training = backbone.training
        side = backbone.native_size
        images = torch.zeros(1, backbone.in_channels, side, side, device=next(backbone.parameters()).device)
        for name, stage in backbone.eval().stages(images, list(backbone.stage_widths)).items():
            values = as_map(backbone, stage, images)
            if values is not None:
                stages.append(MapStage(name, values.shape[1], round(side / values.shape[2])))
        backbone.train(was_training)
    if not stages:
        raise ConfigError(
            f"{type(backbone).__name__} has no stage with a place for each part of the image, which masks and boxes "
            "need; take a backbone such as resnet or vit"
        )
    return stages


def chosen_stages(backbone: nn.Module, names: Sequence[str]) -> list[MapStage]:
    """Return the stages with these names; by default the last one that is a map."""
    stages = {stage.name: stage for stage in map_stages(backbone)}
    if not names:
        return [list(stages.values())[-1]]
    if unknown := [name for name in names if name not in stages]:
        raise ConfigError(f"stages: {unknown[0]!r} is not a map of this backbone; choose from {', '.join(stages)}")
    return [stages[name] for name in names]


def maps_of(backbone: Backbone, images: Tensor, stages: Sequence[MapStage]) -> list[Tensor]:
    """Compute maps [B, C, h, w] of images [B, 3, H, W] in one pass, in the order of the stages."""
    values = backbone.stages(images, [stage.name for stage in stages])
    maps = [as_map(backbone, values[stage.name], images) for stage in stages]
    return [values for values in maps if values is not None]


def resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Resize maps [B, C, h, w] bilinearly to height and width."""
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)


def side_by_side(maps: Sequence[Tensor]) -> Tensor:
    """Concatenate the channels of maps [B, C, h, w], which are resized to the largest one."""
    largest = max((values.shape[-2:] for values in maps), key=lambda size: size[0] * size[1])
    return torch.cat([resized(values, largest) for values in maps], dim=1)


WIDTH = 256
MOST_LEVELS = 4


class Pyramid(nn.Module):
    """Maps of `WIDTH` channels from images, the finest first, and one with twice the last one's stride.

    Args:
        backbone: network whose stages they are made of; not a submodule.
        norm: makes the normalisation of a number of channels behind the convolutions of a convolutional network, or
            None.
    """

    def __init__(self, backbone: Backbone, norm: Callable[[int], nn.Module] | None) -> None:
        super().__init__()
        stages = map_stages(backbone)
        if isinstance(backbone, TokenBackbone):
            self.stages = stages[-1:]
            patch = self.stages[0].stride
            self.neck: nn.Module = SimplePyramid(self.stages[0].width)
            strides = [max(1, patch // 4), max(1, patch // 2), patch, 2 * patch]
        else:
            self.stages = levels_of(stages)
            self.neck = FeaturePyramidNetwork([stage.width for stage in self.stages], WIDTH, norm_layer=norm)
            strides = [stage.stride for stage in self.stages]
        self.strides = [*strides, 2 * strides[-1]]

    @property
    def names(self) -> list[str]:
        """Names of the maps, the finest first; the last one is for proposals only."""
        return [str(level) for level in range(len(self.strides))]

    def forward(self, backbone: Backbone, images: Tensor) -> "OrderedDict[str, Tensor]":
        """Compute maps [B, WIDTH, h, w] of images [B, 3, H, W], by `names`."""
        maps = maps_of(backbone, images, self.stages)
        inputs = OrderedDict(zip(self.names, maps, strict=False))
        levels = list(self.neck(inputs).values())
        levels.append(F.max_pool2d(levels[-1], 1, 2))  # as torchvision's LastLevelMaxPool
        return OrderedDict(zip(self.names, levels, strict=True))


class SimplePyramid(nn.Module):
    """Maps of 4, 2, 1 and 1/2 times the resolution of one map, each through a 1x1 and a 3x3 convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half, quarter = max(1, width // 2), max(1, width // 4)
        up = nn.Sequential(
            nn.ConvTranspose2d(width, half, 2, 2),
            LayerNorm2d(half, eps=1e-6),
            nn.GELU(),
            nn.ConvTranspose2d(half, quarter, 2, 2),
        )
        scales = [(up, quarter), (nn.ConvTranspose2d(width, half, 2, 2), half), (nn.Identity(), width)]
        scales.append((nn.MaxPool2d(2, ceil_mode=True), width))
        self.levels = nn.ModuleList(nn.Sequential(scale, *_out(channels)) for scale, channels in scales)

    def forward(self, maps: "OrderedDict[str, Tensor]") -> "OrderedDict[str, Tensor]":
        """Compute four maps of WIDTH channels from one [B, C, h, w], by their numbers."""
        (values,) = maps.values()
        return OrderedDict((str(number), level(values)) for number, level in enumerate(self.levels))


def _out(channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, WIDTH, 1, bias=False),
        LayerNorm2d(WIDTH, eps=1e-6),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
        LayerNorm2d(WIDTH, eps=1e-6),
    ]


def levels_of(stages: Sequence[MapStage]) -> list[MapStage]:
    """Return the last stage of each stride, at most the four coarsest: res2 to res5 of a ResNet."""
    last = {stage.stride: stage for stage in stages}
    return [last[stride] for stride in sorted(last)][-MOST_LEVELS:]


def padded_sides(height: int, width: int, multiple: int) -> tuple[int, int]:
    """Round sides up to multiples of a number, so that maps of all strides fit.

    >>> padded_sides(33, 64, 32)
    (64, 64)
    """
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple
