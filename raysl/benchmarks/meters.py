"""Hits among the k classes that score highest."""

import torch
from torch import Tensor


@torch.no_grad()
def top_k_hits(scores: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return whether a class of each image is among its k highest scores, bool [N].

    Args:
        scores: [N, K].
        labels: int64 [N], or [N, K] of 1 present, 0 absent and -1 ignore. An ignored class takes no place among the k;
            an image without a class (-1, or a row without a 1) counts as a miss.
        k: number of scores, all K where there are fewer.

    >>> top_k_hits(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]), k=1)
    tensor([ True, False])
    """
    if labels.ndim == 2:
        scores = scores.masked_fill(labels < 0, -torch.inf)
    ranked = scores.topk(min(k, scores.shape[1]), dim=1).indices  # [N, k]
    hits = ranked == labels[:, None] if labels.ndim == 1 else labels.gather(1, ranked) == 1
    return hits.any(dim=1)
