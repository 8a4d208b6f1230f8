"""Losses on embeddings without negatives: agreement of views, redundancy of dimensions, spread over the sphere."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


class BarlowTwinsLoss(NamedTuple):
    """The loss of Barlow Twins and its two sums, scalars."""

    loss: Tensor
    """Equation 1, times `scale`."""
    agreement: Tensor
    """Sum of (1 - c)^2 over the diagonal, in [0, 4 D]."""
    redundancy: Tensor
    """Sum of squares of the correlations of different dimensions, in [0, D^2 - D]."""


class VICRegLoss(NamedTuple):
    """The loss of VICReg and its three terms without their weights, scalars of at least 0."""

    loss: Tensor
    """Equation 6."""
    invariance: Tensor
    """Equation 5, over this rank's images."""
    variance: Tensor
    """Equation 1, summed over views."""
    covariance: Tensor
    """Equation 4, summed over views."""


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """Mean over rows of -cos(p, z) (SimSiam, Chen and He 2020, arXiv 2011.10566, eq. 1), in [-1, 1].

    >>> negative_cosine(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.5, 0.0]]))
    tensor(-1.)

    Args:
        p: predictions [B, D], of any length.
        z: targets [B, D], of any length; gradients flow into them too unless they are detached.
    """
    with torch.autocast(p.device.type, enabled=False):
        p, z = (F.normalize(at_least_fp32(rows), dim=-1) for rows in (p, z))
        return -(p * z).sum(dim=-1).mean()


def byol(p: Tensor, target: Tensor) -> Tensor:
    """Mean over rows of the squared distance of unit vectors, 2 - 2 cos (BYOL, Grill et al. 2020, arXiv 2006.07733,
    eq. 2), in [0, 4].

    The paper sums it over both directions of prediction.

    >>> byol(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 0.5]]))
    tensor(2.)

    Args:
        p: predictions of the online network [B, D], of any length.
        target: projections of the other view by the target network [B, D], of any length; without gradient, as from
            `raysl.nn.ema.Teacher`.
    """
    return 2 + 2 * negative_cosine(p, target)


def barlow_twins(correlation: Tensor, redundancy: float = 0.0051, scale: float = 0.024) -> BarlowTwinsLoss:
    """Distance of the cross-correlation of two views from the identity (Barlow Twins, Zbontar et al. 2021, arXiv
    2103.03230, eq. 1).

    >>> barlow_twins(torch.tensor([[1.0, 0.5], [0.0, 1.0]]), redundancy=1.0, scale=1.0).loss
    tensor(0.2500)

    Args:
        correlation: correlations in [-1, 1] of the dimensions of one view with those of the other, over the whole
            batch [D, D], as from `raysl.nn.moments.cross_correlation`.
        redundancy: weight lambda of the squared correlations of different dimensions, at least 0.
        scale: factor of the loss (the authors' code), above 0.

    Returns:
        The loss and its terms; `.loss` has the gradient, and is the same number on every rank.

    Raises:
        ValueError: if `correlation` is not a square matrix.
    """
    _check_square(correlation)
    with torch.autocast(correlation.device.type, enabled=False):
        c = at_least_fp32(correlation)
        agreement = (1 - c.diagonal()).square().sum()
        other = off_diagonal_squares(c)
        return BarlowTwinsLoss(scale * (agreement + redundancy * other), agreement, other)


def vicreg(
    z: Tensor,
    covariances: Sequence[Tensor],
    invariance: float = 25.0,
    variance: float = 12.5,
    covariance: float = 1.0,
    target_std: float = 1.0,
    eps: float = 1e-4,
) -> VICRegLoss:
    """Agreement of two views whose dimensions vary, each by itself (VICReg, Bardes, Ponce and LeCun 2022, arXiv
    2105.04906, eq. 6).

    >>> z = torch.tensor([[[2.0], [2.0]], [[-2.0], [-2.0]]])  # two images, two equal views, one dimension
    >>> vicreg(z, covariances=[torch.tensor([[8.0]])] * 2).loss
    tensor(0.)

    Args:
        z: embeddings of two views of this rank's images [B, 2, D].
        covariances: covariance matrices of the dimensions of each view over the whole batch, [D, D] each, as from
            `raysl.nn.moments.covariances`.
        invariance: weight lambda of the mean squared difference of the views, over images and dimensions.
        variance: weight mu of the hinges of the standard deviations, a mean over dimensions and a sum over views. The
            paper has 25 (section 4.2); the authors' code has 25 for half the sum.
        covariance: weight nu of the squared covariances of different dimensions, over D, summed over views.
        target_std: standard deviation gamma from which on a dimension costs nothing, above 0.
        eps: added to variances before their root, above 0 where a dimension may be constant.

    Returns:
        The loss and its terms without weights; `.loss` has the gradient.

    Raises:
        ValueError: if there are not two views, or the matrices are not of their width.
    """
    if z.ndim != 3 or z.shape[1] != 2 or [tuple(c.shape) for c in covariances] != [(z.shape[2],) * 2] * 2:
        raise ValueError(
            f"z {list(z.shape)} and covariances {[list(c.shape) for c in covariances]} must be [B, 2, D] and "
            "two of [D, D]"
        )
    with torch.autocast(z.device.type, enabled=False):
        z, matrices = at_least_fp32(z), [at_least_fp32(c) for c in covariances]
        deviations = [(c.diagonal() + eps).sqrt() for c in matrices]  # [D] of each view, eq. 2
        # invariance, variance and covariance: equations 5, 1 and 4
        agreement = F.mse_loss(z[:, 0], z[:, 1])
        hinges = torch.stack([F.relu(target_std - deviation).mean() for deviation in deviations]).sum()
        squares = torch.stack([off_diagonal_squares(c) / len(c) for c in matrices]).sum()
        loss = invariance * agreement + variance * hinges + covariance * squares
        return VICRegLoss(loss, agreement, hinges, squares)


