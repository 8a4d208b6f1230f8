"""Sinkhorn-Knopp: soft assignments that use all prototypes equally."""

import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.losses.precision import at_least_fp32

RECOMPUTE_EVERY = 3
"""Iterations after which the matrix is recomputed from the scores; in fewer, no underflowed entry can become
relevant."""

LIMIT = 2.0**20
"""Limit of scores / epsilon: float32 resolves 1/8 at this magnitude."""

SAFE_SUM = 1e-10
"""Smallest sum of a row of entries of at most 1 for which underflowed entries do not matter in any iteration."""


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

    exp(scores / epsilon) is scaled alternately so that each prototype gets an equal share of all rows, and each row
    gives an equal share; each code then sums to 1. The matrix is computed once, from differences to the largest score
    of its prototype and then of its row, so that nothing over- or underflows, even for a prototype or row far from all
    others. Iterations multiply it with the two scales; after three it is recomputed from the scores and the scales so
    far. The number of rows cancels. Scores above a million epsilons, such as infinite ones, count as a million. Each
    iteration exchanges K numbers between ranks, the first one twice, in at least fp32.

    Matrices in leading dimensions are balanced each by itself, such as those of the places of patches (CAPI, arXiv
    2502.08769, figure 12).

    The matrix is processed as a whole: in parts that fit into a cache, the threads of a busy machine would wait for one
    another at each of hundreds of parts.

    >>> sinkhorn(torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.8, 0.2]]), num_iters=10).sum(dim=0).round(decimals=2)
    tensor([1.5000, 1.5000])

    Args:
        scores: cosines with the prototypes [..., B, K], any B on each rank, also 0.
        epsilon: smoothness, above 0; smaller values make codes more certain.
        num_iters: number of iterations; 0 is a plain softmax.
        mask: bool [..., B], which of this rank's rows count; the others get meaningless codes and do not affect the
            rows that count. Default: all.
        extra: scores of further rows [..., Q, K] that are the same on every rank and count once, such as SwAV's queue.
        extra_mask: bool [..., Q], which of them count (`Queue.is_filled`). Default: all.
        is_hard: set the largest entry of each code to 1 and the others to 0.

    Returns:
        Codes [..., B, K], without gradient.
    """
    with torch.autocast(scores.device.type, enabled=False):
        local = at_least_fp32(scores)  # [..., B, K]
        shared = local[..., :0, :] if extra is None else extra.to(local.dtype)  # [..., Q, K]
        if num_iters == 0:
            return _codes(torch.softmax(_limited(local, epsilon) / epsilon, dim=-1), is_hard)
        counts, counts_shared = _counts(local, mask), _counts(shared, extra_mask)  # [..., B], [..., Q]
        most = _largest_over_ranks(_hidden(local, mask), _hidden(shared, extra_mask))
        column = -_limited(most, epsilon) / epsilon  # [..., K], a logarithm
        (q, row), (q_shared, row_shared) = _matrix(local, column, epsilon), _matrix(shared, column, epsilon)
        by_row, by_shared = _weights(row, counts), _weights(row_shared, counts_shared)  # [..., B], [..., Q]
        by_column = torch.ones_like(column)
        for iteration in range(num_iters):
            if iteration > 0 and iteration % RECOMPUTE_EVERY == 0:
                column = column + by_column.log()
                (q, _), (q_shared, _) = _matrix(local, column, epsilon), _matrix(shared, column, epsilon)
                by_row, by_shared = 1 / q.sum(dim=-1), 1 / q_shared.sum(dim=-1)
            shares = dist.all_sum(_times(q.mT, counts * by_row)) + _times(q_shared.mT, counts_shared * by_shared)
            # a prototype without any share keeps a scale of 1 in place of an infinite one
            by_column = torch.where(shares > 0, 1 / shares, 1.0)
            if iteration < num_iters - 1:
                by_row, by_shared = 1 / _times(q, by_column), 1 / _times(q_shared, by_column)
        q.mul_(by_column[..., None, :])
        return _codes(q.div_(q.sum(dim=-1, keepdim=True)), is_hard)


def _codes(q: Tensor, is_hard: bool) -> Tensor:
    return torch.zeros_like(q).scatter_(-1, q.argmax(dim=-1, keepdim=True), 1.0) if is_hard else q


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return the products [..., m] of matrices [..., m, n] and vectors [..., n]."""
    return matrix @ vector if vector.ndim == 1 else (matrix @ vector[..., None])[..., 0]


def _limited(scores: Tensor, epsilon: float) -> Tensor:
    return scores.clamp(-LIMIT * epsilon, LIMIT * epsilon)


def _matrix(scores: Tensor, column: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return exp(scores / epsilon + column) [..., n, K], rows divided by their largest entry, and its logarithm
    [..., n].

    On a CPU, where reading the sums costs nothing unless the step is compiled, rows are not divided if all are well
    above underflow.
    """
    column = column[..., None, :]
    if scores.device.type == "cpu" and not torch.compiler.is_compiling():
        q = torch.add(column, scores, alpha=1 / epsilon).exp_()
        sums = q.sum(dim=-1)
        if ((sums > SAFE_SUM) & (sums <= 2 * q.shape[-1])).all():
            return q, torch.zeros_like(sums)
    q = torch.add(column, _limited(scores, epsilon), alpha=1 / epsilon)
    row = q.amax(dim=-1)
    return q.sub_(row[..., None]).exp_(), row


def _weights(row: Tensor, counts: Tensor) -> Tensor:
    """Return exp(row) for rows that count, where row <= 0, and 0 for others, where it may be larger."""
    return torch.where(counts > 0, row, -torch.inf).exp()


def _counts(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Return 1 for rows [..., n, K] that count and 0 for others [..., n]."""
    return rows.new_ones(rows.shape[:-1]) if mask is None else mask.to(rows.dtype)


def _hidden(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Return the rows [..., n, K], with minus infinity in rows that do not count."""
    return rows if mask is None else rows.masked_fill(~mask[..., None], -torch.inf)


def _largest_over_ranks(local: Tensor, shared: Tensor) -> Tensor:
    """Return the largest score of each prototype [..., K] over the rows of all ranks; 0 if no row counts."""
    most = -dist.all_least(-torch.maximum(_largest(local), _largest(shared)))
    return torch.where(most.isneginf(), 0.0, most)


def _largest(rows: Tensor) -> Tensor:
    if rows.shape[-2]:
        return rows.amax(dim=-2)
    return rows.new_full((*rows.shape[:-2], rows.shape[-1]), -torch.inf)
