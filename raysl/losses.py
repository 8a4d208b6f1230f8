"""Losses: pure functions, tensors in, a scalar out; never below fp32 inside, float64 in stays float64.

Where a loss compares this rank's rows with "the batch", the batch is an argument, gathered by `raysl.dist.all_gather`.
None reads a number from its tensors or picks by a mask, so that nobody has to wait for a GPU.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def nt_xent(z: Tensor, z_all: Tensor, rows: Tensor, temperature: float = 0.1) -> Tensor:
    """Normalised temperature-scaled cross entropy (SimCLR, Chen et al. 2020, arXiv 2002.05709, eq. 1).

    Every view is an anchor. Its positives are the other views of its image, one term each; its negatives are all views
    of all other images of the batch. Mean over images, anchors and positives.

    Args:
        z: embeddings of this rank's images [B, V, D], V >= 2; of any length, they are normalised here.
        z_all: embeddings of the whole batch [N, V, D], N >= 2, this rank's among them.
        rows: int64 [B], the places of this rank's images in `z_all`.
        temperature: above 0.

    Raises:
        ValueError: if there are fewer than two views or images.
    """
    with torch.autocast(z.device.type, enabled=False):
        positives, negatives = _pairs(z, z_all, rows)  # [B, V, V], [B, V, N*V]
        against = torch.logsumexp(negatives / temperature, dim=-1, keepdim=True)  # [B, V, 1]
        terms = -F.logsigmoid(positives / temperature - against)  # [B, V, V]
        return _over_positives(terms)


@torch.no_grad()
def contrastive_accuracy(z: Tensor, z_all: Tensor, rows: Tensor) -> Tensor:
    """Share of (anchor, positive) pairs that are closer than the anchor and each of its negatives; see `nt_xent`."""
    with torch.autocast(z.device.type, enabled=False):
        positives, negatives = _pairs(z, z_all, rows)
        return _over_positives((positives > negatives.amax(dim=-1, keepdim=True)).float())


def _pairs(z: Tensor, z_all: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines of each anchor with its image's views [B, V, V], and with all views [B, V, N*V], own image at -inf."""
    num_images, num_views, _ = z_all.shape
    if num_views < 2 or num_images < 2:
        raise ValueError(f"contrast needs two views and two images at least, got {num_views} and {num_images}")
    z, z_all = _unit(z), _unit(z_all)
    cosines = torch.einsum("bvd,nwd->bvnw", z, z_all)  # [B, V, N, V]
    own = torch.arange(len(rows), device=rows.device)
    positives = cosines[own, :, rows]  # [B, V, V]
    is_own = (rows[:, None] == torch.arange(num_images, device=rows.device))[:, None, :, None]  # [B, 1, N, 1]
    return positives, cosines.masked_fill(is_own, -torch.inf).flatten(2)


def at_least_fp32(values: Tensor) -> Tensor:
    """Half types as float32, others as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _unit(z: Tensor) -> Tensor:
    return F.normalize(at_least_fp32(z), dim=-1)


def _over_positives(terms: Tensor) -> Tensor:
    """Mean of [B, V, V] without the diagonal, where a view meets itself."""
    num_views = terms.shape[-1]
    is_self = torch.eye(num_views, dtype=torch.bool, device=terms.device)
    return terms.masked_fill(is_self, 0.0).mean() * (num_views / (num_views - 1))
