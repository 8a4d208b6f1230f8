"""The settings of a backbone, derived from the shapes of its tensors."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from raysl.errors import ConfigError
from raysl.nn.backbones.adapt import MOST_CHANNELS
from raysl.nn.backbones.blocks import BasicBlock, Bottleneck
from raysl.nn.backbones.resnet import LAYERS
from raysl.nn.backbones.vit import SIZES
from raysl.weights.dino_v3 import is_dino_v3, settings_of
from raysl.weights.layouts import StoredBackbone

Tensors = Mapping[str, Tensor]


def derive_settings(stored: StoredBackbone, where: str) -> dict[str, Any]:
    """Derive the settings, with its name, of the raysl backbone that these tensors fit.

    Args:
        stored: the tensors, as `raysl.weights.fill.rename` returns them.
        where: the file, for messages.

    Raises:
        ConfigError: if no ResNet or ViT of raysl has such tensors.
    """
    if stored.family == "resnet":
        return {"name": "resnet", **_resnet(stored.tensors, where)}
    known = dict(stored.layout.settings)
    if is_dino_v3(stored.tensors) and stored.layout.name != "raysl":
        known = {**settings_of(stored.tensors, where), **known}
    vit = _vit(stored.tensors, where, known.pop("heads", None))
    return {"name": "vit", **vit, **known}


def _resnet(tensors: Tensors, where: str) -> dict[str, Any]:
    counts = [_count(tensors, f"layer{stage}") for stage in range(1, 5)]
    num_stages = next((stage for stage, count in enumerate(counts) if not count), 4)
    block = Bottleneck if "layer1.0.conv3.weight" in tensors else BasicBlock
    fits = [
        depth
        for depth, (kind, layers) in LAYERS.items()
        if kind is block and list(layers[:num_stages]) == counts[:num_stages]
    ]
    if not fits:
        known = ", ".join(f"{depth}: {list(layers)}" for depth, (kind, layers) in LAYERS.items() if kind is block)
        raise ConfigError(
            f"{where} is a ResNet with {counts} {block.__name__} blocks in its stages; raysl builds {known}"
        )
    width, channels, height, across = tensors["conv1.weight"].shape
    inner = _inner_widths(tensors, where, int(width), block is Bottleneck)
    stems = {(7, 7): "imagenet", (3, 3): "cifar"}
    if (height, across) not in stems or channels > MOST_CHANNELS:
        raise ConfigError(
            f"{where} is a ResNet with a conv1.weight of {list(tensors['conv1.weight'].shape)}; raysl builds 7x7 and "
            f"3x3 ones of 1 to {MOST_CHANNELS} channels"
        )
    shape = {"depth": fits[0], "num_stages": num_stages, "width": int(width), "stem": stems[height, across], **inner}
    return shape | _channels(int(channels))


def _inner_widths(tensors: Tensors, where: str, width: int, has_bottlenecks: bool) -> dict[str, int]:
    """Return number and width of the groups of 3x3 convolutions; nothing for the usual ones."""
    first = tensors["layer1.0.conv1.weight"].shape[0]
    second = tensors.get("layer1.0.conv2.weight")
    if second is None:
        raise ConfigError(
            f"{where} is a ResNet with other blocks (selective kernels, say), which are not read from files without a "
            "name; name timm's network, such as backbone=timm backbone.model=skresnet50"
        )
    groups = first // second.shape[1]
    per_group, rest = divmod(64 * second.shape[1], width)
    is_usual = first == width and groups == 1
    if groups * second.shape[1] != first or rest or not (has_bottlenecks or is_usual):
        raise ConfigError(
            f"{where} is a ResNet whose blocks have widths that raysl does not build: conv1.weight is "
            f"{list(tensors['conv1.weight'].shape)}, layer1.0.conv1.weight "
            f"{list(tensors['layer1.0.conv1.weight'].shape)}, layer1.0.conv2.weight {list(second.shape)}"
        )
    return {} if is_usual else {"groups": groups, "width_per_group": per_group}


def _vit(tensors: Tensors, where: str, heads: int | None) -> dict[str, Any]:
    width, channels, patch, _ = tensors["patch_embed.proj.weight"].shape
    if channels > MOST_CHANNELS:
        raise ConfigError(f"{where} is a ViT for images of {channels} channels; raysl's have 1 to {MOST_CHANNELS}")
    depth = _count(tensors, "blocks")
    size = next((name for name, (wide, deep, _) in SIZES.items() if (wide, deep) == (width, depth)), None)
    settings: dict[str, Any] = {"patch_size": int(patch), "qkv_bias": "blocks.0.attn.qkv.bias" in tensors}
    settings |= _channels(int(channels))
    if size is not None:
        settings |= {"size": size}
    else:
        settings |= {"width": int(width), "depth": depth}
        heads = heads or (next((many for wide, _, many in SIZES.values() if wide == width), None))
        if heads is None and width % 64 == 0:
            heads = width // 64  # as the papers have it
    if heads is not None and width % heads == 0 and not (size and SIZES[size][2] == heads):
        settings |= {"heads": heads}
    if "pos_embed" in tensors:
        settings |= {"image_size": patch * grid_side(tensors["pos_embed"], where)}
    if tensors["blocks.0.mlp.fc1.weight"].shape[0] == 2 * tensors["blocks.0.mlp.fc2.weight"].shape[1]:
        settings |= {"mlp": "swiglu"}
    if "blocks.0.ls1.gamma" in tensors:
        settings |= {"layer_scale": 1e-5}
    if "reg_token" in tensors:
        settings |= {"num_registers": int(tensors["reg_token"].shape[1])}
    if "mask_token" in tensors:
        settings |= {"mask_token": True}
    return settings


def _channels(num: int) -> dict[str, int]:
    """Return the setting of a first layer for other images than RGB."""
    return {} if num == 3 else {"in_channels": num}


def grid_side(places: Tensor, where: str) -> int:
    """Return the side, in patches, of the square grid that position embeddings [1, 1 + h*w, D] belong to.

    >>> import torch
    >>> grid_side(torch.zeros(1, 1 + 14 * 14, 8), "vit.pth")
    14

    Raises:
        ConfigError: if there are further tokens, or the grid is not a square.
    """
    num = places.shape[1] - 1
    side = math.isqrt(max(num, 0))
    if side == 0 or side**2 != num:
        raise ConfigError(
            f"{where} has {places.shape[1]} position embeddings, not one for a class token and a square of patches "
            "(perhaps a ViT with a distillation token, or for images that are not square); raysl's ViT takes only those"
        )
    return side


def _count(names: Iterable[str], module: str) -> int:
    """Count the numbered modules inside a module."""
    numbers = {int(match[1]) for name in names if (match := re.match(rf"{module}\.(\d+)\.", name))}
    return max(numbers, default=-1) + 1
