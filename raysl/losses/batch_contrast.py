"""Contrast of queries with keys of the whole batch, from another network or another time."""

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses.precision import at_least_fp32


def batch_info_nce(q: Tensor, keys: Tensor, rows: Tensor, temperature: float = 0.2) -> tuple[Tensor, Tensor]:
    """Cross entropy of picking a query's key among those of the whole batch (MoCo v3, Chen et al. 2021, arXiv
    2104.02057, eq. 1), and the share of queries that are nearest to their own key. Mean over queries.

    >>> batch_info_nce(torch.eye(2), torch.eye(2), rows=torch.arange(2), temperature=1.0)  # log((e + 1) / e)
    (tensor(0.3133), tensor(1.))

    Args:
        q: queries of this rank [B, D]; of any length, they are normalised here.
        keys: embeddings of the whole batch [N, D]; normalised here too.
        rows: int64 [B], the index of each query's key.
        temperature: above 0.
    """
    with torch.autocast(q.device.type, enabled=False):
        cosines = F.normalize(at_least_fp32(q), dim=1) @ F.normalize(at_least_fp32(keys), dim=1).T  # [B, N]
        hits = (cosines.detach().argmax(dim=1) == rows).float().mean()
        return F.cross_entropy(cosines / temperature, rows), hits
