"""Means, covariances and whitening of embeddings over the rows of all ranks.

Each rank works on its own rows; only a vector of D and a matrix of D x D are summed over ranks, whatever the number of
rows, or the rows exchanged where they are less. `centred` and `products` pass gradients and read nothing back from the
device.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysl import distributed as dist
from raysl.losses.precision import at_least_fp32

_ROWS_AT_ONCE = 16384
"""Number of rows held in float64 at a time."""
_LEAST = 1e-8
"""Share of the largest variance below which a direction counts as constant: dividing by it would magnify rounding."""


def centred(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return this rank's rows [B, ..., D] minus the mean over all ranks [..., D], and the number of all rows, a scalar.

    >>> centred(torch.tensor([[1.0], [3.0]]))
    (tensor([[-1.],
            [ 1.]]), tensor(2.))
    """
    total = dist.all_sum(torch.cat([z.sum(dim=0).flatten(), z.new_full((1,), len(z))]))
    num_rows = total[-1].detach()
    return z - (total[:-1] / num_rows).view(z.shape[1:]), num_rows


def products(first: Tensor, second: Tensor, same_loss: bool = False) -> Tensor:
    """Sum the outer products of the rows of all ranks: [B, D] and [B, E] to [D, E], or [B, ..., D] and [B, ..., E] to
    [..., D, E].

    Inside a training step whose rows are one for each image, ranks exchange the rows instead of the sums where that is
    less.

    >>> products(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[1.0], [3.0]]))
    tensor([[1.],
            [5.]])

    Args:
        first, second: this rank's rows.
        same_loss: whether all ranks compute the same loss from the result, see `dist.all_gather`; in a step, the
            backward pass then needs no exchange.
    """
    with torch.autocast(first.device.type, enabled=False):
        if dist.world() == 1:
            return _summed(first, second)
        factor = dist.loss_factor() if same_loss else None
        product: Tensor = _Products.apply(first, second, first is second, factor)
        return product


def cross_correlation(z: Tensor, eps: float = 1e-5, is_joint: bool = False) -> Tensor:
    """Return the correlations of the dimensions of one view with those of the other, over all ranks' images (Barlow
    Twins, Zbontar et al. 2021, arXiv 2103.03230, eq. 2).

    Every rank calls it, with any number of images. A loss computed from it must be the same on all ranks, as
    `raysl.losses.barlow_twins` is.

    >>> z = torch.tensor([[[1.0], [1.0]], [[-1.0], [-1.0]]])  # two images, two equal views, one dimension
    >>> cross_correlation(z, eps=0.0)
    tensor([[1.]])

    Args:
        z: embeddings of two views of this rank's images [B, 2, D]; two images or more on all ranks together.
        eps: added to variances, above 0 where a dimension may be constant.
        is_joint: whether both views have one mean and variance, as in VISSL.

    Returns:
        [D, D] in [-1, 1], the same on every rank.
    """
    z = at_least_fp32(z)
    rows, num_rows = centred(z.flatten(0, 1) if is_joint else z)  # [B*2, D] or [B, 2, D]
    variance = dist.all_sum(rows.square().sum(dim=0)) / num_rows  # [D] or [2, D]
    normal = (rows * torch.rsqrt(variance + eps)).view_as(z)  # [B, 2, D]
    return products(normal[:, 0], normal[:, 1], same_loss=True) / (num_rows / 2 if is_joint else num_rows)


def covariances(z: Tensor) -> list[Tensor]:
    """Return the covariances of the dimensions of each view, over all ranks' images (VICReg, Bardes, Ponce and LeCun
    2022, arXiv 2105.04906, eq. 3).

    Every rank calls it, with any number of images. What a loss makes of them must be the same on all ranks, as in
    `raysl.losses.vicreg`.

    >>> covariances(torch.tensor([[[1.0]], [[3.0]]]))  # two images, one view, one dimension
    [tensor([[2.]])]

    Args:
        z: embeddings of V views of this rank's images [B, V, D]; two images or more on all ranks together.

    Returns:
        V matrices [D, D], the same on every rank.
    """
    rows, num_rows = centred(at_least_fp32(z))
    return [products(view, view, same_loss=True) / (num_rows - 1) for view in rows.unbind(dim=1)]


