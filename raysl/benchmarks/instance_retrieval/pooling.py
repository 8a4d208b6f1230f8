"""Pooling of a map by maxima of regions (R-MAC) and generalised means (GeM), and whitening of the pooled vectors."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

GEM_LEAST = 1e-6
"""Values below are raised to it: a power needs positive ones."""
MOST_BESIDE = 7
"""Regions along the longer side that are considered."""


class Region(NamedTuple):
    """A square of a map, in positions: its first row and column, and its side."""

    row: int
    column: int
    side: int


def rmac_regions(height: int, width: int, levels: int = 3, overlap: float = 0.4) -> list[Region]:
    """Return the squares of R-MAC (Tolias, Sicre and Jegou 2016, arXiv 1511.05879, section 3.2).

    At level l squares have side 2 min(H, W) / (l + 1), rounded down, and lie on an even grid: l along the shorter side,
    and l + m along the longer one, where m + 1 squares of level 1 overlap by the share that is nearest to `overlap`.
    Levels whose squares would be smaller than a place have none.

    Args:
        levels: numbers from 1 on.
        overlap: wanted share of neighbouring squares of level 1.
    """
    short, long = min(height, width), max(height, width)
    more = _more_along(short, long, overlap)
    regions = []
    for level in range(1, levels + 1):
        side = 2 * short // (level + 1)
        if side < 1:
            break
        rows = _starts(height, side, level + (more if height > width else 0))
        columns = _starts(width, side, level + (more if width > height else 0))
        regions += [Region(row, column, side) for row in rows for column in columns]
    return regions


def region_maxima(maps: Tensor, regions: list[Region]) -> Tensor:
    """Return the largest value of each channel in each region, [R, C] of a map [C, H, W]."""
    parts = [maps[:, row : row + side, column : column + side].amax(dim=(1, 2)) for row, column, side in regions]
    return torch.stack(parts)


def gem(maps: Tensor, p: float) -> Tensor:
    """Return the generalised mean of each channel, mean(x ** p) ** (1 / p) (Radenovic et al. 2018, arXiv 1711.02512,
    equation 3).

    Args:
        maps: [C, H, W]; values below 1e-6 are raised to it.
        p: 1 is the mean; the larger, the nearer to the maximum.

    Returns:
        [C].

    >>> gem(torch.full((2, 4, 4), 3.0), p=3.0)
    tensor([3., 3.])
    """
    values = maps.clamp_min(GEM_LEAST).double().flatten(1)
    top = values.amax(dim=1, keepdim=True)  # so that no power overflows
    return (top[:, 0] * (values / top).pow(p).mean(dim=1).pow(1 / p)).to(maps.dtype)


def _more_along(short: int, long: int, overlap: float) -> int:
    """Return the m of the paper: 0 for a square map, else 1 to 6."""
    if short == long:
        return 0
    beside = np.arange(2, MOST_BESIDE + 1)
    step = (long - short) / (beside - 1)
    return int(np.argmin(np.abs((short**2 - short * step) / short**2 - overlap))) + 1


def _starts(length: int, side: int, num: int) -> list[int]:
    """Return the starts of `num` intervals that are spread evenly over a length, rounded down."""
    return [number * (length - side) // max(num - 1, 1) for number in range(num)]


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
