"""Losses on scores of prototypes and clusters."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32

UNKNOWN = -100
"""Cluster of an image that was not clustered; it has no loss."""


class IBOTLoss(NamedTuple):
    """The loss of iBOT and its two parts without their weights, scalars."""

    loss: Tensor
    """Their weighted sum."""
    class_loss: Tensor
    """Equation 2, of class tokens."""
    patch_loss: Tensor
    """Equation 3, of masked patches."""


def dino(scores: Tensor, codes: Tensor, temperature: float = 0.1) -> Tensor:
    """Cross entropy of each view's scores with a teacher's codes of the other large views (DINO, Caron et al. 2021,
    arXiv 2104.14294, eq. 3), a mean over images and pairs of views.

    >>> scores, codes = torch.zeros(1, 3, 4), torch.eye(4)[None, :2]  # two large views and a small one
    >>> dino(scores, codes)  # log 4
    tensor(1.3863)

    Args:
        scores: the student's, of all views [B, V, K], the large ones first.
        codes: the teacher's, of the G large views [B, G, K], each summing to 1, as from `raysl.nn.dino_head.Centre`
            (DINO, iBOT) or `raysl.nn.sinkhorn.sinkhorn` (DINOv2); no gradient flows into them.
        temperature: divides the student's scores, above 0.

    Raises:
        ValueError: if there are fewer than two views, or fewer than G.
    """
    return swapped_prediction(scores, codes, range(codes.shape[1]), temperature)


def ibot(
    scores: Tensor,
    codes: Tensor,
    patch_scores: Tensor,
    patch_codes: Tensor,
    mask: Tensor,
    temperature: float = 0.1,
    class_weight: float = 1.0,
    patch_weight: float = 1.0,
) -> IBOTLoss:
    """DINO's loss of class tokens and the same of masked patches (iBOT, Zhou et al. 2021, arXiv 2111.07832, section
    3.1 and algorithm 1).

    >>> one = torch.eye(4)[None, :2]
    >>> ibot(torch.zeros(1, 2, 4), one, torch.zeros(1, 2, 4), one, torch.tensor([[True, False]])).loss  # 2 log 4
    tensor(2.7726)

    Args:
        scores, codes: rows of class tokens [B, V, K] and [B, G, K], as `dino` takes them.
        patch_scores: the student's, of M patches of each large view [..., M, K].
        patch_codes: the teacher's, of the same patches [..., M, K].
        mask: bool [..., M], True where the student's patch was masked; the others have no loss. True everywhere is
            iBOT++ (Cao et al. 2026, arXiv 2604.12012).
        temperature: divides the student's scores, above 0.
        class_weight: factor of the loss of class tokens, at least 0.
        patch_weight: factor of the loss of masked patches, at least 0.

    Returns:
        The loss and its parts; `.loss` has the gradient.

    Raises:
        ValueError: if the shapes do not fit.
    """
    class_loss = dino(scores, codes, temperature)
    patch_loss = masked_prediction(patch_scores, patch_codes, mask, temperature)
    return IBOTLoss(class_weight * class_loss + patch_weight * patch_loss, class_loss, patch_loss)


def cluster_cross_entropy(logits: Tensor, clusters: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross entropy with clusters as classes, mean over all rows.

    Rows of cluster `UNKNOWN` count 0 in the mean, so that it is the same at any number of ranks.

    >>> cluster_cross_entropy(torch.zeros(2, 4), torch.tensor([3, UNKNOWN]))  # log(4) / 2
    tensor(0.6931)

    Args:
        logits: [..., K].
        clusters: int64 [...], 0 to K - 1 or `UNKNOWN`.
        weights: factors of the rows' losses [...]; default: 1.

    Raises:
        ValueError: if the shapes do not fit.
    """
    if logits.shape[:-1] != clusters.shape or (weights is not None and weights.shape != clusters.shape):
        raise ValueError(
            f"logits {list(logits.shape)}, clusters {list(clusters.shape)} and weights "
            f"{None if weights is None else list(weights.shape)} must be [..., K], [...] and [...]"
        )
    with torch.autocast(logits.device.type, enabled=False):
        flat = at_least_fp32(logits).flatten(0, -2)  # [n, K]
        rows = F.cross_entropy(flat, clusters.flatten(), ignore_index=UNKNOWN, reduction="none")
        return (rows if weights is None else rows * weights.flatten().to(rows.dtype)).mean()


