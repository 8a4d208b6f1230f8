"""Means and covariances of embeddings over the rows of all ranks, with gradients.

Each rank works on its own rows, and the sums over ranks are small: a vector of D and a matrix of D x D, however many
rows there are. Nothing is read back from the device.
"""

import torch
from torch import Tensor

from raysl import distributed as dist


def centred(z: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's rows [B, ..., D] minus the mean of all ranks' [..., D], and how many rows all have, a scalar."""
    total = dist.all_sum(torch.cat([z.sum(dim=0).flatten(), z.new_full((1,), len(z))]))
    num_rows = total[-1].detach()
    return z - (total[:-1] / num_rows).view(z.shape[1:]), num_rows


def products(first: Tensor, second: Tensor) -> Tensor:
    """Sum of the outer products of rows over all ranks, of [B, D] and [B, E] to [D, E]."""
    with torch.autocast(first.device.type, enabled=False):
        return dist.all_sum(first.T @ second)
