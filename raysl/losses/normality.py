"""How far embeddings are from a normal distribution along random directions: the Epps-Pulley test of LeJEPA's SIGReg,
and the distance from normal quantiles of VISReg."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysl.losses.precision import at_least_fp32


class VISRegTerms(NamedTuple):
    """The three terms of VISReg's regularization without their weights, scalars of at least 0."""

    centre: Tensor
    """Squared mean of a dimension, over dimensions and views."""
    scale: Tensor
    """Squared difference of a dimension's standard deviation from 1, over dimensions and views."""
    shape: Tensor
    """Squared distance of projections from normal quantiles, over images, directions and views."""


def characteristic_sums(x: Tensor, t: Tensor) -> Tensor:
    """Sum cos(t x) and sin(t x) over rows: the empirical characteristic function, times the number of rows.

    The sums of several ranks add up. The backward pass keeps `x` alone and not the T times larger cosines and sines.

    >>> characteristic_sums(torch.tensor([0.0, torch.pi / 2]), torch.tensor([0.0, 1.0])).round(decimals=4) + 0.0
    tensor([[2., 1.],
            [0., 1.]])

    Args:
        x: numbers [B, ...].
        t: frequencies [T].

    Returns:
        [2, ..., T], the cosines first, at least float32.
    """
    with torch.autocast(x.device.type, enabled=False):
        x = at_least_fp32(x)
        sums: Tensor = _CharacteristicSums.apply(x, t.to(x.dtype))
        return sums


def epps_pulley(sums: Tensor, num_rows: Tensor | float, t: Tensor) -> Tensor:
    """Epps and Pulley's statistic of normality (1983; LeJEPA, Balestriero and LeCun 2025, arXiv 2511.08544, section
    4.2): N times the integral of |phi(s) - exp(-s**2 / 2)|**2 exp(-s**2 / 2) over s from -t_max to t_max, where phi is
    the empirical characteristic function of N numbers.

    It is 0 for a standard normal distribution and infinitely many numbers. The integrand is even, so the trapezoidal
    rule takes the points from 0 on, twice.

    >>> t = torch.linspace(0, 3, 17)
    >>> def statistic(x):
    ...     return round(epps_pulley(characteristic_sums(x, t), len(x), t).item(), 3)
    >>> normal = torch.special.ndtri((torch.arange(1000) + 0.5) / 1000)
    >>> statistic(normal), statistic(2 * normal)
    (0.0, 236.097)

    Args:
        sums: `characteristic_sums` of all rows [2, ..., T].
        num_rows: their number N.
        t: evenly spaced frequencies [T] from 0 on, T at least 2.

    Returns:
        The statistic of each set of numbers [...].
    """
    with torch.autocast(sums.device.type, enabled=False):
        t = t.to(sums.dtype)
        normal = torch.exp(-t.square() / 2)  # characteristic function, and window of the integral
        real, imaginary = sums / num_rows  # [..., T] each
        distance = (real - normal).square() + imaginary.square()
        return num_rows * 2 * torch.trapezoid(distance * normal, t, dim=-1)


def quantile_distance(x: Tensor) -> Tensor:
    """Mean squared distance of sorted numbers from the quantiles of a standard normal distribution: the Wasserstein
    distance of order 2, squared (VISReg, Wu, Balestriero and Levine 2026, arXiv 2606.02572, section 3).

    The n-th smallest of N numbers belongs to the quantile n / (N + 1).

    >>> normal = torch.special.ndtri(torch.arange(1, 100) / 100)
    >>> quantile_distance(normal.flip(0)), quantile_distance(normal + 2)
    (tensor(0.), tensor(4.))

    Args:
        x: sets of N numbers [..., N], N at least 1.

    Returns:
        The mean over all sets, a scalar, at least float32.
    """
    with torch.autocast(x.device.type, enabled=False):
        x = at_least_fp32(x)
        num = x.shape[-1]
        quantiles = torch.special.ndtri(torch.arange(1, num + 1, device=x.device, dtype=x.dtype) / (num + 1))  # [N]
        distance: Tensor = (x.sort(dim=-1).values - quantiles).square().mean()
        return distance


def visreg(z: Tensor, slices: Tensor, eps: float = 1e-6) -> VISRegTerms:
    """Return how far the embeddings of each view are from a standard normal distribution, in three terms (VISReg, Wu,
    Balestriero and Levine 2026, arXiv 2606.02572, section 3).

    `shape` is that of embeddings without their mean and their standard deviations, and has no gradient with respect to
    the deviations: it leaves them to `scale`, whose gradient is largest where embeddings are nearly one.

    >>> terms = visreg(torch.tensor([[[1.0]], [[1.0]], [[5.0]], [[5.0]]]), slices=torch.ones(1, 1))
    >>> {name: round(term.item(), 3) for name, term in terms._asdict().items()}
    {'centre': 9.0, 'scale': 1.0, 'shape': 0.291}

    Args:
        z: embeddings of the whole batch [N, V, D].
        slices: directions of length 1, [D, S].
        eps: added to standard deviations, above 0.

    Returns:
        The terms, the same numbers on every rank.
    """
    with torch.autocast(z.device.type, enabled=False):
        z = at_least_fp32(z)
        mean = z.mean(dim=0)  # [V, D]
        centred = z - mean
        std = torch.linalg.vector_norm(centred, dim=0) / math.sqrt(len(z)) + eps  # [V, D]
        normal = (centred / std.detach()).movedim(0, -1)  # [V, D, N]
        shape = quantile_distance(slices.to(z.dtype).T @ normal)
        return VISRegTerms(mean.square().mean(), (std - 1).square().mean(), shape)


class _CharacteristicSums(torch.autograd.Function):
    """One frequency at a time, so that memory does not grow with their number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, t: Tensor) -> Tensor:
        ctx.save_for_backward(x, t)
        sums = x.new_empty(2, *x.shape[1:], len(t))
        for number, frequency in enumerate(t.unbind()):
            angle = x * frequency
            sums[0, ..., number] = angle.cos().sum(dim=0)
            sums[1, ..., number] = angle.sin_().sum(dim=0)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        x, t = ctx.saved_tensors
        grad = torch.zeros_like(x)
        for number, frequency in enumerate(t.unbind()):
            of_cosine, of_sine = grads[0][..., number] * frequency  # [...] each
            angle = x * frequency
            grad.addcmul_(angle.cos(), of_sine).addcmul_(angle.sin_(), of_cosine, value=-1)
        return grad, None