def swapped_prediction(scores: Tensor, codes: Tensor, crops: Sequence[int], temperature: float = 0.1) -> Tensor:
    """Cross entropy of each view's prediction with the codes of another view (SwAV, arXiv 2006.09882, eq. 2 and 6).

    The code of each assigned view is predicted from all other views of its image, in any group. Mean over images, other
    views and assigned views.

    >>> scores, codes = torch.zeros(1, 2, 4), torch.eye(4)[None, :2]  # the codes of both views
    >>> swapped_prediction(scores, codes, crops=[0, 1])  # log 4
    tensor(1.3863)

    Args:
        scores: cosines of all views with the prototypes [B, V, K], V >= 2.
        codes: soft or hard assignments [B, A, K], each summing to 1; no gradient flows into them.
        crops: the view in `scores` of each of the A codes.
        temperature: divides the scores, above 0.

    Raises:
        ValueError: if there are fewer than two views, or `crops` does not fit `codes` and `scores`.
    """
    num_views = scores.shape[1]
    if num_views < 2 or len(crops) != codes.shape[1] or not all(0 <= crop < num_views for crop in crops):
        raise ValueError(
            f"{codes.shape[1]} codes of the views {list(crops)} cannot be predicted from the other views of "
            f"{num_views}: give at least two views, and for each code the number of its view"
        )
    with torch.autocast(scores.device.type, enabled=False):
        log_p = torch.log_softmax(at_least_fp32(scores) / temperature, dim=-1)  # [B, V, K]
        q = codes.detach().to(log_p.dtype)
        terms = -torch.einsum("bak,bvk->bav", q, log_p)  # [B, A, V]
        # a view does not predict its own code
        others = [
            torch.cat([terms[:, code, :crop], terms[:, code, crop + 1 :]], dim=1) for code, crop in enumerate(crops)
        ]
        return torch.stack(others).mean()


def masked_prediction(scores: Tensor, codes: Tensor, mask: Tensor, temperature: float = 0.1) -> Tensor:
    """Cross entropy of predictions for masked patches with their codes (iBOT, arXiv 2111.07832, eq. 3).

    Mean over the masked patches of a view, then over views and images; a view without masked patches counts as 0. An
    image's weight does not depend on the masks of the others.

    >>> masked_prediction(torch.zeros(1, 2, 4), torch.eye(4)[None, :2], torch.tensor([[True, False]]))  # log 4
    tensor(1.3863)

    Args:
        scores: rows of M patches of each view, [..., M, K].
        codes: assignments, each summing to 1, [..., M, K]; no gradient flows into them.
        mask: bool [..., M], True where a patch is masked; True everywhere for the mean over all patches of iBOT++ (Cao
            et al. 2026, arXiv 2604.12012).
        temperature: divides the scores, above 0.

    Raises:
        ValueError: if the shapes do not fit.
    """
    if scores.shape != codes.shape or scores.shape[:-1] != mask.shape:
        raise ValueError(
            f"scores {list(scores.shape)}, codes {list(codes.shape)} and mask {list(mask.shape)} must be [..., M, K], "
            "[..., M, K] and [..., M]"
        )
    with torch.autocast(scores.device.type, enabled=False):
        log_p = torch.log_softmax(at_least_fp32(scores) / temperature, dim=-1)
        terms = -(codes.detach().to(log_p.dtype) * log_p).sum(dim=-1)  # [..., M]
        weights = mask.to(terms.dtype)
        return ((terms * weights).sum(dim=-1) / weights.sum(dim=-1).clamp(min=1)).mean()
