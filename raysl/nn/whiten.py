"""Whitening by principal components, over the rows of all ranks."""

import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.losses.precision import at_least_fp32

_ROWS_AT_ONCE = 16384
"""Rows that are held in float64 at a time."""
_LEAST = 1e-8
"""Share of the largest variance below which a direction is taken to have none: it would be rounding, magnified."""


@torch.no_grad()
def whitened(rows: Tensor, dim: int) -> Tensor:
    """Rows along the `dim` directions in which all vary most, centred and of variance 1 in each (PCA whitening).

    Sums are taken in float64, so another number of ranks changes the result by rounding alone; the signs of directions
    are those that the eigensolver gives. A direction without variance is 0 for all rows. Every rank calls it, outside
    of a training step.

    Args:
        rows: this rank's [n, D], any n on each rank, also 0, D the same.
        dim: directions to keep, from 1 to D.

    Returns:
        This rank's rows [n, dim], in float32 at the least.

    Raises:
        ValueError: if `dim` is outside its range, or a row is not finite.
    """
    width = rows.shape[1]
    if not 1 <= dim <= width:
        raise ValueError(f"rows of width {width} have no {dim} principal components; keep between 1 and {width}")
    if not dist.all_true(bool(rows.isfinite().all()), rows.device):
        raise ValueError("rows to whiten are not finite: the network that made them has diverged")
    parts = torch.split(rows, _ROWS_AT_ONCE)
    num = dist.all_sum(torch.tensor(len(rows), dtype=torch.float64, device=rows.device))
    mean = dist.all_sum(torch.stack([part.double().sum(dim=0) for part in parts]).sum(dim=0)) / num  # [D]
    squares = torch.stack([(part.double() - mean).T @ (part.double() - mean) for part in parts]).sum(dim=0)
    variances, directions = torch.linalg.eigh(dist.all_sum(squares) / num)  # rising: [D], [D, D] by column
    variances, directions = variances.flip(0)[:dim], directions.flip(1)[:, :dim]
    scale = torch.where(variances > _LEAST * variances[0], variances.clamp_min(1e-300).rsqrt(), 0.0)
    turned = [((part.double() - mean) @ (directions * scale)).to(at_least_fp32(part).dtype) for part in parts]
    return torch.cat(turned)