def total_cross_covariance(z: Tensor) -> Tensor:
    """Return the covariances of each dimension of one view with the same dimension of the other over all ranks' images,
    summed over dimensions: the trace of the covariances of two views.

    Every rank calls it, with any number of images. A loss computed from it must be the same on all ranks, as
    `raysl.losses.ssl_ey` is.

    >>> total_cross_covariance(torch.tensor([[[1.0], [2.0]], [[3.0], [6.0]]]))  # two images, two views, one dimension
    tensor(4.)

    Args:
        z: embeddings of two views of this rank's images [B, 2, D]; two images or more on all ranks together.

    Returns:
        A scalar, the same on every rank.
    """
    rows, num_rows = centred(at_least_fp32(z))
    return dist.all_sum((rows[:, 0] * rows[:, 1]).sum()) / (num_rows - 1)


def unit_columns(z: Tensor, eps: float = 1e-12) -> Tensor:
    """Return this rank's rows with each dimension of each view at length 1 over the rows of all ranks.

    >>> unit_columns(torch.tensor([[[3.0]], [[4.0]]]))
    tensor([[[0.6000]],
    <BLANKLINE>
            [[0.8000]]])

    Args:
        z: embeddings of V views of this rank's images [B, V, D].
        eps: the least length that is divided by.
    """
    z = at_least_fp32(z)
    squares = dist.all_sum(z.square().sum(dim=0))  # [V, D]
    return z * squares.clamp_min(eps**2).rsqrt()


def _is_less_to_gather(first: Tensor, second: Tensor) -> bool:
    """Return whether ranks hold one row for each image of a step, which are together less than two sums [D, E]: one on
    its way to the rank that adds it up, and one on its way back."""
    num_rows, width, other = dist.planned_num(), first.shape[-1], second.shape[-1]
    if num_rows is None or len(first) != dist.planned_share():
        return False
    return num_rows * (width + other) < 2 * width * other


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, is_same: bool, factor: float | None) -> Tensor:
        ctx.save_for_backward(first, second)
        ctx.factor = factor
        if not _is_less_to_gather(first, second):
            return dist.all_sum(_summed(first, second))
        if is_same:
            first = second = dist.all_gather(first)
        else:
            both = dist.all_gather(torch.cat([first, second], dim=-1))  # [N, ..., D + E]
            first, second = torch.split(both, [first.shape[-1], second.shape[-1]], dim=-1)
        return _summed(first, second)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        first, second = ctx.saved_tensors
        grad = dist.all_sum(grads[0]) if ctx.factor is None else grads[0] * ctx.factor
        with torch.autocast(first.device.type, enabled=False):
            first, second = first.movedim(0, -2), second.movedim(0, -2)  # [..., B, D]
            return (second @ grad.mT).movedim(-2, 0), (first @ grad).movedim(-2, 0), None, None


def _summed(first: Tensor, second: Tensor) -> Tensor:
    return first.movedim(0, -1) @ second.movedim(0, -2)


@torch.no_grad()
def whitened(rows: Tensor, dim: int) -> Tensor:
    """Project rows on the `dim` directions of largest variance, centred and scaled to variance 1 (PCA whitening).

    Sums are computed in float64, so another number of ranks changes the result only by rounding; the eigensolver sets
    the signs of directions. A direction without variance is 0 for all rows. Every rank calls it, outside a training
    step.

    >>> whitened(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), dim=1).abs()
    tensor([[1.],
            [1.]])

    Args:
        rows: this rank's [n, D], with any n on each rank, also 0, and the same D.
        dim: number of directions to keep, from 1 to D.

    Returns:
        This rank's rows [n, dim], at least float32.

    Raises:
        ValueError: if `dim` is outside its range, or a row is not finite.
    """
    width = rows.shape[1]
    if not 1 <= dim <= width:
        raise ValueError(f"rows of width {width} have no {dim} principal components; keep between 1 and {width}")
    if not dist.all_true(bool(rows.isfinite().all()), rows.device):
        raise ValueError("rows to whiten are not finite: the network that computed them has diverged")
    parts = torch.split(rows, _ROWS_AT_ONCE)
    num = dist.all_sum(torch.tensor(len(rows), dtype=torch.float64, device=rows.device))
    mean = dist.all_sum(torch.stack([part.double().sum(dim=0) for part in parts]).sum(dim=0)) / num  # [D]
    squares = torch.stack([(part.double() - mean).T @ (part.double() - mean) for part in parts]).sum(dim=0)
    variances, directions = torch.linalg.eigh(dist.all_sum(squares) / num)  # rising: [D], [D, D] by column
    variances, directions = variances.flip(0)[:dim], directions.flip(1)[:, :dim]
    scale = torch.where(variances > _LEAST * variances[0], variances.clamp_min(1e-300).rsqrt(), 0.0)
    turned = [((part.double() - mean) @ (directions * scale)).to(at_least_fp32(part).dtype) for part in parts]
    return torch.cat(turned)
