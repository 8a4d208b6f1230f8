"""Views of which patches are masked, through a network with tokens."""

import torch
from torch import Tensor

from raysl.nn.backbones.backbone import TokenBackbone, visible_places


def token_crops(network: TokenBackbone, views: dict[str, Tensor], mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Class tokens of an image's large views and then its small ones, [B, V, D], and the patches of the large ones,
    [B, G, N, D]: one pass for each size.

    Args:
        network: whose tokens these are.
        views: "global" [B, G, C, H, W], and "local" where there are small ones.
        mask: of the large views, bool [B, G, h, w]; None leaves them whole.
    """
    large = views["global"]
    tokens = network.tokens(large.flatten(0, 1), None if mask is None else mask.flatten(0, 1))
    tokens = tokens.view(*large.shape[:2], *tokens.shape[1:])  # [B, G, T, D]
    h, patches = tokens[:, :, 0], tokens[:, :, network.num_prefix_tokens :]
    if "local" in views:
        small = views["local"]
        local = network.tokens(small.flatten(0, 1))[:, 0].view(*small.shape[:2], -1)  # [B, L, D]
        h = torch.cat([h, local], dim=1)
    return h, patches


def masked_places(mask: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Places of each view's masked patches, int64 [B, G, num], and which of these are masked, bool [B, G, num].

    Masks hide different numbers of patches, and nobody is to wait for a GPU to count them: so each view gives `num`
    patches, its masked ones first.

    Args:
        mask: bool [B, G, h, w].
        num: as many as any view may have masked, `BlockMask.most_masked`.
    """
    places = visible_places(~mask.flatten(0, 1), num).view(*mask.shape[:2], num)
    return places, mask.flatten(2).gather(2, places)


def at_places(patches: Tensor, places: Tensor) -> Tensor:
    """Those patches [B, G, M, D] of all [B, G, N, D] that are at `places` [B, G, M]."""
    return patches.gather(2, places[..., None].expand(-1, -1, -1, patches.shape[-1]))
