"""Contrastive losses: views of an image attract, other images repel."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.all_pairs import is_nearer, log_sum_exp
from raysl.losses.precision import at_least_fp32


class MACLLoss(NamedTuple):
    """The loss of MACL and the numbers that it adapts to the batch, scalars."""

    loss: Tensor
    """Mean over images, anchors and positives."""
    alignment: Tensor
    """Mean cosine of two views of an image, without gradient, in [-1, 1]."""
    temperature: Tensor
    """What divides the cosines, without gradient."""


def nt_xent(z: Tensor, z_all: Tensor, rows: Tensor, temperature: float = 0.1) -> Tensor:
    """Normalised temperature-scaled cross entropy (SimCLR, Chen et al. 2020, arXiv 2002.05709, eq. 1).

    Every view is an anchor. Its positives are the other views of its image, one term each; its negatives are all views
    of all other images of the batch. Mean over images, anchors and positives. Memory is linear in the batch.

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)  # two views each of two images, views alike
    >>> nt_xent(z, z_all=z, rows=torch.arange(2), temperature=1.0)  # log((e + 2) / e)
    tensor(0.5514)

    Args:
        z: embeddings of this rank's images [B, V, D], V >= 2; of any length, they are normalised here.
        z_all: embeddings of the whole batch [N, V, D], N >= 2, this rank's among them.
        rows: int64 [B], indices of this rank's images in `z_all`.
        temperature: above 0.

    Raises:
        ValueError: if there are fewer than two views or images.
    """
    with torch.autocast(z.device.type, enabled=False):
        anchors, keys, same_image = _pairs(z, z_all, rows)  # [B*V, D], [N*V, D], [B*V, V]
        against, positives = log_sum_exp(anchors / temperature, keys, same_image)  # [B*V], [B*V, V]
        terms = -F.logsigmoid(positives - against[:, None])  # [B*V, V]
        return _over_positives(terms.view(*z.shape[:2], z.shape[1]))


def sup_con(z: Tensor, z_all: Tensor, rows: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Contrast in which all views of a class are positives (SupCon, Khosla et al. 2020, arXiv 2004.11362, eq. 2).

    L_out: the sum over positives is outside the logarithm. Every view is an anchor i, which adds -1/|P(i)| times the
    sum over p in P(i) of log(exp(z_i . z_p / T) / sum over a in A(i) of exp(z_i . z_a / T)). A(i) are all other views
    of the batch, P(i) those with the label of i; for an unlabelled image, -1, P(i) are its own other views. Mean over
    images and anchors. Memory is linear in the batch.

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)
    >>> sup_con(z, z_all=z, rows=torch.arange(2), labels=torch.tensor([0, 1]), temperature=1.0)
    tensor(0.5514)

    Args:
        z: embeddings of this rank's images [B, V, D], V >= 2; of any length, they are normalised here.
        z_all: embeddings of the whole batch [N, V, D], this rank's among them.
        rows: int64 [B], indices of this rank's images in `z_all`.
        labels: int64 [N], of the images of the whole batch; -1 for unlabelled images.
        temperature: above 0.

    Raises:
        ValueError: if there are fewer than two views.
    """
    num_images, num_views, _ = z_all.shape
    if num_views < 2:
        raise ValueError(f"contrast needs at least two views, got {num_views}")
    with torch.autocast(z.device.type, enabled=False):
        anchors, keys = _unit(z).flatten(0, 1) / temperature, _unit(z_all).flatten(0, 1)  # [B*V, D], [N*V, D]
        itself = (rows[:, None] * num_views + torch.arange(num_views, device=rows.device)).view(-1, 1)  # [B*V, 1]
        log_sums, with_itself = log_sum_exp(anchors, keys, itself)  # [B*V], [B*V, 1]
        groups = _groups(labels)  # [N]
        # sums by label, so that no matrix of all pairs of embeddings is needed
        sums = keys.new_zeros(num_images, keys.shape[1]).index_add(0, groups, keys.view_as(z_all).sum(dim=1))  # [N, D]
        counts = keys.new_zeros(num_images).index_add(0, groups, keys.new_full((num_images,), num_views))  # [N]
        group = groups[rows].repeat_interleave(num_views)  # [B*V]
        positives = (anchors * sums[group]).sum(dim=1) - with_itself[:, 0]  # the sum of z_i . z_p / T, [B*V]
        return (log_sums - positives / (counts[group] - 1)).mean()


def dcl(z: Tensor, z_all: Tensor, rows: Tensor, temperature: float = 0.1, sigma: float | None = None) -> Tensor:
    """Decoupled contrast: `nt_xent` without the positive in its denominator (DCL, Yeh et al. 2021, arXiv 2110.06848,
    eq. 5 and 6).

    Each positive adds -w * z_i . z_p / T + log of the sum of exp(z_i . z_a / T) over all views a of other images. With
    `sigma` (DCLW) w is 2 - exp(z_i . z_p / sigma) / E[exp(z_i . z_p / sigma)], the mean over the batch's images at the
    same two views, so that pairs that are far apart weigh more; gradients flow through it. Arguments are those of
    `nt_xent`.

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)
    >>> dcl(z, z_all=z, rows=torch.arange(2), temperature=1.0)  # log(2) - 1
    tensor(-0.3069)
    """
    with torch.autocast(z.device.type, enabled=False):
        anchors, keys, same_image = _pairs(z, z_all, rows)  # [B*V, D], [N*V, D], [B*V, V]
        against, positives = log_sum_exp(anchors / temperature, keys, same_image)  # [B*V], [B*V, V]
        positives = positives.view(*z.shape[:2], -1)  # [B, V, V], z_i . z_p / T
        weights: Tensor | float = 1.0
        if sigma is not None:
            z_all = _unit(z_all)
            concentrations = torch.einsum("nvd,nwd->nvw", z_all, z_all) / sigma  # [N, V, V]
            # the mean stays a logarithm, so that a small sigma does not overflow
            log_means = torch.logsumexp(concentrations, dim=0) - math.log(len(z_all))  # [V, V]
            weights = 2 - (positives * (temperature / sigma) - log_means).exp()  # [B, V, V]
        return _over_positives(against.view(*z.shape[:2], 1) - weights * positives)


