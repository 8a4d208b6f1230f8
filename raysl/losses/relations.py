"""Losses that compare the relations between the patches of an image, as two networks see them."""

import torch
from torch import Tensor

from raysl.losses.precision import at_least_fp32

LEAST = 1e-6
"""Smallest squared norm of a centred kernel that a loss divides by the root of."""


def cka(student: Tensor, teacher: Tensor) -> Tensor:
    """One minus the centred kernel alignment of the patches of two networks (PaKA, Yeo et al. 2025, arXiv 2509.05606;
    Kornblith et al. 2019, arXiv 1905.00414), a mean over images.

    A kernel holds the products of all pairs of patches of an image, and is centred in its rows and columns. The loss is
    0 where one kernel is a multiple of the other: features may be turned, scaled and moved together.

    >>> patches = torch.tensor([[[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]])
    >>> bool(cka(patches, 3 * patches.flip(2) + 1) < 1e-6)
    True

    Args:
        student: features [n, N, D] of N patches, N at least 2.
        teacher: those of another network for the same patches [n, N, E]; no gradient flows into them.

    Raises:
        ValueError: if the numbers of images or patches differ, or there is one patch.
    """
    if student.shape[:2] != teacher.shape[:2] or student.shape[1] < 2:
        raise ValueError(
            f"student {list(student.shape)} and teacher {list(teacher.shape)} must be [n, N, D] and [n, N, E], N >= 2"
        )
    with torch.autocast(student.device.type, enabled=False):
        own, other = (_centred_kernel(at_least_fp32(z)) for z in (student, teacher.detach()))  # [n, N, N]
        norms = [kernel.square().sum(dim=(1, 2)).clamp(min=LEAST).sqrt() for kernel in (own, other)]  # [n] each
        return (1 - (own * other).sum(dim=(1, 2)) / (norms[0] * norms[1])).mean()


def _centred_kernel(z: Tensor) -> Tensor:
    """Return H K H of the linear kernel K of [n, N, D], with H = I - 1/N: the kernel of centred features."""
    centred = z - z.mean(dim=1, keepdim=True)
    return centred @ centred.mT
