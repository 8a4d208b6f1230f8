"""Whitening by principal components that is learned on one set of images and used on another."""

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 1e-5
"""Share of the largest variance that smaller ones are raised to, so that rounding is not magnified."""


@dataclass(frozen=True)
class Whitening:
    """A projection to directions of equal variance (Jegou and Chum, ECCV 2012).

    Args:
        mean: float32 [D].
        directions: float32 [D, K], principal directions over their standard deviations, the most varied first.
    """

    mean: Tensor
    directions: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Project rows [N, D] to [N, K]."""
        return (rows - self.mean.to(rows.device)) @ self.directions.to(rows.device)


class Moments:
    """Sums of x and x x^T over rows in float64, from which a whitening is computed in one pass and D x D memory."""

    def __init__(self, width: int) -> None:
        self.num = 0
        self.total = torch.zeros(width, dtype=torch.float64)
        self.products = torch.zeros(width, width, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Add rows [n, D]."""
        wide = rows.double()
        self.num += len(rows)
        self.total = self.total.to(rows.device) + wide.sum(dim=0)
        self.products = self.products.to(rows.device) + wide.T @ wide

    def whitening(self, dim: int | None = None, center: bool = True) -> Whitening:
        """Return the whitening that keeps the `dim` directions of largest variance; default: all.

        Args:
            center: take the variances about the mean; else the second moments about 0, as DINO's code does. Rows have
                the mean subtracted in either case.

        Raises:
            ValueError: if there are fewer directions, or fewer than two rows.
        """
        width = len(self.total)
        if dim is not None and dim > width:
            raise ValueError(f"whiten_dim={dim} is more than the {width} dimensions there are; set at most {width}")
        if self.num < 2:
            raise ValueError(f"{self.num} vectors are too few to learn a whitening of; give more images in whiten_on")
        mean = self.total / self.num
        about = mean if center else torch.zeros_like(mean)
        variances, directions = torch.linalg.eigh(self.products / self.num - torch.outer(about, about))  # rising
        variances, directions = variances.flip(0)[:dim], directions.flip(1)[:, :dim]
        # the second bound keeps the scale finite where all rows are equal
        scale = variances.clamp_min(LEAST * float(variances[0])).clamp_min(1e-300).rsqrt()
        return Whitening(mean.float(), (directions * scale).float())
