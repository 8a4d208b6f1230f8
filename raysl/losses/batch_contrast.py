"""Comparison of queries with keys of the whole batch or of a queue, from another network or another time."""

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


def info_nce(q: Tensor, keys_pos: Tensor, queue: Tensor, temperature: float = 0.07) -> Tensor:
    """Cross entropy of picking a query's key among a queue of keys (MoCo, He et al. 2019, arXiv 1911.05722, eq. 1).

    Mean over queries. Gradients flow into all arguments that require them; the paper's keys and queue do not.

    >>> q, queue = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> info_nce(q, keys_pos=q, queue=queue, temperature=1.0)  # log((e + 1) / e)
    tensor(0.3133)

    Args:
        q: queries [B, D]; of any length, they are normalised here.
        keys_pos: the key of each query [B, D]; normalised here too.
        queue: keys of other images [K, D], of length 1, as `raysl.nn.queue.Queue` holds them.
        temperature: above 0.
    """
    with torch.autocast(q.device.type, enabled=False):
        q, keys_pos = F.normalize(at_least_fp32(q), dim=1) / temperature, F.normalize(at_least_fp32(keys_pos), dim=1)
        positives = (q * keys_pos).sum(dim=-1)  # [B]
        against = torch.logsumexp(q @ queue.to(q.dtype).T, dim=1)  # [B], of [B, K]
        return -F.logsigmoid(positives - against).mean()


def co2(q: Tensor, keys_pos: Tensor, queue: Tensor, temperature: float = 0.04) -> Tensor:
    """Symmetric Kullback-Leibler divergence between the similarities of a query and of its key to the keys of other
    images (CO2, Wei et al. 2020, arXiv 2010.02217, section 2).

    The similarities are softmaxes Q(i) of q . n_i / T and P(i) of k . n_i / T over the queue's keys n_i, without the
    query's own key: (KL(P, Q) + KL(Q, P)) / 2, a mean over queries. Arguments are those of `info_nce`.

    >>> q, keys_pos = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> co2(q, keys_pos, queue=torch.eye(2), temperature=1.0)  # (e - 1) / (e + 1)
    tensor(0.4621)
    """
    with torch.autocast(q.device.type, enabled=False):
        q, keys_pos = F.normalize(at_least_fp32(q), dim=1), F.normalize(at_least_fp32(keys_pos), dim=1)
        keys = queue.to(q.dtype).T / temperature  # [D, K]
        log_q, log_p = F.log_softmax(q @ keys, dim=1), F.log_softmax(keys_pos @ keys, dim=1)  # [B, K]
        # the sum of both divergences, P log(P / Q) + Q log(Q / P)
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1).mean() / 2
