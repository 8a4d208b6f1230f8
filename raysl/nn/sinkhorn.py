"""Sinkhorn-Knopp: soft assignments that use all prototypes equally."""

import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.losses.precision import at_least_fp32

ANEW = 3
"""Turns after which the matrix is made anew from the scores: in fewer, no entry that underflowed can come to count."""

MOST = 2.0**20
"""What scores by epsilon are limited to: of such numbers float32 still tells differences of an eighth."""

SURE = 1e-10
"""Sum of a row, against entries of no more than 1, from which on what underflows in it is of no matter to any turn."""


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
    an equal share; each code then sums to 1. The matrix itself is made once, of differences from the largest score of
    its prototype and then of its row, so that nothing over- or underflows: a prototype or row far from all others needs
    no guard. The turns are products of it with the two scales. After three, it is made anew from the scores and the
    scales so far. The scale of the shares, so the number of rows, cancels. Scores of more than a million epsilons, such
    as infinite ones, count as a million. An exchange of K numbers an iteration, two in the first, in fp32 at the least.

    The matrix is worked on as a whole: of parts that fit into a cache there would be hundreds, and at each of them the
    threads of a busy machine would wait for one another.

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
        own = at_least_fp32(scores)  # [B, K]
        shared = own[:0] if extra is None else extra.to(own.dtype)  # [Q, K]
        if num_iters == 0:
            return _codes(torch.softmax(_limited(own, epsilon) / epsilon, dim=1), is_hard)
        counts, counts_shared = _counts(own, mask), _counts(shared, extra_mask)  # [B], [Q]
        most = _largest_over_ranks(_hidden(own, mask), _hidden(shared, extra_mask))
        column = -_limited(most, epsilon) / epsilon  # [K], a logarithm
        (q, row), (q_shared, row_shared) = _matrix(own, column, epsilon), _matrix(shared, column, epsilon)
        by_row, by_shared = _weights(row, counts), _weights(row_shared, counts_shared)  # [B], [Q]
        by_column = torch.ones_like(column)
        for turn in range(num_iters):
            if turn > 0 and turn % ANEW == 0:
                column = column + by_column.log()
                (q, _), (q_shared, _) = _matrix(own, column, epsilon), _matrix(shared, column, epsilon)
                by_row, by_shared = 1 / q.sum(dim=1), 1 / q_shared.sum(dim=1)
            shares = dist.all_sum(q.T @ (counts * by_row)) + q_shared.T @ (counts_shared * by_shared)  # [K]
            by_column = torch.where(shares > 0, 1 / shares, 1.0)
            if turn < num_iters - 1:
                by_row, by_shared = 1 / (q @ by_column), 1 / (q_shared @ by_column)
        q.mul_(by_column)
        return _codes(q.div_(q.sum(dim=1, keepdim=True)), is_hard)


def _codes(q: Tensor, is_hard: bool) -> Tensor:
    return torch.zeros_like(q).scatter_(1, q.argmax(dim=1, keepdim=True), 1.0) if is_hard else q


def _limited(scores: Tensor, epsilon: float) -> Tensor:
    return scores.clamp(-MOST * epsilon, MOST * epsilon)


def _matrix(scores: Tensor, column: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """exp(scores / epsilon + column) [n, K], each row by its largest entry; and the logarithms of those, [n].

    On a CPU, where a look at them costs nothing, rows stay as they are if all are well above what underflows.
    """
    if scores.device.type == "cpu":
        q = torch.add(column, scores, alpha=1 / epsilon).exp_()
        sums = q.sum(dim=1)
        if ((sums > SURE) & (sums <= 2 * q.shape[1])).all():
            return q, torch.zeros_like(sums)
    q = torch.add(column, _limited(scores, epsilon), alpha=1 / epsilon)
    row = q.amax(dim=1)
    return q.sub_(row[:, None]).exp_(), row


def _weights(row: Tensor, counts: Tensor) -> Tensor:
    """exp(row) of rows that count; they are no larger than 0, and others may be."""
    return torch.where(counts > 0, row, -torch.inf).exp()


def _counts(rows: Tensor, mask: Tensor | None) -> Tensor:
    """1 for rows [n, K] that count, and 0 for those that do not [n]."""
    return rows.new_ones(len(rows)) if mask is None else mask.to(rows.dtype)


def _hidden(rows: Tensor, mask: Tensor | None) -> Tensor:
    """The rows [n, K], minus infinity where they do not count."""
    return rows if mask is None else rows.masked_fill(~mask[:, None], -torch.inf)


def _largest_over_ranks(own: Tensor, shared: Tensor) -> Tensor:
    """Largest score of each prototype [K], of the rows of all ranks; 0 where none of them count."""
    most = -dist.all_least(-torch.maximum(_largest(own), _largest(shared)))
    return torch.where(most.isneginf(), 0.0, most)


def _largest(rows: Tensor) -> Tensor:
    return rows.amax(dim=0) if len(rows) else rows.new_full(rows.shape[1:], -torch.inf)
