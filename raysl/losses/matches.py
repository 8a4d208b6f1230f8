"""Pairs of places of two views, and how far embeddings of many places spread."""

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


def best_matches(distances: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Pair each place of one view with its nearest one of another, and return the pairs that are nearest to each other
    (VICRegL, Bardes, Ponce and LeCun 2022, arXiv 2210.01571, section 3.2).

    >>> best_matches(torch.tensor([[[5.0, 3.0], [1.0, 9.0], [7.0, 8.0]]]), num=2)
    (tensor([[0, 1]]), tensor([[1, 0]]))

    Args:
        distances: [B, P, Q], of each of P places from each of Q others.
        num: number M of pairs to return; all P if it is larger.

    Returns:
        Indices of the places and of their partners, int64 [B, M] each, in the order of the places; of equally near
        places the first ones.
    """
    nearest, partners = distances.min(dim=2)  # [B, P]
    nearest_first = nearest.sort(dim=1, stable=True).indices[:, :num].sort(dim=1).values
    return nearest_first, partners.gather(1, nearest_first)


def spread(covariances: Tensor, target_std: float = 1.0, eps: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Return VICReg's two terms of one view for each of several covariance matrices (Bardes, Ponce and LeCun 2022,
    arXiv 2105.04906, eq. 1 and 4).

    >>> spread(torch.tensor([[[0.25, 0.5], [0.5, 4.0]]]), eps=0.0)
    (tensor([0.2500]), tensor([0.2500]))

    Args:
        covariances: [..., D, D], over the whole batch.
        target_std: standard deviation from which on a dimension costs nothing, above 0.
        eps: added to variances before their root, above 0 where a dimension may be constant.

    Returns:
        Hinges of the standard deviations, a mean over dimensions, and squared covariances of different dimensions, over
        D: [...] each.
    """
    with torch.autocast(covariances.device.type, enabled=False):
        c = at_least_fp32(covariances)
        variances = c.diagonal(dim1=-2, dim2=-1)  # [..., D]
        hinges = F.relu(target_std - (variances + eps).sqrt()).mean(dim=-1)
        squares = c.square().sum(dim=(-2, -1)) - variances.square().sum(dim=-1)
        return hinges, squares / c.shape[-1]
