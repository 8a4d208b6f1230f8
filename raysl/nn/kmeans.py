"""K-means over the rows of all ranks."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.errors import ConfigError
from raysl.losses.precision import at_least_fp32
from raysl.process.screen import counted

EmptyRule = Literal["keep", "split"]
_SCORES_AT_ONCE = 2**24
"""Number of distances held at a time: 64 MB in float32."""


@torch.no_grad()
def kmeans(
    rows: Tensor, k: int, num_iters: int, seed: int, spherical: bool = True, empty: EmptyRule = "keep"
) -> tuple[Tensor, Tensor]:
    """Cluster rows by Lloyd's algorithm, spherical as in DeepClusterV2 (Caron et al. 2020, arXiv 2006.09882, app. A).

    It starts from k different rows drawn by `seed` from the rows of all ranks in rank order, so that the distribution
    of rows over ranks does not matter. Means are summed in float64. Each rank gets the same centroids; another number
    of ranks changes them only by rounding. The host waits for the device: meant for once an epoch. Memory beyond the
    rows is 64 MB of distances, a chunk of rows in float64, and two [K, D] sums.

    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> centroids, assignments = kmeans(rows, k=2, num_iters=5, seed=0)
    >>> centroids.shape, bool(assignments[0] == assignments[1] != assignments[2])
    (torch.Size([2, 2]), True)

    Args:
        rows: this rank's [n, D], with any n on each rank, also 0, and the same D; outside a training step.
        k: number of clusters, from 1 to the number of rows.
        num_iters: rounds of assignment and means; assignments to the last centroids follow.
        seed: seed of the initial rows, the same on every rank.
        spherical: compare directions; rows and centroids are normalised.
        empty: rule for a cluster without rows: "keep" leaves its centroid, as in the paper's code; "split" moves it to
            the centroid of the largest cluster, both then shifted apart by 1/1024 of their values, as in faiss.

    Returns:
        Centroids [k, D], at least float32, and this rank's assignments, int64 [n].

    Raises:
        ConfigError: if there are fewer rows than clusters, or no clusters.
        ValueError: if a row is not finite.
    """
    total = sum(dist.row_counts(len(rows), rows.device))
    if not 1 <= k <= total:
        raise ConfigError(
            f"k-means cannot find {counted(k, 'cluster')} in {counted(total, 'row')}: set between 1 and {total} "
            "clusters, or give more images"
        )
    is_finite = torch.stack([part.isfinite().all() for part in torch.split(rows, _rows_per_part(rows, k))])
    if not dist.all_true(bool(is_finite.all()), rows.device):
        raise ValueError("k-means got rows that are not finite: the network that computed them has diverged")
    centroids = _first(rows, k, seed, spherical)
    # allocated once: fresh memory for each part takes as long as the product
    scores = at_least_fp32(rows.new_empty(0)).new_empty(min(_rows_per_part(rows, k), len(rows)), k)
    for _ in range(num_iters):
        centroids = _move(rows, centroids, spherical, empty, scores)
    nearest = [_nearest(part, centroids, spherical, scores) for part in _parts(rows, k, spherical)]
    return centroids, torch.cat(nearest) if nearest else torch.zeros(0, dtype=torch.int64, device=rows.device)


def _first(rows: Tensor, k: int, seed: int, spherical: bool) -> Tensor:
    """Return the first k rows of a permutation of all rows, [k, D]; each comes from the rank that holds it."""
    counts = dist.row_counts(len(rows), rows.device)
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed))[:k]
    local = order - sum(counts[: dist.rank()])
    is_here = (local >= 0) & (local < len(rows))
    # rows of other ranks stay 0, and the sum over ranks puts all k together
    first = at_least_fp32(rows.new_zeros(k, rows.shape[1]))
    first[is_here.to(rows.device)] = at_least_fp32(rows[local[is_here].to(rows.device)])
    first = dist.all_sum(first)
    return F.normalize(first, dim=1) if spherical else first


def _move(rows: Tensor, centroids: Tensor, spherical: bool, empty: EmptyRule, scores: Tensor) -> Tensor:
    """Return the centroids [K, D] after one round."""
    k, dim = centroids.shape
    sums = torch.zeros(k, dim + 1, dtype=torch.float64, device=rows.device)  # the last column counts rows
    for part in _parts(rows, k, spherical):
        ones = part.new_ones(len(part), 1)
        sums.index_add_(0, _nearest(part, centroids, spherical, scores), torch.cat([part, ones], dim=1).double())
    sums = dist.all_sum(sums)
    counts = sums[:, -1]  # [K]
    means = sums[:, :-1] / counts.clamp(min=1)[:, None]
    if spherical:
        means = F.normalize(means, dim=1)
    is_kept = (counts == 0) | (spherical & (means == 0).all(dim=1))  # opposite rows may cancel
    moved = torch.where(is_kept[:, None], centroids.double(), means)
    if empty == "split":
        moved = _split(moved, counts.tolist())
        moved = F.normalize(moved, dim=1) if spherical else moved
    return moved.to(centroids.dtype)


def _split(centroids: Tensor, counts: list[float]) -> Tensor:
    """Move each empty cluster beside the currently largest one, half of whose count it takes."""
    apart = torch.full(centroids.shape[1:], 1 / 1024, dtype=centroids.dtype, device=centroids.device)  # [D]
    # signs alternate, since one factor for all dimensions would only change the length
    apart[1::2] *= -1
    for cluster, count in enumerate(counts):
        if count == 0:
            largest = max(range(len(counts)), key=counts.__getitem__)
            centroids[cluster] = centroids[largest] * (1 + apart)
            centroids[largest] *= 1 - apart
            counts[largest] = counts[cluster] = counts[largest] / 2
    return centroids


def _parts(rows: Tensor, k: int, spherical: bool) -> Iterator[Tensor]:
    """Yield the rows a few at a time, normalised if directions count."""
    for part in torch.split(rows, _rows_per_part(rows, k)) if len(rows) else ():
        part = at_least_fp32(part)
        yield F.normalize(part, dim=1) if spherical else part


def _rows_per_part(rows: Tensor, k: int) -> int:
    return max(_SCORES_AT_ONCE // max(k, rows.shape[1]), 1)


def _nearest(part: Tensor, centroids: Tensor, spherical: bool, scores: Tensor) -> Tensor:
    """Return the indices of the nearest centroids, the first of equals, int64 [n]; `scores` is overwritten."""
    scores = scores[: len(part)]
    if spherical:
        return torch.mm(part, centroids.T, out=scores).argmax(dim=1)
    # Relative to the mean: differences of large squares would lose digits.
    middle = centroids.mean(dim=0)
    centred = centroids - middle
    torch.mm(part - middle, centred.T, out=scores)
    return scores.sub_(centred.square().sum(dim=1) / 2).argmax(dim=1)
