"""Several views of an image through one network: of several sizes, of one size, or with masked patches."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from raysl.nn.backbones.backbone import TokenBackbone, visible_places

GROUPS = ("global", "local")
"""Groups of `MultiCrop`, in the order in which their views are numbered."""


def multi_crop(network: Callable[[Tensor], Tensor], views: dict[str, Tensor]) -> Tensor:
    """Return features of an image's large views and then its small views, [B, V, D], in one pass per size.

    Batch normalisation sees each size separately, as in SwAV's code (Caron et al. 2020, arXiv 2006.09882).

    >>> views = {"global": torch.zeros(5, 2, 3, 8, 8), "local": torch.zeros(5, 6, 3, 4, 4)}
    >>> multi_crop(lambda images: images.mean(dim=(2, 3)), views).shape
    torch.Size([5, 8, 3])

    Args:
        network: module from images [n, C, H, W] to features [n, D].
        views: [B, V_g, C, H, W] by group; those of `GROUPS` that exist are used.
    """
    groups = [views[name] for name in GROUPS if name in views]
    return torch.cat([network(group.flatten(0, 1)).reshape(*group.shape[:2], -1) for group in groups], dim=1)


ViewNorm = Literal["per_view", "joint"]
"""Images that batch normalisation takes its statistics over: those of each view separately, or of all views."""


def features_of_views(network: nn.Module, views: Tensor, batch_norm: ViewNorm) -> Tensor:
    """Return features of all views, [B, V, D].

    >>> features_of_views(nn.Flatten(), torch.zeros(5, 2, 3, 8, 8), "joint").shape
    torch.Size([5, 2, 192])

    Args:
        network: module from images [n, ...] to features [n, D].
        views: [B, V, ...].
        batch_norm: "per_view" makes one pass per view, so that batch normalisation sees each view separately and tracks
            one after another; "joint" makes one pass over all views.
    """
    if batch_norm == "joint":
        features: Tensor = network(views.flatten(0, 1)).unflatten(0, views.shape[:2])
        return features
    return torch.stack([network(view) for view in views.unbind(dim=1)], dim=1)


def token_crops(network: TokenBackbone, views: dict[str, Tensor], mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return class tokens of an image's large and then its small views, [B, V, D], and patches of the large views,
    [B, G, N, D], in one pass per size.

    Args:
        network: a backbone with tokens.
        views: "global" [B, G, C, H, W], and "local" if there are small views.
        mask: mask of the large views, bool [B, G, h, w]; None masks nothing.
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
    """Return indices of each view's masked patches, int64 [B, G, num], and which of them are masked, bool [B, G, num].

    Views have different numbers of masked patches, and counting them would wait for the GPU: so each view gives `num`
    patches, its masked ones first.

    >>> masked_places(torch.tensor([[[[False, True], [False, False]]]]), num=2)
    (tensor([[[1, 0]]]), tensor([[[ True, False]]]))

    Args:
        mask: bool [B, G, h, w].
        num: largest number of masked patches of a view, `BlockMask.most_masked`; views of fewer patches than that give
            all of them.
    """
    num = min(num, mask.shape[2] * mask.shape[3])
    index = visible_places(~mask.flatten(0, 1), num).view(*mask.shape[:2], num)
    return index, mask.flatten(2).gather(2, index)


def at_places(patches: Tensor, index: Tensor) -> Tensor:
    """Return the patches [B, G, M, D] of all [B, G, N, D] at the indices `index` [B, G, M].

    >>> at_places(torch.arange(3.0).view(1, 1, 3, 1), torch.tensor([[[2, 0]]])).flatten()
    tensor([2., 0.])
    """
    return patches.gather(2, index[..., None].expand(-1, -1, -1, patches.shape[-1]))
