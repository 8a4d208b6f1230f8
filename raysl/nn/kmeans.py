"""K-means over the rows of all ranks."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.errors import ConfigError
from raysl.losses.precision import at_least_fp32

EmptyRule = Literal["keep", "split"]
_SCORES_AT_ONCE = 2**24
"""Distances held at a time: 64 MB in float32."""


@torch.no_grad()
def kmeans(
    rows: Tensor, k: int, num_iters: int, seed: int, spherical: bool = True, empty: EmptyRule = "keep"
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm; spherical, as DeepClusterV2 has it (Caron et al. 2020, arXiv 2006.09882, appendix A).

    It starts from k different rows of all, drawn by `seed` and numbered in rank order, so that the way rows are spread
    over ranks does not matter. Means are summed in float64. Each rank gets the same centroids; another number of ranks
    changes them by rounding alone. The host waits for the device: made for once an epoch. Memory beyond the rows is
    64 MB of distances, a chunk of rows in float64, and two [K, D] sums.

    Args:
        rows: this rank's [n, D], any n on each rank, also 0, D the same; outside of a training step.
        k: how many clusters, from 1 to the number of rows.
        num_iters: rounds of assignment and means; assignments to the last centroids follow.
        seed: of the rows to start from, the same on every rank.
        spherical: compare directions: rows and centroids are normalised.
        empty: what becomes of a cluster without rows: "keep" leaves its centroid where it was, as the paper's code
            does; "split" puts it beside the centroid of the largest cluster, both moved apart by 1/1024 of their
            values, as faiss does.

    Returns:
        Centroids [k, D], in float32 at the least, and this rank's assignments, int64 [n].

    Raises:
        ConfigError: if there are fewer rows than clusters, or no clusters.
        ValueError: if a row is not finite.
    """
    total = sum(dist.row_counts(len(rows), rows.device))
    if not 1 <= k <= total:
        raise ConfigError(
            f"k-means cannot find {k} cluster(s) in {total} row(s): set between 1 and {total} clusters, or give it "
            "more images"
        )
    if not dist.all_true(bool(rows.isfinite().all()), rows.device):
        raise ValueError("k-means was given rows that are not finite: the network that made them has diverged")
    centroids = _first(rows, k, seed, spherical)
    scores = _scores_of_a_part(rows, k)
    for _ in range(num_iters):
        centroids = _moved(rows, centroids, spherical, empty, scores)
    nearest = [_nearest(part, centroids, spherical, scores) for part in _parts(rows, k, spherical)]
    return centroids, torch.cat(nearest) if nearest else torch.zeros(0, dtype=torch.int64, device=rows.device)


def _first(rows: Tensor, k: int, seed: int, spherical: bool) -> Tensor:
    """The rows that a permutation of all puts first, [k, D]; the rank that holds a row gives it to the others."""
    counts = dist.row_counts(len(rows), rows.device)
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed))[:k]
    own = order - sum(counts[: dist.rank()])
    is_here = (own >= 0) & (own < len(rows))
    first = at_least_fp32(rows.new_zeros(k, rows.shape[1]))
    first[is_here.to(rows.device)] = at_least_fp32(rows[own[is_here].to(rows.device)])
    first = dist.all_sum(first)
    return F.normalize(first, dim=1) if spherical else first


def _moved(rows: Tensor, centroids: Tensor, spherical: bool, empty: EmptyRule, scores: Tensor) -> Tensor:
    """Centroids after one round [K, D]."""
    k, dim = centroids.shape
    sums = torch.zeros(k, dim + 1, dtype=torch.float64, device=rows.device)  # the last column counts
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
    """Each empty cluster beside the then largest, of which it takes half."""
    apart = torch.full(centroids.shape[1:], 1 / 1024, dtype=centroids.dtype, device=centroids.device)  # [D]
    apart[1::2] *= -1
    for cluster, count in enumerate(counts):
        if count == 0:
            largest = max(range(len(counts)), key=counts.__getitem__)
            centroids[cluster] = centroids[largest] * (1 + apart)
            centroids[largest] *= 1 - apart
            counts[largest] = counts[cluster] = counts[largest] / 2
    return centroids


def _parts(rows: Tensor, k: int, spherical: bool) -> Iterator[Tensor]:
    """The rows a few at a time, of length 1 where directions count."""
    for part in torch.split(rows, _rows_of_a_part(rows, k)) if len(rows) else ():
        part = at_least_fp32(part)
        yield F.normalize(part, dim=1) if spherical else part


def _rows_of_a_part(rows: Tensor, k: int) -> int:
    return max(_SCORES_AT_ONCE // max(k, rows.shape[1]), 1)


def _scores_of_a_part(rows: Tensor, k: int) -> Tensor:
    """Where the scores of one part after the other are put: fresh memory each time takes as long as the product."""
    return at_least_fp32(rows.new_empty(0)).new_empty(min(_rows_of_a_part(rows, k), len(rows)), k)


def _nearest(part: Tensor, centroids: Tensor, spherical: bool, scores: Tensor) -> Tensor:
    """Places of the nearest centroids, the first of equals, int64 [n]; `scores` is written over."""
    scores = scores[: len(part)]
    if spherical:
        return torch.mm(part, centroids.T, out=scores).argmax(dim=1)
    middle = centroids.mean(dim=0)  # differences of large squares would lose digits
    centred = centroids - middle
    torch.mm(part - middle, centred.T, out=scores)
    return scores.sub_(centred.square().sum(dim=1) / 2).argmax(dim=1)
