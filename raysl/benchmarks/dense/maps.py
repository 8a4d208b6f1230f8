"""Feature maps: the stages of a backbone that have a position for each part of the image."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
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
