"""Losses on embeddings without negatives: agreement of views, redundancy of dimensions, spread over the sphere."""

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """Mean over rows of -cos(p, z) (SimSiam, Chen and He 2020, arXiv 2011.10566, eq. 1), in [-1, 1].

    BYOL's loss, the squared distance of unit vectors (Grill et al. 2020, arXiv 2006.07733, eq. 2), is 2 + 2 times this.

    >>> negative_cosine(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.5, 0.0]]))
    tensor(-1.)

    Args:
        p: predictions [B, D], of any length.
        z: targets [B, D], of any length; gradients flow into them too unless they are detached.
    """
    with torch.autocast(p.device.type, enabled=False):
        p, z = (F.normalize(at_least_fp32(rows), dim=-1) for rows in (p, z))
        return -(p * z).sum(dim=-1).mean()


def off_diagonal_squares(matrix: Tensor) -> Tensor:
    """Return the sum of squares of a square matrix without its diagonal (Barlow Twins, VICReg).

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
        with torch.no_grad():
            is_self = rows[:, None] == torch.arange(len(z_all), device=rows.device)  # [B, N]
            nearest = (z @ z_all.T).masked_fill(is_self, -torch.inf).argmax(dim=1)  # [B]
        distances = torch.linalg.vector_norm(z - z_all[nearest], dim=1)
        loss: Tensor = -(distances + 1e-8).log().mean()
        return loss
