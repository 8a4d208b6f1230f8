"""How far embeddings have collapsed, which every method logs."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

COLLAPSE = ("embedding_std", "effective_rank")
"""Names of the metrics that `collapse` returns."""


@torch.no_grad()
def collapse(z: Tensor) -> dict[str, Tensor]:
    """Measure spread and rank of embeddings, each scaled to unit length.

    >>> {name: round(value.item(), 2) for name, value in collapse(torch.ones(8, 4)).items()}
    {'embedding_std': 0.0, 'effective_rank': 0.0}

    Args:
        z: embeddings of the whole batch [N, D], of any length.

    Returns:
        `embedding_std`: standard deviation by dimension, times sqrt(D): 1 if spread evenly over the sphere, 0 if
        collapsed. `effective_rank`: (tr C)^2 / tr(C^2) of their covariance C, the participation ratio: D if all
        directions are used equally, 1 if only one is, and 0 if all embeddings are equal.
    """
    with torch.autocast(z.device.type, enabled=False):
        z = F.normalize(z.detach().to(torch.promote_types(z.dtype, torch.float32)), dim=-1)
        centred = z - z.mean(dim=0)  # [N, D]
        sides = centred if len(z) < z.shape[-1] else centred.T  # [N, D] or [D, N], the fewer rows
        covariance = sides @ sides.T / len(z)  # [N, N] or [D, D], of the same trace and sum of squares
        spread = centred.square().mean(dim=0).sqrt().mean() * math.sqrt(z.shape[-1])
        total, squares = covariance.diagonal().sum(), covariance.square().sum()
        smallest = torch.finfo(z.dtype).tiny
        return {"embedding_std": spread, "effective_rank": total.square() / squares.clamp_min(smallest)}
