"""Weights of a network for images of other channels, other patches or another size, by stated rules.

What no rule covers stays as it is, and is refused where the tensors are loaded.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.positions import resize_positions

PATCHES = "patch_embed.proj.weight"
PLACES = "pos_embed"
AT_RANDOM = ("reg_token", "mask_token")
"""Tokens of a ViT that begin at random where the weights have none."""
LEFT_OUT = ("mask_token",)
"""Tokens on which no feature depends: they are left out where the network has none."""

Tensors = Mapping[str, Tensor]


def adapt(backbone: Backbone, weights: Tensors) -> tuple[dict[str, Tensor], list[str]]:
    """Return weights for a backbone of other channels, patches or size, and a line for each that was changed.

    * The first convolution, or the map of patches, for other channels: see `adapt_channels`.
    * A ViT's map of patches of another side: see `resize_patches`.
    * A ViT's trained positions of another grid: interpolated, see `resize_positions`.
    * Registers and a token for masked patches that the weights lack begin as the backbone has them, at random. A token
      for masked patches that the backbone lacks is left out.

    Args:
        backbone: network whose shapes count; it may be on the meta device, and stays as it is.
        weights: tensors by the backbone's names.
    """
    wanted, adapted, notes = backbone.state_dict(), dict(weights), list[str]()
    for name in AT_RANDOM:
        if name in wanted and name not in weights:
            adapted[name] = wanted[name]
            notes.append(f"{name} begins at random")
    for name in LEFT_OUT:
        if name in weights and name not in wanted:
            del adapted[name]
            notes.append(f"{name} is left out")
    for name, value in weights.items():
        if name not in wanted or value.shape == wanted[name].shape:
            continue
        fitting = _adapted(name, value, wanted[name].shape, backbone)
        if fitting is not None:
            adapted[name] = fitting
            notes.append(f"{name} from {list(value.shape)} to {list(fitting.shape)}")
    return adapted, notes


def _adapted(name: str, value: Tensor, wanted: torch.Size, backbone: Backbone) -> Tensor | None:
    """Return a tensor in the wanted shape; None if there is no rule."""
    if name.endswith(PLACES) and value.ndim == 3 == len(wanted) and value.shape[2] == wanted[2]:
        old, new = (math.isqrt(max(num - 1, 0)) for num in (value.shape[1], wanted[1]))
        if old < 1 or new < 1 or old**2 != value.shape[1] - 1 or new**2 != wanted[1] - 1:
            return None
        how: Any = getattr(backbone.config, "position_resize", "antialias")
        return torch.cat([value[:, :1], resize_positions(value[:, 1:], (old, old), (new, new), how)], dim=1)
    if value.ndim != 4 or len(wanted) != 4 or value.shape[0] != wanted[0]:
        return None
    if value.shape[1] != wanted[1] and wanted[1] == backbone.in_channels and value.shape[1] <= MOST_CHANNELS:
        value = adapt_channels(value, wanted[1])
    is_square = value.shape[2] == value.shape[3] and wanted[2] == wanted[3]
    if name.endswith(PATCHES) and value.shape[1] == wanted[1] and is_square:
        value = resize_patches(value, wanted[2])
    return value if value.shape == wanted else None


MOST_CHANNELS = 12


def adapt_channels(weight: Tensor, num: int) -> Tensor:
    """Return the weights of a first convolution [D, C, h, w] for images of `num` channels [D, num, h, w].

    For one channel they are summed. Else they are repeated, as many as are needed, and multiplied by C / num, so that
    the output keeps its scale: the rule of timm (`adapt_input_conv`), whose C is 3.

    >>> adapt_channels(torch.tensor([3.0, 6.0, 9.0]).view(1, 3, 1, 1), 4).flatten()
    tensor([2.2500, 4.5000, 6.7500, 2.2500])
    """
    channels = weight.shape[1]
    if num == 1:
        return weight.sum(dim=1, keepdim=True)
    if num == channels:
        return weight
    repeated = weight.repeat(1, -(-num // channels), 1, 1)[:, :num]
    return repeated * (channels / num)


def resize_patches(weight: Tensor, side: int) -> Tensor:
    """Return the weights of a map of patches [D, C, p, p] for patches of another side [D, C, side, side].

    A patch that is resized bilinearly gets the token that it had, exactly where it is enlarged: the weights are
    multiplied by the pseudo-inverse of the matrix of that resize (FlexiViT, Beyer et al. 2022, arXiv 2212.08013,
    section 3.4, "PI-resize").

    >>> weight, patch = torch.rand(1, 1, 2, 2), torch.rand(1, 1, 2, 2)
    >>> large = F.interpolate(patch, (5, 5), mode="bilinear", antialias=True)
    >>> bool(((resize_patches(weight, 5) * large).sum() - (weight * patch).sum()).abs() < 1e-5)
    True
    """
    old = weight.shape[-1]
    if old == side:
        return weight
    basis = torch.eye(old * old, dtype=torch.float64, device="cpu").view(old * old, 1, old, old)
    resize = F.interpolate(basis, (side, side), mode="bilinear", antialias=True).flatten(1)  # [p*p, side*side]
    inverse = torch.linalg.pinv(resize)  # [side*side, p*p]
    if weight.is_meta:
        return weight.new_empty(*weight.shape[:2], side, side)
    out: Tensor = weight.detach().double().cpu().flatten(2) @ inverse.T  # [D, C, side*side]
    return out.view(*weight.shape[:2], side, side).to(weight)
