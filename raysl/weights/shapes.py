"""The settings of a backbone, derived from the shapes of its tensors, and the grid of a ViT's positions."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from raysl.errors import ConfigError
from raysl.nn.backbones.adapt import MOST_CHANNELS
from raysl.nn.backbones.attention import gated_width
from raysl.nn.backbones.blocks import BasicBlock, Bottleneck
from raysl.nn.backbones.resnet import LAYERS
from raysl.nn.backbones.vit import SIZES
from raysl.weights.dino_v3 import is_dino_v3, settings_of
from raysl.weights.layouts import StoredBackbone

Tensors = Mapping[str, Tensor]


def derive_settings(stored: StoredBackbone, where: str) -> dict[str, Any]:
    """Derive the settings, with its name, of the raysl backbone that tensors fit, as `fill.rename` returns them."""
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
    if (stem := tensors["conv1.weight"]).ndim != 4:
        raise ConfigError(f"{where} is a network with a conv1.weight of {list(stem.shape)}; raysl's are for images")
    width, channels, height, across = stem.shape
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
    # `width_per_group` is counted for a network of width 64; groups of a wider one are wider in proportion
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
    kernel = list(tensors["patch_embed.proj.weight"].shape)
    if len(kernel) != 4 or kernel[2] != kernel[3]:
        raise ConfigError(f"{where} is a ViT with a patch_embed.proj.weight of {kernel}; raysl's have square patches")
    width, channels, patch, _ = kernel
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
        # tensors do not show the heads: take those of a named size of the same width
        heads = heads or (next((many for wide, _, many in SIZES.values() if wide == width), None))
        if heads is None and width % 64 == 0:
            heads = width // 64  # as the papers have it
    if heads is not None and width % heads == 0 and not (size and SIZES[size][2] == heads):
        settings |= {"heads": heads}
    if "pos_embed" in tensors:
        settings |= {"image_size": patch * grid_side(tensors["pos_embed"])}
    if _has_gates(tensors, where):
        settings |= {"mlp": "swiglu"}
    if "blocks.0.ls1.gamma" in tensors:
        # any number does: it only makes the factors, whose values come from the file
        settings |= {"layer_scale": 1e-5}
    if "reg_token" in tensors:
        settings |= {"num_registers": int(tensors["reg_token"].shape[1])}
    if "mask_token" in tensors:
        settings |= {"mask_token": True}
    return settings


def _has_gates(tensors: Tensors, where: str) -> bool:
    """Whether the MLPs of a ViT are gated, of the width that raysl's have."""
    first, second = (tensors.get(f"blocks.0.mlp.{name}.weight") for name in ("fc1", "fc2"))
    if first is None or second is None:
        names = ", ".join(name for name in tensors if name.startswith("blocks.0.mlp.")) or "none"
        raise ConfigError(
            f"{where} is a ViT with other MLPs than raysl's: it has the tensors {names}; name timm's network, "
            "such as backbone=timm backbone.model=vit_giant_patch14_dinov2"
        )
    width, inner = second.shape
    if first.shape[0] != 2 * inner:
        return False
    if inner != gated_width(width):
        raise ConfigError(
            f"{where} is a ViT whose MLPs have gates and a width of {inner}; raysl's has {gated_width(width)}. Name "
            "timm's network, such as backbone=timm backbone.model=vit_small_plus_patch16_dinov3_qkvb"
        )
    return True


def _channels(num: int) -> dict[str, int]:
    """Return the setting of a first layer for other images than RGB."""
    return {} if num == 3 else {"in_channels": num}


def _count(names: Iterable[str], module: str) -> int:
    numbers = {int(match[1]) for name in names if (match := re.match(rf"{module}\.(\d+)\.", name))}
    return max(numbers, default=-1) + 1


def grid_side(positions: Tensor) -> int:
    """Return the side, in patches, of position embeddings [1, 1 + side*side, D].

    >>> grid_side(torch.zeros(1, 1 + 14 * 14, 8))
    14
    """
    return math.isqrt(positions.shape[1] - 1)


