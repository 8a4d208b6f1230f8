"""Sinkhorn-Knopp: soft assignments that use all prototypes equally."""

import torch
from torch import Tensor

from raysl import dist
from raysl.losses.precision import at_least_fp32


@torch.no_grad()
def sinkhorn(
    scores: Tensor,
    epsilon: float = 0.05,
    num_iters: int = 3,
    *,
    mask: Tensor | None = None,
    extra: Tensor | None = None,
    extra_mask: Tensor | None = None,
    is_hard: bool = False,
) -> Tensor:
    """Codes of this rank's rows, balanced over the rows of all ranks (SwAV, arXiv 2006.09882, eq. 3 to 5).

    exp(scores / epsilon) is scaled by turns so that each prototype gets an equal share of all rows, and each row gives
    an equal share; each code then sums to 1. Done in logarithms, which is the same and neither over- nor underflows:
    a prototype or row far from all others needs no guard. The scale of the shares, so the number of rows, cancels.
    Infinite scores count as the largest finite ones. Two exchanges of K numbers an iteration, in fp32 at the least.

    Args:
        scores: cosines with the prototypes [B, K], with any B on each rank, also 0.
        epsilon: smoothness, above 0; less makes codes more certain.
        num_iters: 0 is a plain softmax.
        mask: bool [B], which of this rank's rows count; the others get codes that are of no use, and are of no matter
            to those that count. All by default.
        extra: scores of further rows [Q, K] that are the same on every rank and count once, such as SwAV's queue.
        extra_mask: bool [Q], which of them count (`Queue.is_filled`); all by default.
        is_hard: give the largest entry of each code as 1 and the others as 0.

    Returns:
        Codes [B, K], without gradient.
    """
    with torch.autocast(scores.device.type, enabled=False):
        own = _logits(scores, epsilon)  # [B, K]
        shared = own[:0] if extra is None else _logits(extra, epsilon).to(own.dtype)  # [Q, K]
        hidden, hidden_shared = _hidden(own, mask), _hidden(shared, extra_mask)  # [B, 1], [Q, 1]
        by_prototype = own.new_zeros(own.shape[1])  # [K]
        by_row, by_shared = hidden, hidden_shared
        for _ in range(num_iters):
            by_prototype = -_log_sum_over_ranks(own + by_row, shared + by_shared)
            by_row = hidden - torch.logsumexp(own + by_prototype, dim=1, keepdim=True)
            by_shared = hidden_shared - torch.logsumexp(shared + by_prototype, dim=1, keepdim=True)
        logits = own + by_prototype
        if is_hard:
            return torch.zeros_like(logits).scatter_(1, logits.argmax(dim=1, keepdim=True), 1.0)
        return torch.softmax(logits, dim=1)


def _logits(scores: Tensor, epsilon: float) -> Tensor:
    logits = at_least_fp32(scores) / epsilon
    most = torch.finfo(logits.dtype).max / 16  # sums of a few stay finite
    return logits.clamp(-most, most)


def _hidden(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Minus infinity for rows [n, K] that do not count, and 0 for those that do [n, 1]."""
    zeros = rows.new_zeros(len(rows), 1)
    return zeros if mask is None else zeros.masked_fill(~mask[:, None], -torch.inf)


def _log_sum_over_ranks(own: Tensor, shared: Tensor) -> Tensor:
    """log of the sum of exp over the rows of all ranks and, once, the shared ones, [K]; 0 where none of them count."""
    most = -dist.all_least(-torch.maximum(_largest(own), _largest(shared)))
    most = torch.where(most.isneginf(), 0.0, most)
    total = dist.all_sum((own - most).exp().sum(dim=0)) + (shared - most).exp().sum(dim=0)
    return torch.where(total > 0, most + total.log(), 0.0)


def _largest(rows: Tensor) -> Tensor:
    return rows.amax(dim=0) if len(rows) else rows.new_full(rows.shape[1:], -torch.inf)
