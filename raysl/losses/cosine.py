"""Losses that pull embeddings together and push none away."""

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """Mean over rows of -cos(p, z) (SimSiam, Chen and He 2020, arXiv 2011.10566, eq. 1), in [-1, 1].

    The squared distance of unit vectors, BYOL's loss (Grill et al. 2020, arXiv 2006.07733, eq. 2), is 2 + 2 times it.

    Args:
        p: predictions [B, D], of any length.
        z: what they are to agree with [B, D], likewise; gradients flow into it too unless it is detached.
    """
    with torch.autocast(p.device.type, enabled=False):
        p, z = (F.normalize(at_least_fp32(rows), dim=-1) for rows in (p, z))
        return -(p * z).sum(dim=-1).mean()