def with_square_positions(tensors: Mapping[str, Tensor], grid: str | None, where: str) -> dict[str, Tensor]:
    """Return a ViT's tensors with position embeddings of the class token and of a square of patches, [1, 1 + s*s, D].

    Positions of registers are added to the registers, and a class token without a position gets one of zeros, which
    leaves the features as they are.

    Args:
        grid: rows and columns of patches, "14x14", where the user gave them.

    Raises:
        ConfigError: if no square fits, or if several readings fit and `grid` does not choose one.
    """
    positions = tensors.get("pos_embed")
    if positions is None:
        return dict(tensors)
    if positions.ndim != 3:
        raise ConfigError(
            f"{where} has position embeddings of shape {list(positions.shape)}; raysl's ViT takes a row for each token"
        )
    num_registers = tensors["reg_token"].shape[1] if "reg_token" in tensors else 0
    num_first = _num_before_patches(tensors, positions.shape[1], num_registers, grid, where)
    first, patches = positions[:, :num_first], positions[:, num_first:]
    start = first[:, :1] if num_first else torch.zeros_like(positions[:, :1])
    square = {**tensors, "pos_embed": torch.cat([start, patches], dim=1)}
    if num_first > 1:
        square["reg_token"] = square["reg_token"] + first[:, 1:]
    return square


def _num_before_patches(
    tensors: Mapping[str, Tensor], num: int, num_registers: int, grid: str | None, where: str
) -> int:
    """Return how many of `num` positions belong to the class token and the registers: 0, 1, or all of these tokens."""
    counts = (1, 0, 1 + num_registers) if num_registers else (1, 0)
    if grid is not None:
        return _num_by_grid(grid, counts, num, where)
    sides = {count: math.isqrt(num - count) for count in counts if num > count}
    squares = {count: side for count, side in sides.items() if side**2 == num - count}
    if not squares:
        raise ConfigError(
            f"{where} has {num} position embeddings, not one for a class token and a square of patches (perhaps a ViT "
            "with a distillation token, or for images that are not square); raysl's ViT takes only those"
        )
    # With registers, timm gives positions to patches alone; without a class token there is none to give one to.
    is_clear = list(squares) != [0] or num_registers > 0 or "cls_token" not in tensors
    if len(squares) == 1 and is_clear:
        return next(iter(squares))
    side = next(iter(squares.values()))
    readings = [f"{side}x{side} patches with {_OWNERS[min(count, 2)]}" for count, side in squares.items()]
    # side^2 positions are also one of a class token and (side + 1) * (side - 1) of patches
    if list(squares) == [0]:
        readings.append(f"images that are not square, such as {side + 1}x{side - 1} patches, with {_OWNERS[1]}")
    choices = " or ".join(f"{side}x{side}" for side in dict.fromkeys(squares.values()))
    raise ConfigError(
        f"{where} has {num} position embeddings, which fit {' and '.join(readings)}; give grid={choices}, on the "
        f"command line --grid {choices}, if that is its grid. raysl's ViT takes squares only"
    )


_OWNERS = ("none for the class token", "one for the class token", "one for the class token and each register")


def _num_by_grid(grid: str, counts: tuple[int, ...], num: int, where: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", grid)
    if match is None:
        raise ConfigError(f"grid={grid!r}: give rows and columns of patches, such as 14x14")
    rows, columns = int(match[1]), int(match[2])
    if rows != columns:
        raise ConfigError(
            f"grid={grid}: raysl's ViT is trained on square images; read these weights by the library that wrote them"
        )
    if (count := num - rows * columns) not in counts:
        expected = " or ".join(str(rows * columns + count) for count in sorted(counts))
        raise ConfigError(f"grid={grid} has {expected} positions, and {where} has {num}; give its own grid")
    return count
