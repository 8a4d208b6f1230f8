"""How far embeddings have collapsed, which every method logs."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist

COLLAPSE = ("embedding_std", "effective_rank")
"""Names of the metrics that `collapse` returns."""


def batch_collapse(z: Tensor) -> dict[str, Tensor]:
    """Return `collapse` of the embeddings of all ranks, or nothing in a step of the loop whose line is not logged.

    Gathering them and their covariance cost as much as a loss (550 GFLOP for 65,536 embeddings of width 2,048). Every
    rank calls it in a step.

    >>> with logging(is_due=False):
    ...     batch_collapse(torch.eye(4))
    {}

    Args:
        z: embeddings of this rank's images [B, D], or of their views [B, V, D].
    """
    return collapse(dist.all_gather(z.detach()).flatten(0, -2)) if _is_due else {}


@contextmanager
def logging(is_due: bool) -> Iterator[None]:
    """Say whether the metrics of a step are logged, while it is open; outside of it they are."""
    global _is_due
    before, _is_due = _is_due, is_due
    try:
        yield
    finally:
        _is_due = before


_is_due = True


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
        z = z - z[:1]  # equal rows become exactly 0, which those minus their rounded mean do not
        centred = z - z.mean(dim=0)  # [N, D]
        sides = centred if len(z) < z.shape[-1] else centred.T  # [N, D] or [D, N], the fewer rows
        covariance = sides @ sides.T / len(z)  # [N, N] or [D, D], of the same trace and sum of squares
        spread = centred.square().mean(dim=0).sqrt().mean() * math.sqrt(z.shape[-1])
        total, squares = covariance.diagonal().sum(), covariance.square().sum()
        smallest = torch.finfo(z.dtype).tiny
        return {"embedding_std": spread, "effective_rank": total.square() / squares.clamp_min(smallest)}
