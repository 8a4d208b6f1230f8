"""Losses that spread embeddings over the sphere."""

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


def koleo(z: Tensor, z_all: Tensor, rows: Tensor) -> Tensor:
    """Kozachenko-Leonenko estimate of the entropy, with its sign changed (KoLeo, Sablayrolles et al. 2018, arXiv
    1806.03198; DINOv2, Oquab et al. 2023, arXiv 2304.07193, section 4).

    The mean of -log of the distance to the nearest other embedding of the batch; 1e-8 is added to a distance, so that
    equal embeddings cost 18.4. Gradients flow into both ends of a distance.

    Args:
        z: embeddings of this rank's images [B, D], of any length, they are normalised here.
        z_all: embeddings of the whole batch [N, D], this rank's among them.
        rows: int64 [B], the places of this rank's images in `z_all`.
    """
    with torch.autocast(z.device.type, enabled=False):
        z, z_all = (F.normalize(at_least_fp32(part), dim=-1) for part in (z, z_all))
        with torch.no_grad():
            is_self = rows[:, None] == torch.arange(len(z_all), device=rows.device)  # [B, N]
            nearest = (z @ z_all.T).masked_fill(is_self, -torch.inf).argmax(dim=1)  # [B]
        distances = torch.linalg.vector_norm(z - z_all[nearest], dim=1)
        loss: Tensor = -(distances + 1e-8).log().mean()
        return loss