def vibcreg(
    z: Tensor,
    covariances: Sequence[Tensor],
    invariance: float = 25.0,
    variance: float = 25.0,
    covariance: float = 200.0,
    target_std: float = 1.0,
    eps: float = 1e-4,
) -> VICRegLoss:
    """`vicreg` with correlations in place of covariances (VIbCReg, Lee and Aune 2021, arXiv 2109.00783, section 3).

    Arguments and errors are those of `vicreg`, but for `covariance`: the weight of the mean squared correlation of all
    pairs of dimensions, 0 for each with itself, summed over views.

    >>> z = torch.tensor([[[2.0], [2.0]], [[-2.0], [-2.0]]])
    >>> vibcreg(z, covariances=[torch.tensor([[8.0]])] * 2).loss
    tensor(0.)
    """
    out = vicreg(z, covariances, invariance, variance, 0.0, target_std, eps)
    with torch.autocast(z.device.type, enabled=False):
        squares = []
        for matrix in map(at_least_fp32, covariances):
            # a constant dimension has variance 0, whose inverse root would be infinite
            scale = matrix.diagonal().clamp_min(torch.finfo(matrix.dtype).tiny).rsqrt()
            squares.append(off_diagonal_squares(matrix * scale[:, None] * scale) / len(matrix) ** 2)
        term = torch.stack(squares).sum()
        return VICRegLoss(out.loss + covariance * term, out.invariance, out.variance, term)


def off_diagonal_squares(matrix: Tensor) -> Tensor:
    """Return the sum of squares of a square matrix [D, D] without its diagonal (Barlow Twins, arXiv 2103.03230, second
    sum of eq. 1; VICReg, arXiv 2105.04906, sum of eq. 4).

    >>> off_diagonal_squares(torch.tensor([[9.0, 1.0], [2.0, 9.0]]))
    tensor(5.)
    """
    return matrix.square().sum() - matrix.diagonal().square().sum()


def koleo(z: Tensor, z_all: Tensor, rows: Tensor) -> Tensor:
    """Negative Kozachenko-Leonenko estimate of the entropy (KoLeo, Sablayrolles et al. 2018, arXiv 1806.03198; DINOv2,
    Oquab et al. 2023, arXiv 2304.07193, section 4).

    The mean of -log(d + 1e-8), where d is the distance to the nearest other embedding of the batch; equal embeddings
    cost 18.4. Gradients flow into both ends of a distance.

    >>> z = torch.eye(2)
    >>> koleo(z, z_all=z, rows=torch.arange(2))  # -log(sqrt(2))
    tensor(-0.3466)

    Args:
        z: embeddings of this rank's images [B, D], of any length; they are normalised here.
        z_all: embeddings of the whole batch [N, D], this rank's among them.
        rows: int64 [B], indices of this rank's images in `z_all`.
    """
    with torch.autocast(z.device.type, enabled=False):
        z, z_all = (F.normalize(at_least_fp32(part), dim=-1) for part in (z, z_all))
        # of vectors of length 1 the nearest has the largest cosine; the choice itself needs no gradient
        with torch.no_grad():
            is_self = rows[:, None] == torch.arange(len(z_all), device=rows.device)  # [B, N]
            nearest = (z @ z_all.T).masked_fill(is_self, -torch.inf).argmax(dim=1)  # [B]
        distances = torch.linalg.vector_norm(z - z_all[nearest], dim=1)
        loss: Tensor = -(distances + 1e-8).log().mean()
        return loss


def _check_square(matrix: Tensor) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a correlation of shape {list(matrix.shape)} must be a square matrix [D, D]")


def gram(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared difference of the cosines between all patches of an image (DINOv3, Simeoni et al. 2025, arXiv 2508.10104,
    section 4.2, Gram anchoring), a mean over pairs and images.

    The cosines may agree while the features do not: they can be turned together.

    >>> student, teacher = torch.eye(2)[None], torch.ones(1, 2, 3)  # cosines 0 and 1 between the two patches
    >>> gram(student, teacher)  # two of four pairs differ by 1
    tensor(0.5000)

    Args:
        student: features [n, N, D] of N patches.
        teacher: those of another network [n, N, E]; no gradient flows into them.

    Raises:
        ValueError: if the numbers of images or patches differ.
    """
    if student.shape[:2] != teacher.shape[:2]:
        raise ValueError(
            f"student {list(student.shape)} and teacher {list(teacher.shape)} must be [n, N, D] and [n, N, E]"
        )
    with torch.autocast(student.device.type, enabled=False):
        student_units, teacher_units = (F.normalize(at_least_fp32(x), dim=-1) for x in (student, teacher.detach()))
        return (student_units @ student_units.mT - teacher_units @ teacher_units.mT).square().mean()
