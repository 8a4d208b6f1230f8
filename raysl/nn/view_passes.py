"""Views of one size through one network: each view by itself, or all in one pass."""

from typing import Literal

import torch
from torch import Tensor, nn

ViewNorm = Literal["per_view", "joint"]
"""Images that batch normalisation takes its statistics over: those of each view by itself, or those of all views."""


def features_of_views(network: nn.Module, views: Tensor, batch_norm: ViewNorm) -> Tensor:
    """Features of all views, [B, V, D].

    Args:
        network: from images [n, ...] to features [n, D].
        views: [B, V, ...].
        batch_norm: "per_view" makes one pass a view, so that batch normalisation sees each view by itself and tracks
            one after another; "joint" makes one pass of all.
    """
    if batch_norm == "joint":
        features: Tensor = network(views.flatten(0, 1)).unflatten(0, views.shape[:2])
        return features
    return torch.stack([network(view) for view in views.unbind(dim=1)], dim=1)
