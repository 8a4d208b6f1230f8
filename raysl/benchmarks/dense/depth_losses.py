"""Losses of depths in the logarithm, over all pixels of the batch that have one."""

import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.losses import at_least_fp32

EPSILON = 1e-3
"""Metres added before the logarithm, against steep gradients."""
STEPS = (1, 2, 4, 6)
"""Pixels from one to the next at the scales of `gradient_loss`, as in DINOv2's `gradientloss.py`."""


def sig_loss(predicted: Tensor, target: Tensor, has_variance: bool = True) -> Tensor:
    """Return the root of var(g) + 0.15 mean(g)^2, where g is the logarithm of the prediction less that of the target.

    The scale-invariant loss of Eigen et al. 2014 (arXiv 1406.2283, equation 4) as DINOv2's `sigloss.py` has it.

    Args:
        predicted: metres [B, H, W].
        target: metres [B, H, W], 0 where unknown.
        has_variance: whether the variance counts, as it does after the first updates.

    >>> target = torch.tensor([[[1.0, 2.0, 4.0]]])
    >>> round(sig_loss(target * 2, target).item() / 0.15**0.5, 3)  # log 2, whatever the target
    0.693
    """
    errors, is_known = _errors(predicted, target)
    # sums go over all ranks, so that mean and variance are those of the whole batch
    num = dist.all_sum(is_known.sum().to(errors.dtype))
    mean = dist.all_sum(errors.sum()) / num.clamp(min=1)
    square = 0.15 * mean**2
    if has_variance:
        spread = torch.where(is_known, errors - mean, 0)
        # divided by num - 1, as by torch.var in DINOv2's code
        square = square + dist.all_sum((spread**2).sum()) / (num - 1).clamp(min=1)
    return square.clamp(min=1e-12).sqrt()  # a root has no gradient at 0


def gradient_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Return how much the errors differ from those two pixels on, down and across, summed over four scales.

    Li and Snavely 2018, MegaDepth, arXiv 1804.00607; the sums of a scale are divided by its known pixels.
    Arguments are those of `sig_loss`.

    >>> target = torch.tensor([[[1.0, 2.0, 4.0]]])
    >>> gradient_loss(target * 2, target).item() < 1e-2  # a wrong scale costs nothing
    True
    """
    sums, counts = [], []
    for step in STEPS:
        errors, is_known = _errors(predicted[:, ::step, ::step], target[:, ::step, ::step])
        total = errors.new_zeros(())
        for axis in (1, 2):
            # transposed, the same two lines take the differences across the columns
            values, known = errors.transpose(1, axis), is_known.transpose(1, axis)
            is_pair = known[:, 2:] & known[:, :-2]
            total = total + ((values[:, 2:] - values[:, :-2]).abs() * is_pair).sum()
        sums.append(total)
        counts.append(is_known.sum().to(errors.dtype))
    return (dist.all_sum(torch.stack(sums)) / dist.all_sum(torch.stack(counts)).clamp(min=1)).sum()


def _errors(predicted: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return differences of logarithms, 0 where the target is unknown, and where it is known."""
    is_known = target > 0
    predicted, target = at_least_fp32(predicted), at_least_fp32(target)
    return torch.where(is_known, (predicted + EPSILON).log() - (target + EPSILON).log(), 0), is_known
