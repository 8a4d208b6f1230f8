"""Patches and their masks, for methods on ViTs, and the checks of these methods before a process starts."""

from typing import Literal

import torch
from torch import Tensor

from raysl.config.linked import find_size_setting
from raysl.methods.method import Backbone, ConfigError, Method, Setup, TokenBackbone
from raysl.nn.backbones.vit import ViT
from raysl.nn.views import masked_places
from raysl.transforms import BlockMask, MultiBlockMask


def patch_side(setup: Setup, title: str) -> int:
    """Return the side of the backbone's patches in pixels.

    Raises:
        ConfigError: if the backbone has no patches.
    """
    if setup.backbone.patch_size is None:
        raise ConfigError(
            f"backbone {setup.config.backbone.name!r} has no patches, and {title} masks some of them; "
            "set backbone=vit, or another TokenBackbone"
        )
    return setup.backbone.patch_size


def grid_side(setup: Setup, title: str) -> int:
    """Return the number of patches along a side of `Config.views`; arguments are those of `patch_side`.

    Raises:
        ConfigError: if the backbone has no patches, or they do not cover a view exactly.
    """
    patch_size, size = patch_side(setup, title), setup.method.views.size
    rest = size % patch_size
    if rest or size < patch_size:
        ways = [str(side) for side in (size - rest, size - rest + patch_size) if side >= patch_size]
        raise ConfigError(
            f"views of {size} pixels are not covered by patches of {patch_size}; "
            f"set {find_size_setting(setup.config, size)}={' or '.join(ways)}, or another backbone.patch_size"
        )
    return int(size // patch_size)


def check_small_views(setup: Setup, title: str) -> None:
    """Refuse small views that patches do not cover exactly; arguments are those of `patch_side`."""
    patch_size, local = patch_side(setup, title), setup.method.views.local_size
    if setup.method.views.num_local and (rest := local % patch_size):
        ways = [str(size) for size in (local - rest, local - rest + patch_size) if size >= patch_size]
        raise ConfigError(
            f"small views of {local} pixels are not covered by patches of {patch_size}; "
            f"set method.views.local_size={' or '.join(ways)}, or method.views.num_local=0"
        )


def check_mask_size(setup: Setup, title: str) -> None:
    """Refuse masked squares that are not made of whole patches or do not cover a view exactly; arguments are those of
    `patch_side`.
    """
    patch_size, size, side = patch_side(setup, title), setup.method.views.size, setup.method.mask_size
    if side % patch_size or size % side:
        fits = [str(width) for width in range(patch_size, size, patch_size) if size % width == 0]
        raise ConfigError(
            f"method.mask_size is {side}, and has to be a multiple of patches of {patch_size} pixels that divides "
            f"views of {size}; give {' or '.join(fits) or 'smaller patches'}"
        )


def need_mask_token(setup: Setup, title: str) -> None:
    """Refuse a ViT without a token for masked patches."""
    backbone = setup.config.backbone
    if isinstance(backbone, ViT.Config) and not backbone.mask_token:
        raise ConfigError(
            f"backbone.mask_token is false, and {title} puts that token in place of masked patches; "
            "set backbone.mask_token=true"
        )


def check_width(part: str, width: int, heads: int) -> None:
    """Refuse a width of a method's small ViT, `method.{part}_width`, that its heads or positions do not divide."""
    if width % 4 or width % heads:
        raise ConfigError(
            f"method.{part}_width is {width}, and has to be a multiple of 4, for the positions, and of "
            f"method.{part}_heads={heads}; try {part}_heads=4 {part}_width={max(width // 4 * 4, 4)}"
        )


def token_backbone(backbone: Backbone) -> TokenBackbone:
    """Return the same backbone, typed as one with tokens."""
    if not isinstance(backbone, TokenBackbone):
        raise TypeError(f"{type(backbone).__name__} has a patch_size and is not a TokenBackbone; derive it from that")
    return backbone


class PatchMethod(Method):
    """Base of methods that learn from patches, each of which has a token."""

    backbone: TokenBackbone

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, token_backbone(backbone))


def block_mask(setup: Setup, title: str, min_block: int | None = None) -> BlockMask:
    """Return the mask of large views: none for half of them, else blocks that cover a share in `method.mask_share`.

    Args:
        min_block: patches in the smallest block; None for a ninth of a view's, as in BEiT.
    """
    low, high = setup.method.mask_share
    # pairs of mean and spread: one of no mask, and one that reaches from `low` to `high`
    ratios = ((0.0, 0.0), ((low + high) / 2, (high - low) / 2))
    return BlockMask(
        patch_size=patch_side(setup, title),
        ratios=ratios,
        aspect=setup.method.mask_aspect,
        min_block=min_block,
    )


def most_masked(setup: Setup, title: str) -> int:
    """Return the largest number of masked patches in a large view; arguments are those of `block_mask`."""
    return block_mask(setup, title).most_masked(grid_side(setup, title) ** 2)


PatchLoss = Literal["masked", "all"]
"""Patches of large views that have a loss."""


def num_learned(setup: Setup, title: str) -> int:
    """Return the largest number of patches of a large view that have a loss; arguments are those of `block_mask`."""
    return grid_side(setup, title) ** 2 if setup.method.patch_loss == "all" else most_masked(setup, title)


def learned_places(mask: Tensor, num: int, patch_loss: PatchLoss) -> tuple[Tensor, Tensor]:
    """Return indices of each view's patches with a loss, int64 [B, G, num], and which of these have one, bool.

    >>> learned_places(torch.tensor([[[[False, True], [False, False]]]]), num=4, patch_loss="all")[1]
    tensor([[[True, True, True, True]]])

    Args:
        mask: mask of the large views, bool [B, G, h, w].
        num: result of `num_learned`.
    """
    return masked_places(mask if patch_loss == "masked" else torch.ones_like(mask), num)


def check_block_masks(setup: Setup, title: str) -> None:
    """Refuse backbones without patches or mask token, views that patches do not cover, and empty masks.

    Arguments are those of `block_mask`.
    """
    side = grid_side(setup, title)
    need_mask_token(setup, title)
    check_small_views(setup, title)
    if most_masked(setup, title) < 1:
        raise ConfigError(
            f"method.mask_share={list(setup.method.mask_share)} masks none of the {side**2} patches of a large view; "
            "give larger shares, or smaller patches"
        )


def multi_block_mask(setup: Setup, title: str) -> MultiBlockMask:
    """Return the mask of each view, its context and targets, from the settings of the method with its names; arguments
    are those of `patch_side`.
    """
    names = ("num_targets", "target_scale", "target_aspect", "context_scale", "min_context", "max_context")
    settings = {name: getattr(setup.method, name) for name in names}
    return MultiBlockMask(patch_size=patch_side(setup, title), **settings)


def check_context(setup: Setup, title: str) -> None:
    """Refuse backbones without patches, and views too small for a context; arguments are those of `patch_side`."""
    config, side = setup.method, grid_side(setup, title)
    most, _ = multi_block_mask(setup, title).most((config.views.size, config.views.size))
    if most < max(config.min_context, 1):
        raise ConfigError(
            f"a context has at most {most} of the {side**2} patches of a view, and method.min_context is "
            f"{config.min_context}; take a smaller backbone.patch_size, smaller method.target_scale, or fewer"
        )
