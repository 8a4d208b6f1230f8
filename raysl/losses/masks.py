"""Contrast of the parts of images that masks cut out."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


class DetConLoss(NamedTuple):
    """The loss of DetCon and what it is about, scalars."""

    loss: Tensor
    """Equation 3, both views together."""
    agreement: Tensor
    """Mean cosine of a mask's vector with those of the same mask in the other view, over masks that are in both."""
    matched: Tensor
    """Share of the drawn masks that are drawn in the other view, too, in [0, 1]."""


def detcon(
    p: Tensor, masks: Tensor, targets: Tensor, targets_all: Tensor, rows: Tensor, temperature: float = 0.1
) -> DetConLoss:
    """Contrast each mask of a view with the same mask in the other view, among all masks of all images (DetCon, Hénaff
    et al. 2021, arXiv 2103.10957, eq. 3, and the authors' losses.py).

    Negatives are all other masks of both views, those of the same image too. A mask that is drawn several times counts
    as often, at a weight of one over that number; a mask that the other view has not costs nothing.

    >>> p = torch.eye(4).view(2, 1, 2, 4).expand(2, 2, 2, 4)  # two images, two equal views, two masks
    >>> out = detcon(p, torch.arange(2).expand(2, 2, 2), p, p, torch.arange(2), temperature=0.1)
    >>> out.agreement, out.matched
    (tensor(1.), tensor(1.))

    Args:
        p: predictions of the M masks of two views of this rank's images [B, 2, M, D], of any length.
        masks: number of each mask in its image, int64 [B, 2, M], possibly repeated.
        targets: embeddings that the same masks are compared with, of this rank's images [B, 2, M, D].
        targets_all: the same of all ranks [N, 2, M, D].
        rows: indices of this rank's images among all, int64 [B].
        temperature: T, above 0.

    Raises:
        ValueError: if the shapes do not fit.
    """
    if p.ndim != 4 or p.shape[1] != 2 or targets.shape != p.shape or masks.shape != p.shape[:3]:
        shapes = ", ".join(str(list(x.shape)) for x in (p, masks, targets))
        raise ValueError(f"p, masks and targets of {shapes} must be [B, 2, M, D], [B, 2, M] and [B, 2, M, D]")
    with torch.autocast(p.device.type, enabled=False):
        p, targets, targets_all = (F.normalize(at_least_fp32(x), dim=-1) for x in (p, targets, targets_all))
        views = [_one_view(p, masks, targets, targets_all, rows, view, temperature) for view in range(2)]
        losses, cosines, numbers, matched = (torch.stack(values) for values in zip(*views, strict=True))
        return DetConLoss(losses.sum(), cosines.sum() / numbers.sum().clamp_min(1), matched.mean())


def _one_view(
    p: Tensor, masks: Tensor, targets: Tensor, targets_all: Tensor, rows: Tensor, view: int, temperature: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss of one view's unit vectors, the sum of its cosines with the same masks in the other view, their
    number, and the share of its masks that have any."""
    z, other = p[:, view], 1 - view  # [B, M, D]
    is_same = masks[:, view, :, None] == masks[:, other, None, :]  # [B, M, M]
    is_self = masks[:, view, :, None] == masks[:, view, None, :]
    own_image = rows[:, None] == torch.arange(len(targets_all), device=rows.device)  # [B, N]
    # a mask is no negative of itself, not even where it was drawn several times
    excluded = own_image[:, None, :, None] & is_self[:, :, None]  # [B, M, N, M]
    across = torch.einsum("bmd,nkd->bmnk", z, targets_all[:, other]) / temperature
    within = torch.einsum("bmd,nkd->bmnk", z, targets_all[:, view]) / temperature
    scores = torch.cat([across, within.masked_fill(excluded, -torch.inf)], dim=2).flatten(2)  # [B, M, 2*N*M]
    cosines = torch.einsum("bmd,bkd->bmk", z, targets[:, other])  # [B, M, M]
    num_same = is_same.sum(dim=2)  # [B, M]
    of_same = (cosines * is_same).sum(dim=2)
    log_share = of_same / num_same.clamp_min(1) / temperature - scores.logsumexp(dim=2)  # mean over the same masks
    weights = (num_same > 0).to(z.dtype) / is_self.sum(dim=2)
    return -(weights * log_share).mean(), of_same.sum().detach(), num_same.sum(), (num_same > 0).to(z.dtype).mean()
