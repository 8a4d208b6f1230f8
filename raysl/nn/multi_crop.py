"""Views of several sizes through one network."""

import torch
from torch import Tensor, nn

GROUPS = ("global", "local")
"""Groups of `MultiCrop`, in the order in which their views are numbered."""


def multi_crop(network: nn.Module, views: dict[str, Tensor]) -> Tensor:
    """Features of an image's large views and then its small ones, [B, V, D]: one pass for each size.

    Batch normalisation sees each size for itself, as in SwAV's code (Caron et al. 2020, arXiv 2006.09882).

    Args:
        network: from images [n, C, H, W] to features [n, D].
        views: [B, V_g, C, H, W] by group, of which `GROUPS` are taken where they are there.
    """
    groups = [views[name] for name in GROUPS if name in views]
    return torch.cat([network(group.flatten(0, 1)).unflatten(0, group.shape[:2]) for group in groups], dim=1)
