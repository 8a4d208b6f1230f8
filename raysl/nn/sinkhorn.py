"""Sinkhorn-Knopp: soft assignments that use all prototypes equally."""

from collections.abc import Iterator

import torch
from torch import Tensor

from raysl import dist
from raysl.losses.precision import at_least_fp32

ANEW = 3
"""Turns after which the matrix is made anew from the scores: in fewer, no entry that underflowed can come to count."""

IN_CACHE = 2**17
"""Numbers of a part on a CPU: 512 kB in float32."""


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
    an equal share; each code then sums to 1. The first turn is done in logarithms, so that nothing over- or underflows:
    a prototype or row far from all others needs no guard. From then on each row sums to 1 and each prototype has an
    entry that is no less than a share of it, so that the next two turns are plain products of the matrix with the two
    scales; then it is made anew. The scale of the shares, so the number of rows, cancels. Infinite scores count as the
    largest finite ones. An exchange of K numbers an iteration, two in the first, in fp32 at the least.

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
        if num_iters == 0:
            return _codes(torch.softmax(own, dim=1), is_hard)
        counts, counts_shared = _counts(own, mask), _counts(shared, extra_mask)  # [B], [Q]
        by_prototype = -_log_sum_over_ranks(_hidden(own, mask), _hidden(shared, extra_mask))  # [K]
        q, q_shared = _balanced(own, by_prototype), _balanced(shared, by_prototype)  # [B, K], [Q, K]
        by_row, by_shared = own.new_ones(len(own)), own.new_ones(len(shared))  # [B], [Q]
        by_column = torch.ones_like(by_prototype)  # [K]
        for turn in range(1, num_iters):
            if turn % ANEW == 0:
                by_prototype = by_prototype + by_column.log()
                q, q_shared = _balanced(own, by_prototype), _balanced(shared, by_prototype)
                by_row, by_shared = torch.ones_like(by_row), torch.ones_like(by_shared)
            shares = dist.all_sum(q.T @ (counts * by_row)) + q_shared.T @ (counts_shared * by_shared)  # [K]
            by_column = torch.where(shares > 0, 1 / shares, 1.0)
            by_row, by_shared = 1 / (q @ by_column), 1 / (q_shared @ by_column)
        for part, scale in _parts(q, by_row[:, None]):
            part.mul_(by_column).mul_(scale)
        return _codes(q, is_hard)


def _codes(q: Tensor, is_hard: bool) -> Tensor:
    return torch.zeros_like(q).scatter_(1, q.argmax(dim=1, keepdim=True), 1.0) if is_hard else q


def _logits(scores: Tensor, epsilon: float) -> Tensor:
    scores = at_least_fp32(scores)
    most = torch.finfo(scores.dtype).max / 16  # sums of a few stay finite
    logits = torch.empty_like(scores)
    for part, given in _parts(logits, scores):
        torch.div(given, epsilon, out=part).clamp_(-most, most)
    return logits


def _balanced(logits: Tensor, by_prototype: Tensor) -> Tensor:
    """The rows after a turn in logarithms: each sums to 1."""
    q = torch.empty_like(logits)
    for part, given in _parts(q, logits):
        torch.softmax(given + by_prototype, dim=1, out=part)
    return q


def _counts(rows: Tensor, mask: Tensor | None) -> Tensor:
    """1 for rows [n, K] that count, and 0 for those that do not [n]."""
    return rows.new_ones(len(rows)) if mask is None else mask.to(rows.dtype)


def _hidden(rows: Tensor, mask: Tensor | None) -> Tensor:
    """The rows [n, K], minus infinity where they do not count."""
    return rows if mask is None else rows.masked_fill(~mask[:, None], -torch.inf)


def _log_sum_over_ranks(own: Tensor, shared: Tensor) -> Tensor:
    """log of the sum of exp over the rows of all ranks and, once, the shared ones, [K]; 0 where none of them count."""
    most = -dist.all_least(-torch.maximum(_largest(own), _largest(shared)))
    most = torch.where(most.isneginf(), 0.0, most)
    total = dist.all_sum(_sum_of_exp(own, most)) + _sum_of_exp(shared, most)
    return torch.where(total > 0, most + total.log(), 0.0)


def _largest(rows: Tensor) -> Tensor:
    return rows.amax(dim=0) if len(rows) else rows.new_full(rows.shape[1:], -torch.inf)


def _sum_of_exp(rows: Tensor, most: Tensor) -> Tensor:
    total = torch.zeros_like(most)
    for (part,) in _parts(rows):
        total += (part - most).exp_().sum(dim=0)
    return total


def _parts(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of each, on a CPU so few at a time that what is made of them stays in its cache."""
    num_rows, width = matrices[0].shape
    num = max(IN_CACHE // max(width, 1), 1) if matrices[0].device.type == "cpu" else num_rows
    for first in range(0, num_rows, max(num, 1)):
        yield tuple(matrix[first : first + num] for matrix in matrices)
