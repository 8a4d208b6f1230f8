"""Feature maps of any backbone."""

from typing import Any

import torch
from torch import Tensor, nn

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import BackboneInfo, TokenBackbone


def as_map(backbone: nn.Module, stage: Tensor, images: Tensor) -> Tensor | None:
    """Return a stage as a map [B, C, h, w], a ViT's patch tokens at their positions; None if it is neither.

    Args:
        stage: any of its stages, [B, ...].
        images: images of the stage, [B, 3, H, W].
    """
    if stage.ndim == 4:
        return stage
    if stage.ndim == 3 and isinstance(backbone, TokenBackbone):
        patches = stage[:, backbone.num_prefix_tokens :]  # [B, h*w, C]
        return patches.transpose(1, 2).reshape(len(stage), -1, *backbone.grid(images))
    return None


def last_map(info: BackboneInfo) -> str:
    """Return the last stage that is a map or tokens.

    >>> from raysl.nn.backbones.resnet import ResNet
    >>> last_map(ResNet.info(ResNet.Config(depth=18)))
    'res5'

    Raises:
        ConfigError: if the backbone names none.
    """
    if info.map_stage is None:
        raise ConfigError("the backbone names no stage in front of its features; take one such as resnet or vit")
    return info.map_stage


def features_and_map(backbone: Any, images: Tensor, stage: str) -> tuple[Tensor, Tensor]:
    """Return features [B, feature_dim] and a stage as a map [B, C, h, w], from one pass of a backbone."""
    outputs = backbone.stages(images, [stage, *backbone.feature_stages])
    values = as_map(backbone, outputs[stage], images)
    if values is None:
        raise ValueError(f"stage {stage} of {backbone.title} has no place for each part of the image")
    return torch.cat([outputs[name] for name in backbone.feature_stages], dim=1), values
