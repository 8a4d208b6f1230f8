"""Histograms of oriented gradients, the targets of MaskFeat."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


def hog(images: Tensor, cell_size: int = 8, num_bins: int = 9) -> Tensor:
    """Histograms of oriented gradients of each channel (Dalal and Triggs 2005; MaskFeat, Wei et al. 2021, arXiv
    2112.09133, section 3.2 and the authors' code).

    Sobel's filters give the gradient of each pixel, with images mirrored at their borders. Its length counts in one of
    `num_bins` bins of half a turn, for opposite directions are one. A cell's histogram has length 1, or is 0 where the
    cell is flat.

    >>> ramp = torch.arange(16.0).expand(1, 1, 16, 16)  # grows to the right
    >>> hog(ramp, num_bins=2)[0, 0, :, 0, 0]
    tensor([0., 1.])

    Args:
        images: [B, C, H, W], sides at least 2.
        cell_size: side of a cell in pixels, a divisor of both sides.
        num_bins: directions in half a turn, at least 1.

    Returns:
        [B, C, num_bins, H / cell_size, W / cell_size], at least float32, without a gradient.

    Raises:
        ValueError: if cells do not cover the images exactly.
    """
    height, width = images.shape[-2:]
    if height % cell_size or width % cell_size:
        raise ValueError(f"cells of {cell_size} pixels do not cover images of {height} x {width}; give a divisor")
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        images = at_least_fp32(images)
        padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
        # Sobel's filters: smoothed along one axis, then a difference along the other
        across = _smoothed(padded, dim=-2)
        across = across[..., :-2] - across[..., 2:]
        down = _smoothed(padded, dim=-1)
        down = down[..., :-2, :] - down[..., 2:, :]
        # Divided first: half a turn is then exactly 1 or -1, whose bin is that of 0.
        bins = (torch.atan2(across, down) / math.pi * num_bins).floor().long() % num_bins  # [B, C, H, W]
        lengths = torch.hypot(across, down)
        of_bins = [torch.where(bins == number, lengths, 0.0) for number in range(num_bins)]
        # means in place of sums: the factor drops out when a histogram is scaled to length 1
        cells = F.avg_pool2d(torch.stack(of_bins, dim=2).flatten(0, 1), cell_size)  # [B*C, N, h, w]
        return F.normalize(cells, dim=1).view(*images.shape[:2], num_bins, height // cell_size, width // cell_size)


def hog_patches(images: Tensor, patch_size: int, cell_size: int = 8, num_bins: int = 9) -> Tensor:
    """`hog` of each patch, its values in order of channel, bin, row and column of cells.

    >>> hog_patches(torch.rand(2, 3, 224, 224), patch_size=16).shape
    torch.Size([2, 196, 108])

    Args:
        images, cell_size, num_bins: arguments of `hog`.
        patch_size: side of a patch in pixels, a multiple of `cell_size` that divides both sides.

    Returns:
        [B, H/p * W/p, C * num_bins * (p / cell_size)**2].

    Raises:
        ValueError: if cells do not cover the patches exactly, or patches the images.
    """
    height, width = images.shape[-2:]
    if patch_size % cell_size or height % patch_size or width % patch_size:
        raise ValueError(
            f"patches of {patch_size} pixels do not hold whole cells of {cell_size}, or do not cover images of "
            f"{height} x {width}; give divisors"
        )
    cells = hog(images, cell_size, num_bins).flatten(1, 2)  # [B, C*N, h, w]
    return F.unfold(cells, patch_size // cell_size, stride=patch_size // cell_size).transpose(1, 2)


def _smoothed(images: Tensor, dim: int) -> Tensor:
    """Return sums of neighbours along one dimension, weighted by 1, 2 and 1; the dimension loses its ends."""
    num = images.shape[dim] - 2
    return images.narrow(dim, 0, num) + 2 * images.narrow(dim, 1, num) + images.narrow(dim, 2, num)