def macl(
    z: Tensor, z_all: Tensor, rows: Tensor, temperature: float = 0.1, growth: float = 0.5, threshold: float = 0.0
) -> MACLLoss:
    """Contrast at a temperature that rises with the alignment of views, each term over its probability of a mistake
    (MACL, Huang et al. 2022, arXiv 2207.07874; the authors' code, macl.py).

    The alignment A is the mean cosine of two views of an image over the whole batch, and T is `temperature` times
    1 + `growth` * (A - `threshold`). A term of `nt_xent`, -log P, is divided by 1 - P. Neither T nor that weight has a
    gradient, so that the gradient of a term by its logits is the one of `dcl`: 1 for the positive, however near it is.
    Arguments are those of `nt_xent`, but for these:

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)  # two views each of two images, views alike: A is 1
    >>> macl(z, z_all=z, rows=torch.arange(2), temperature=1.0, growth=0.0).loss  # log((e + 2) / e) (e + 2) / 2
    tensor(1.3009)

    Args:
        temperature: divides the cosines where views have an alignment of `threshold`, above 0.
        growth: share of `temperature` that is added for each 1 of alignment, alpha, from 0 to 1.
        threshold: alignment A0 at which T is `temperature`; with `growth` below 1 / (1 + A0), so that T is above 0.
    """
    with torch.autocast(z.device.type, enabled=False):
        anchors, keys, same_image = _pairs(z, z_all, rows)  # [B*V, D], [N*V, D], [B*V, V]
        alignment = _alignment(keys.detach().view_as(z_all))
        adapted = temperature * (1 + growth * (alignment - threshold))
        against, positives = log_sum_exp(anchors / adapted, keys, same_image)  # [B*V], [B*V, V]
        gaps = against[:, None] - positives  # [B*V, V], log((1 - P) / P)
        # -log P / (1 - P), which tends to 1 where P does; its gradient by the gap is 1 everywhere
        bounded = gaps.detach().clamp(min=-30)
        terms = F.softplus(bounded) / bounded.sigmoid() + (gaps - gaps.detach())
        return MACLLoss(_over_positives(terms.view(*z.shape[:2], -1)), alignment, adapted)


@torch.no_grad()
def contrastive_accuracy(z: Tensor, z_all: Tensor, rows: Tensor) -> Tensor:
    """Share of (anchor, positive) pairs that are closer than the anchor is to any negative.

    Arguments are those of `nt_xent`.

    >>> z = torch.eye(2)[:, None].expand(2, 2, 2)
    >>> contrastive_accuracy(z, z_all=z, rows=torch.arange(2))
    tensor(1.)
    """
    with torch.autocast(z.device.type, enabled=False):
        anchors, keys, same_image = _pairs(z, z_all, rows)
        return _over_positives(is_nearer(anchors, keys, same_image).float().view(*z.shape[:2], z.shape[1]))


def _pairs(z: Tensor, z_all: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return anchors [B*V, D] and keys [N*V, D], of length 1, and the indices of each anchor's image among the keys,
    int64 [B*V, V]."""
    num_images, num_views, _ = z_all.shape
    if num_views < 2 or num_images < 2:
        raise ValueError(f"contrast needs at least two views and two images, got {num_views} and {num_images}")
    same_image = rows[:, None] * num_views + torch.arange(num_views, device=rows.device)  # [B, V]
    by_anchor = same_image[:, None].expand(-1, num_views, -1).flatten(0, 1)  # [B*V, V]
    return _unit(z).flatten(0, 1), _unit(z_all).flatten(0, 1), by_anchor


def _groups(labels: Tensor) -> Tensor:
    """Number the images [N] by label, from 0 to N - 1; each image without a label has a number of its own."""
    alone = -1 - torch.arange(len(labels), device=labels.device)
    labels = torch.where(labels >= 0, labels, alone)
    return torch.searchsorted(labels.sort().values, labels)


def _unit(z: Tensor) -> Tensor:
    return F.normalize(at_least_fp32(z), dim=-1)


def _alignment(z: Tensor) -> Tensor:
    """Return the mean cosine of different views of an image, of embeddings [N, V, D] of length 1."""
    num_views = z.shape[1]
    # the square of a sum has the cosines of all ordered pairs, and 1 for each view with itself
    return (z.sum(dim=1).square().sum(dim=-1) - num_views).mean() / (num_views * (num_views - 1))


def _over_positives(terms: Tensor) -> Tensor:
    """Return the mean of [B, V, V] without the diagonal, which pairs a view with itself."""
    num_views = terms.shape[-1]
    is_self = torch.eye(num_views, dtype=torch.bool, device=terms.device)
    return terms.masked_fill(is_self, 0.0).mean() * (num_views / (num_views - 1))
